#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// What moving an adapter costs: latency + bytes / bandwidth, from disk to the CPU and from there
/// to the GPU. Defaults: calibrated to a published measurement (TokenSpeed, Qwen3-8B: TTFT 43 ms
/// with the adapter in GPU or CPU memory, 72 ms from disk, of which the read is about 30 ms),
/// assuming a rank-16 attention adapter of 30.7 MB, the largest common one whose copy takes < 1 ms.
struct LoadCosts {
  int64_t disk_latency_ns = 2'000'000;  ///< open, parse, validate
  int64_t disk_bytes_per_s = 1'100'000'000;
  int num_workers = 2;     ///< 1..32
  bool share_disk = true;  ///< workers share disk_bytes_per_s equally;
                           ///< false: each has all of it
  int64_t h2d_latency_ns = 50'000;
  int64_t h2d_bytes_per_s = 51'200'000'000;  ///< PCIe 5 x16 at 0.8
};

/// Most bytes of one transfer.
inline constexpr int64_t kMostTransferBytes = int64_t{1} << 44;

/// The end of a transfer; time_ns = kNever when none is under way.
struct TransferDone {
  int64_t time_ns = kNever;
  uint64_t job = 0;
  friend bool operator==(const TransferDone&, const TransferDone&) = default;
};

/// Disk -> CPU: up to num_workers reads at once. A read waits disk_latency_ns, then its bytes flow
/// at an equal share of the bandwidth (processor sharing). Integer arithmetic that loses no work,
/// not even when a read ends within a nanosecond: the channel is the fluid model, and a completion
/// is the first nanosecond at which the last byte has arrived. Equal times end in order of start.
/// Bounds (asserted): 1 MB/s to 16 TB/s, 16 TB a read.
class DiskChannel {
 public:
  /// Asserts that the numbers are in range.
  explicit DiskChannel(const LoadCosts& costs);

  bool has_free_worker() const { return reads_.size() < num_workers_; }
  int num_active() const { return int(reads_.size()); }

  /// Needs a free worker, a job that no read under way has, `now_ns` not before the last call, and
  /// no completion before `now_ns`.
  /// Changes when reads under way end: ask next_completion() again.
  void start(uint64_t job, int64_t bytes, int64_t now_ns);

  /// The read that ends next. Asking changes nothing. O(1); start and complete cost O(workers^2).
  TransferDone next_completion() const { return next_; }

  /// Ends that read; `now_ns` is its time. Returns its job.
  uint64_t complete(int64_t now_ns);

 private:
  // Work in units of 1e-9 / shares_ bytes: an n-th of the bandwidth is then an integer per ns.
  using Work = __int128;
  struct Read {
    uint64_t job;
    int64_t ready_ns;  // end of the latency, from then on it takes its share
    Work left;
    bool flows(int64_t now_ns) const { return ready_ns <= now_ns && left > 0; }
  };

  Work num_sharing(const std::vector<Read>& reads, int64_t now_ns) const;
  TransferDone find_next() const;
  void advance(std::vector<Read>& reads, int64_t from_ns, int64_t to_ns) const;
  void spend(std::vector<Read>& reads, int64_t now_ns, Work work) const;

  size_t num_workers_;
  bool share_;
  int64_t latency_ns_;
  Work shares_ = 1;          // least common multiple of 1..num_workers
  Work work_per_ns_ = 0;     // of the whole disk
  std::vector<Read> reads_;  // in order of start
  int64_t now_ns_ = 0;
  TransferDone next_;
};

/// CPU -> GPU: one copy at a time, in order of start.
class CopyChannel {
 public:
  explicit CopyChannel(const LoadCosts& costs);
  bool is_idle() const { return next_.time_ns == kNever; }
  int64_t duration_ns(int64_t bytes) const;
  /// Needs an idle channel.
  void start(uint64_t job, int64_t bytes, int64_t now_ns);
  TransferDone next_completion() const { return next_; }
  uint64_t complete(int64_t now_ns);

 private:
  int64_t latency_ns_;
  int64_t bytes_per_s_;
  TransferDone next_;
};

}  // namespace loratory::sim
