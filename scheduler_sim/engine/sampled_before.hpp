#pragma once

#include <cstdint>
#include <vector>

#include "reference/base/check.hpp"
#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// Which row of the step before sampled a request's last token: for executors that begin a step
/// while that token is still being sampled [7.17].
class SampledBefore {
 public:
  /// Forgets what was added: the step that is added from now on comes behind.
  void next_step() { ++step_; }
  /// The request's token is the `index`th that the step samples.
  void add(RequestRef request, int32_t index) {
    if (request >= places_.size()) places_.resize(request + 1);
    places_[request] = {step_, index};
  }
  /// Asserted: it was added since the last next_step().
  int32_t index_of(RequestRef request) const {
    LORATORY_ASSERT(request < places_.size() && places_[request].step == step_,
                    "a token that nobody knows is being sampled");
    return places_[request].index;
  }

 private:
  struct Place {
    int64_t step = -1;
    int32_t index = 0;
  };
  std::vector<Place> places_;  // by RequestRef
  int64_t step_ = 0;
};

}  // namespace loratory::sim
