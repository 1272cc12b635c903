#pragma once

#include <cstdint>
#include <string>

#include "reference/model/model_config.hpp"

namespace loratory::sim {

/// Writes a PEFT folder of random bf16 weights: rank `rank` on every linear layer of the decoder
/// (of a model with experts on attention alone), small enough to leave activations finite. For
/// replays of traces, whose adapters are known by their ranks only.
/// Repeats  same arguments, same bytes. Cost  about a nanosecond a number, and the disk.
/// Errors   InputError if the disk refuses.
void write_synthetic_adapter(const std::string& directory, const reference::ModelConfig& model,
                             int64_t rank, uint64_t seed);

}  // namespace loratory::sim
