#include "scheduler_sim/scheduler/decision.hpp"

#include <iterator>

namespace loratory::sim {

const char* name_of(const Decision& decision) {
  static constexpr const char* kNames[] = {
      "arrival",     "admission", "chunk",       "load",   "load_done",   "copy",
      "copy_done",   "eviction",  "reservation", "drain",  "drain_end",   "preemption",
      "first_token", "finish",    "abort",       "unload", "load_failure"};
  static_assert(std::size(kNames) == std::variant_size_v<decision::Any>);
  return kNames[decision.what.index()];
}

}  // namespace loratory::sim
