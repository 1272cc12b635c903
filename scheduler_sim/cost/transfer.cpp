#include "scheduler_sim/cost/transfer.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

// Bounds within which work and times cannot overflow.
constexpr int64_t kLeastBytesPerSecond = 1'000'000;
constexpr int64_t kMostBytesPerSecond = int64_t{1} << 44;
constexpr int kMostWorkers = 32;

void require_job(int64_t bytes) {
  LORATORY_ASSERT(bytes >= 0 && bytes <= kMostTransferBytes, "a transfer has 0 to 2^44 bytes");
}

void require_channel(int64_t latency_ns, int64_t bytes_per_s) {
  LORATORY_ASSERT(latency_ns >= 0, "a latency is not negative");
  LORATORY_ASSERT(bytes_per_s >= kLeastBytesPerSecond && bytes_per_s <= kMostBytesPerSecond,
                  "a bandwidth is 10^6 to 2^44 bytes/s");
}

}  // namespace

DiskChannel::DiskChannel(const LoadCosts& costs)
    : num_workers_(size_t(costs.num_workers)),
      share_(costs.share_disk),
      latency_ns_(costs.disk_latency_ns) {
  LORATORY_ASSERT(costs.num_workers >= 1 && costs.num_workers <= kMostWorkers, "1 to 32 workers");
  require_channel(costs.disk_latency_ns, costs.disk_bytes_per_s);
  int64_t multiple = 1;
  for (int64_t n = 2; n <= costs.num_workers; ++n) multiple = std::lcm(multiple, n);
  shares_ = multiple;
  work_per_ns_ = shares_ * costs.disk_bytes_per_s;
  reads_.reserve(num_workers_);
}

void DiskChannel::start(uint64_t job, int64_t bytes, int64_t now_ns) {
  require_job(bytes);
  LORATORY_ASSERT(has_free_worker(), "a read needs a free worker");
  LORATORY_ASSERT(now_ns >= now_ns_ && now_ns <= next_.time_ns, "time passes no completion");
  advance(reads_, now_ns_, now_ns);
  now_ns_ = now_ns;
  reads_.push_back({job, now_ns + latency_ns_, bytes * (kNsPerSecond * shares_)});
  next_ = find_next();
}

uint64_t DiskChannel::complete(int64_t now_ns) {
  LORATORY_ASSERT(!reads_.empty() && now_ns == next_.time_ns, "a read ends when it ends");
  advance(reads_, now_ns_, now_ns);
  now_ns_ = now_ns;
  const uint64_t job = next_.job;
  reads_.erase(std::ranges::find(reads_, job, &Read::job));
  next_ = find_next();
  return job;
}

// Reads among which the bandwidth is divided; at least 1.
DiskChannel::Work DiskChannel::num_sharing(const std::vector<Read>& reads, int64_t now_ns) const {
  if (!share_) return 1;
  const auto flowing =
      std::ranges::count_if(reads, [now_ns](const Read& read) { return read.flows(now_ns); });
  return std::max<Work>(flowing, 1);
}

// Hands `work` out in equal shares; what a read that ends leaves over goes to the others.
void DiskChannel::spend(std::vector<Read>& reads, int64_t now_ns, Work work) const {
  while (work > 0) {
    const Work sharing = num_sharing(reads, now_ns);
    const Work share = work / sharing;
    Work least = share;
    bool any_flows = false;
    for (const Read& read : reads) {
      if (!read.flows(now_ns)) continue;
      least = std::min(least, read.left);
      any_flows = true;
    }
    if (!any_flows) return;
    // Units that do not divide go one each to the reads started first.
    Work extra = least == share ? work % sharing : 0;
    for (Read& read : reads) {
      if (!read.flows(now_ns)) continue;
      const Work part = std::min(read.left, share_ ? least + (extra-- > 0 ? 1 : 0) : work);
      read.left -= part;
    }
    if (!share_ || least == share) return;
    work -= least * sharing;
  }
}

// Moves the reads forward. The set of reads past their latency changes at whole nanoseconds only.
void DiskChannel::advance(std::vector<Read>& reads, int64_t from_ns, int64_t to_ns) const {
  while (from_ns < to_ns) {
    int64_t until_ns = to_ns;
    bool any_flows = false;
    for (const Read& read : reads) {
      if (read.ready_ns > from_ns) until_ns = std::min(until_ns, read.ready_ns);
      any_flows = any_flows || read.flows(from_ns);
    }
    if (any_flows) spend(reads, from_ns, work_per_ns_ * (until_ns - from_ns));
    from_ns = until_ns;
  }
}

TransferDone DiskChannel::find_next() const {
  std::vector<Read> reads = reads_;
  int64_t now_ns = now_ns_;
  while (!reads.empty()) {
    const Work sharing = num_sharing(reads, now_ns);
    TransferDone next;
    int64_t change_ns = kNever;
    for (const Read& read : reads) {
      if (read.ready_ns > now_ns) {
        change_ns = std::min(change_ns, read.ready_ns);
        continue;
      }
      const int64_t end_ns = now_ns + int64_t(ceil_div(read.left * sharing, work_per_ns_));
      if (end_ns < next.time_ns) next = {end_ns, read.job};
    }
    // All latencies are equal: a read that becomes ready in that nanosecond was started later.
    if (next.time_ns <= change_ns) return next;
    advance(reads, now_ns, change_ns);
    now_ns = change_ns;
  }
  return {};
}

CopyChannel::CopyChannel(const LoadCosts& costs)
    : latency_ns_(costs.h2d_latency_ns), bytes_per_s_(costs.h2d_bytes_per_s) {
  require_channel(latency_ns_, bytes_per_s_);
}

int64_t CopyChannel::duration_ns(int64_t bytes) const {
  return latency_ns_ + int64_t(ceil_div(__int128{bytes} * kNsPerSecond, __int128{bytes_per_s_}));
}

void CopyChannel::start(uint64_t job, int64_t bytes, int64_t now_ns) {
  require_job(bytes);
  LORATORY_ASSERT(is_idle(), "copies run one at a time");
  next_ = {now_ns + duration_ns(bytes), job};
}

uint64_t CopyChannel::complete(int64_t now_ns) {
  LORATORY_ASSERT(!is_idle() && now_ns == next_.time_ns, "a copy ends when it ends");
  return std::exchange(next_, {}).job;
}

}  // namespace loratory::sim
