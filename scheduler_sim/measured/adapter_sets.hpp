#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "scheduler_sim/scheduler/decision.hpp"

namespace loratory::sim {

/// How many different pairs (adapters with a running request, adapters with a waiting one) a server
/// has reported. A request waits until its first token, as the server's front end sees it.
class AdapterSets final : public DecisionSink {
 public:
  void on_decision(const Decision& decision) override;
  int64_t num_seen() const { return int64_t(seen_.size()); }

 private:
  struct Counts {
    int32_t waiting = 0, running = 0;
  };
  void add(int32_t& count, int32_t change, Uid uid, uint64_t salt);

  std::vector<Counts> counts_;  // by uid
  std::unordered_set<uint64_t> seen_;
  uint64_t state_ = 0;  // exclusive or of a number for each member
};

}  // namespace loratory::sim
