#pragma once

#include <optional>
#include <string_view>

#include "scheduler_sim/trace/bad_row.hpp"

namespace loratory::sim {

/// The first escape in the strings of a JSON text that stands for no character, such as \x, or
/// \ud800 without its other half; nothing if there is none. Its column counts from the start of
/// `json`.
std::optional<BadRow> bad_escape(std::string_view json);

}  // namespace loratory::sim
