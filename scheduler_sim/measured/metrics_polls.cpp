#include "scheduler_sim/measured/metrics_polls.hpp"

#include <algorithm>

namespace loratory::sim {

void MetricsPolls::advance_to(int64_t until_ns, int64_t duration_ns, bool merged) {
  if (interval_ns_ == 0) return;
  while (next_ns_ < until_ns) {
    Poll poll = polls_.empty() ? Poll{} : polls_.back();
    poll.begin_ns = next_ns_;
    poll.end_ns = next_ns_ + duration_ns;
    if (merged) {
      poll.merged_ns += duration_ns;
      ++poll.num_merged;
    }
    polls_.push_back(poll);
    next_ns_ += duration_ns + interval_ns_;
  }
}

// Those of a request that is being sent have all begun.
size_t MetricsPolls::num_begun_before(int64_t time_ns) const {
  if (polls_.empty() || polls_.back().begin_ns <= time_ns) return polls_.size();
  return size_t(std::ranges::upper_bound(polls_, time_ns, {}, &Poll::begin_ns) - polls_.begin());
}

int64_t MetricsPolls::seen_ns(int64_t time_ns) const {
  const size_t begun = num_begun_before(time_ns);
  return begun == 0 ? time_ns : std::max(time_ns, polls_[begun - 1].end_ns);
}

// Tokens come evenly, so of those that fall into polls that merge, each poll leaves one.
double MetricsPolls::num_gaps_seen(int64_t first_ns, int64_t last_ns, double num_gaps) const {
  const size_t begin = num_begun_before(first_ns), end = num_begun_before(last_ns);
  if (begin == end || last_ns <= first_ns) return num_gaps;
  const Poll before = begin == 0 ? Poll{} : polls_[begin - 1];
  const Poll& last = polls_[end - 1];
  const auto merged_ns = double(last.merged_ns - before.merged_ns);
  const double in_polls = num_gaps * std::min(1.0, merged_ns / double(last_ns - first_ns));
  return num_gaps - std::max(0.0, in_polls - double(last.num_merged - before.num_merged));
}

}  // namespace loratory::sim
