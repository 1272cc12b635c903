#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "scheduler_sim/scheduler/decision.hpp"

namespace loratory::sim {

/// How many different pairs (adapters with a running request, adapters with a waiting one) a server
/// has reported, step by step. A request waits until its first token, as the server's front end
/// sees it; so what is reported changes in steps in which a token is the first or the last of a
/// request.
class AdapterSets final : public DecisionSink {
 public:
  void on_decision(const Decision& decision) override;
  int64_t num_seen() const { return int64_t(seen_.size()); }
  /// The adapters in each pair that was seen, summed up: names in all labels.
  int64_t num_names() const { return num_names_; }

 private:
  struct Counts {
    int32_t waiting = 0, running = 0;
  };
  void report();
  void add(int32_t& count, int32_t change, Uid uid, uint64_t salt);

  std::vector<Counts> counts_;  // by uid
  std::unordered_set<uint64_t> seen_;
  int64_t num_names_ = 0;
  uint64_t state_ = 0;  // exclusive or of a number for each member
  int64_t num_members_ = 0;
  int64_t step_end_ns_ = -1;  // of the last step that changed something and was not reported
};

}  // namespace loratory::sim
