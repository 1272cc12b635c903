#include "scheduler_sim/measured/metrics_polls.hpp"

#include <algorithm>

namespace loratory::sim {

void MetricsPolls::advance_to(int64_t until_ns, int64_t duration_ns) {
  if (interval_ns_ == 0) return;
  while (next_ns_ < until_ns) {
    const int64_t total = polls_.empty() ? 0 : polls_.back().total_ns;
    polls_.push_back({next_ns_, next_ns_ + duration_ns, total + duration_ns});
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

// Tokens come evenly, so of those that fall into polls, each poll leaves one.
double MetricsPolls::num_gaps_seen(int64_t first_ns, int64_t last_ns, double num_gaps) const {
  const size_t begin = num_begun_before(first_ns), end = num_begun_before(last_ns);
  if (begin == end || last_ns <= first_ns) return num_gaps;
  const int64_t before = begin == 0 ? 0 : polls_[begin - 1].total_ns;
  const double polled = double(polls_[end - 1].total_ns - before);
  const double in_polls = num_gaps * std::min(1.0, polled / double(last_ns - first_ns));
  return num_gaps - std::max(0.0, in_polls - double(end - begin));
}

}  // namespace loratory::sim
