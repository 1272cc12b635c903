#pragma once

#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/reader.hpp"

namespace loratory::sim {

/// What the reader of traces says of `bytes`, a file named t.
inline std::string error_of(const std::string& bytes, const ReadOptions& options = {}) {
  try {
    read_trace_from(bytes, "t", options);
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace loratory::sim
