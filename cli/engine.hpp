#pragma once

#include "cli/system_options.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::cli {

/// The engine that the flags describe, for this trace: --max-lora-rank, --block-size and
/// --max-model-len default to what the trace needs. Throws InputError.
sim::EngineSpec make_engine(const SystemOptions& options, const sim::Trace& trace);

}  // namespace loratory::cli
