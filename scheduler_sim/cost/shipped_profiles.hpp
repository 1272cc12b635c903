#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

/// Profiles of measured servers that are part of the library, made by `loratory calibrate` from
/// published runs (docs/calibration.md). "vllm-0.8/llama-3.1-8b": the engine and the model.
std::vector<std::string> shipped_profile_names();

/// The file of that name, the case of letters aside; empty if there is none.
std::string_view shipped_profile(std::string_view name);

}  // namespace loratory::sim
