#pragma once

#include <cstdint>
#include <memory>

#include "check/schedulers/scheduler_under_test.hpp"

namespace loratory::check {

/// Our own scheduler (scheduler_sim/scheduler) behind the door that it is judged through. What
/// `hello` does not say is a default of docs/scheduler.md, but for these.
struct OwnOptions {
  bool blocking = false;        ///< load_mode: a step waits for its adapters
  bool packed = false;          ///< admission_order
  bool chunked_prefill = true;  ///< false: a step's budget is raised to max_model_len
  bool prefix_cache = true;
  int64_t n_starve = 8;  ///< walks
};

std::unique_ptr<SchedulerUnderTest> own_scheduler(const OwnOptions& options = {});

}  // namespace loratory::check
