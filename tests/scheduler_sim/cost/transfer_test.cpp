#include "scheduler_sim/cost/transfer.hpp"

#include <gtest/gtest.h>

namespace loratory::sim {
namespace {

LoadCosts costs(int workers, int64_t latency_ns = 0) {
  LoadCosts costs;
  costs.num_workers = workers;
  costs.disk_latency_ns = latency_ns;
  costs.disk_bytes_per_s = 1'000'000'000;  // a byte per nanosecond
  return costs;
}

// The published measurement that the defaults are calibrated to: a rank-16 attention adapter of
// Qwen3-8B takes about 30 ms from disk and less than 1 ms to the GPU.
TEST(LoadCosts, DefaultsGiveTheMeasuredTimes) {
  const int64_t bytes = 36 * 16 * 2 * (8192 + 5120 + 5120 + 8192);
  DiskChannel disk{LoadCosts{}};
  disk.start(1, bytes, 0);
  EXPECT_NEAR(double(disk.next_completion().time_ns), 30e6, 1e6);
  CopyChannel copy{LoadCosts{}};
  copy.start(1, bytes, 0);
  EXPECT_LT(copy.next_completion().time_ns, 1'000'000);
}

TEST(DiskChannel, OneReadTakesLatencyPlusBytes) {
  DiskChannel disk(costs(2, 100));
  EXPECT_EQ(disk.next_completion(), TransferDone{});
  disk.start(7, 1000, 50);
  EXPECT_EQ(disk.next_completion(), (TransferDone{1150, 7}));
  EXPECT_EQ(disk.complete(1150), 7u);
  EXPECT_EQ(disk.next_completion().time_ns, kNever);
}

TEST(DiskChannel, TwoReadsShareTheBandwidth) {
  DiskChannel disk(costs(2));
  disk.start(1, 1000, 0);
  disk.start(2, 1000, 500);  // 500 bytes of job 1 are left, at half speed
  EXPECT_EQ(disk.next_completion(), (TransferDone{1500, 1}));
  EXPECT_EQ(disk.complete(1500), 1u);
  EXPECT_EQ(disk.next_completion(), (TransferDone{2000, 2}));  // 500 left at full speed
}

TEST(DiskChannel, AReadInItsLatencyTakesNoBandwidth) {
  DiskChannel disk(costs(2, 300));
  disk.start(1, 1000, 0);    // flows from 300
  disk.start(2, 1000, 500);  // flows from 800: job 1 has 500 left by then
  EXPECT_EQ(disk.next_completion(), (TransferDone{1800, 1}));
  disk.complete(1800);
  EXPECT_EQ(disk.next_completion(), (TransferDone{2300, 2}));
}

TEST(DiskChannel, OwnBandwidthForEachWorker) {
  LoadCosts own = costs(2);
  own.share_disk = false;
  DiskChannel disk(own);
  disk.start(1, 1000, 0);
  disk.start(2, 1000, 500);
  EXPECT_EQ(disk.complete(1000), 1u);
  EXPECT_EQ(disk.next_completion(), (TransferDone{1500, 2}));
}

TEST(DiskChannel, EqualTimesEndInOrderOfStart) {
  DiskChannel disk(costs(3));
  disk.start(9, 100, 0);
  disk.start(3, 100, 0);
  EXPECT_EQ(disk.complete(200), 9u);
  EXPECT_EQ(disk.complete(200), 3u);
}

TEST(DiskChannel, StartAtTheTimeOfACompletionLosesNothing) {
  DiskChannel disk(costs(3));
  disk.start(1, 100, 0);
  disk.start(2, 100, 0);
  disk.start(3, 50, 200);  // both others have just ended, neither is completed yet
  EXPECT_EQ(disk.complete(200), 1u);
  EXPECT_EQ(disk.complete(200), 2u);
  EXPECT_EQ(disk.next_completion(), (TransferDone{250, 3}));
}

TEST(DiskChannel, ThirdsOfANanosecondAreNotLost) {
  DiskChannel disk(costs(3));
  for (uint64_t job = 1; job <= 3; ++job) disk.start(job, 100, 0);
  EXPECT_EQ(disk.complete(300), 1u);
  EXPECT_EQ(disk.complete(300), 2u);
  EXPECT_EQ(disk.complete(300), 3u);
}

TEST(CopyChannel, OneAtATime) {
  LoadCosts slow;
  slow.h2d_latency_ns = 10;
  slow.h2d_bytes_per_s = 3'000'000'000;
  CopyChannel copy(slow);
  EXPECT_TRUE(copy.is_idle());
  copy.start(4, 1000, 100);
  EXPECT_FALSE(copy.is_idle());
  EXPECT_EQ(copy.next_completion(), (TransferDone{444, 4}));  // 333.3 ns rounded up
  EXPECT_EQ(copy.complete(444), 4u);
  EXPECT_TRUE(copy.is_idle());
}

}  // namespace
}  // namespace loratory::sim
