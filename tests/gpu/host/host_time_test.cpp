#include "gpu/engine/host_time.hpp"

#include <gtest/gtest.h>

namespace loratory::gpu {
namespace {

TEST(HostTime, CountsFromWakingToWaitingWhereAStepWasMet) {
  HostTime time;
  time.waits(0);
  time.wakes(100);  // a step has ended
  time.works(103);
  time.waits(107);  // its commit
  EXPECT_EQ(time.total_ns(), 7);
  time.wakes(108);  // nothing else has
  time.works(120);  // planned and begun
  time.waits(121);
  EXPECT_EQ(time.total_ns(), 20);
}

TEST(HostTime, LeavesOutWhatMeetsNoStep) {
  HostTime time;
  time.wakes(10);  // a load has ended
  time.waits(50);
  time.wakes(60);
  time.waits(1'000'000);  // the program waited for a request
  EXPECT_EQ(time.total_ns(), 0);
}

}  // namespace
}  // namespace loratory::gpu
