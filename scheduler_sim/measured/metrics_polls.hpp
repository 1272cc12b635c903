#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace loratory::sim {

/// The times in which a server answers /metrics and nothing else: what comes in or goes out then
/// does so at their end. A poll begins `interval_ns` after the last one ended.
class MetricsPolls {
 public:
  /// `interval_ns` 0 = nobody asks.
  explicit MetricsPolls(int64_t interval_ns) : interval_ns_(interval_ns), next_ns_(interval_ns) {}

  /// All polls that begin before `until_ns` take `duration_ns` each. If the tokens of a request
  /// that fall into one are `merged`, they leave as one chunk.
  void advance_to(int64_t until_ns, int64_t duration_ns, bool merged);
  size_t num_polls() const { return polls_.size(); }

  /// When what happens at `time_ns` is seen on the other side. For times before the last advance.
  int64_t seen_ns(int64_t time_ns) const;
  /// The chunks in which `num_gaps` + 1 tokens leave in [first_ns, last_ns], less one.
  double num_gaps_seen(int64_t first_ns, int64_t last_ns, double num_gaps) const;

 private:
  struct Poll {
    int64_t begin_ns = 0, end_ns = 0;
    int64_t merged_ns = 0, num_merged = 0;  // of the polls up to this one that merge chunks
  };
  size_t num_begun_before(int64_t time_ns) const;

  int64_t interval_ns_, next_ns_;
  std::vector<Poll> polls_;
};

}  // namespace loratory::sim
