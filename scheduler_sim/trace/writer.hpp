#pragma once

#include <cstdint>
#include <functional>
#include <ostream>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Writes the trace as native JSON lines (traces/SCHEMA.md), one row per request. Lossless:
/// reading them gives the same requests, adapters and content again, provided that every adapter
/// and its rank are used by some request and adapters stand in order of first use, as every
/// reader and generator leaves them. Same trace, same bytes.
/// Calls `on_rows` with the number of rows written, once every 4,096.
void write_native(std::ostream& out, const Trace& trace,
                  const std::function<void(uint64_t)>& on_rows = {});

}  // namespace loratory::sim
