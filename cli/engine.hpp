#pragma once

#include <span>

#include "cli/system_options.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::cli {

/// The engine that the flags describe, for these traces: --max-lora-rank, --block-size and
/// --max-model-len default to what they need. They have the same requests, and each its adapters.
/// Throws InputError.
sim::EngineSpec make_engine(const SystemOptions& options, std::span<const sim::Trace> traces);
/// InputError where the pinned adapters leave none of the `max_loras` slots to others.
void check_room_for_pins(const sim::EngineSpec& engine, int32_t max_loras);
inline sim::EngineSpec make_engine(const SystemOptions& options, const sim::Trace& trace) {
  return make_engine(options, {&trace, 1});
}

}  // namespace loratory::cli
