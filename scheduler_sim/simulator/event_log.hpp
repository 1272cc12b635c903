#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "scheduler_sim/scheduler/decision.hpp"

namespace loratory::sim {

/// Every decision of a run in order, as a hash and, when asked for, in memory.
/// Two runs with equal hashes made the same decisions at the same times.
class EventLog : public DecisionSink {
 public:
  explicit EventLog(bool keep = false) : keep_(keep) {}
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
  uint64_t folded() const;

  bool keep_;
  uint64_t size_ = 0;
  uint64_t hash_ = 0;  // of the full buffers so far
  std::vector<std::byte> buffer_;
  std::vector<Decision> decisions_;
};

}  // namespace loratory::sim
