#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "scheduler_sim/scheduler/decision.hpp"

namespace loratory::sim {

/// Every decision of a run in order, as a hash and, when asked for, in memory.
/// Two runs with equal hashes made the same decisions at the same times.
class EventLog : public DecisionSink {
 public:
  explicit EventLog(bool keep = false);
  ~EventLog() override;
  void on_decision(const Decision& decision) override;

  /// A decision as the log hashes it: time, number of its kind, request, uid, a, b.
  using Record = std::array<uint64_t, 6>;
  static Record record_of(const Decision& decision);

  /// 16 hex digits over all decisions so far.
  std::string hash() const;
  uint64_t size() const { return size_; }
  const std::vector<Decision>& decisions() const { return decisions_; }
  /// time_ns kind request uid a b; the kind says what a and b are (docs/simulation.md).
  static std::string line_of(const Decision& decision);
  /// One line a decision.
  static void write_text(std::ostream& out, const std::vector<Decision>& decisions);

 private:
  struct Hasher;  // XXH3 of the chunk that is being written, seeded by the hash of those before

  bool keep_;
  uint64_t size_ = 0;
  std::unique_ptr<Hasher> hasher_;
  std::vector<Decision> decisions_;
};

}  // namespace loratory::sim
