#include "scheduler_sim/sizing/miss_ratio_curve.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler_sim/workload/adapter_assignment.hpp"

namespace loratory::sim {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pair;

// By hand, on the stream 0 1 2 0 1 2: LRU of 2 always evicts the next one; MIN keeps 0 at the load
// of 2 (0 is used next), then keeps 2 at the load of 1: it hits 0 and 2.
TEST(MissRatioCurve, CyclicStreamByHand) {
  const std::vector<AdapterIndex> stream = {0, 1, 2, 0, 1, 2};
  const std::vector<int32_t> sizes = {1, 2, 3, 4};
  EXPECT_THAT(lru_curve(stream, sizes).miss_ratios, ElementsAre(1, 1, .5, .5));
  EXPECT_THAT(opt_curve(stream, sizes).miss_ratios, ElementsAre(1, 4. / 6, .5, .5));
  // top-k of 2 keeps adapter 0 and passes 1, 2, 1, 2 through the last slot.
  EXPECT_THAT(top_k_curve(stream, sizes).miss_ratios, ElementsAre(1, 5. / 6, .5, .5));
}

TEST(MissRatioCurve, SizesMayComeInAnyOrder) {
  const std::vector<AdapterIndex> stream = {7, 7, 3, 7};
  EXPECT_THAT(lru_curve(stream, std::vector<int32_t>{9, 1, 2}).miss_ratios,
              ElementsAre(.5, .75, .5));
}

TEST(MissRatioCurve, EmptyStreamMissesNothing) {
  for (const MissRatioCurve& curve : miss_ratio_curves({}, std::vector<int32_t>{1, 8})) {
    EXPECT_THAT(curve.miss_ratios, ElementsAre(0, 0)) << curve.policy;
  }
  EXPECT_TRUE(reuse_distance_cdf({}).empty());
}

TEST(MissRatioCurve, ReferencesLeaveOutTheBaseModel) {
  Trace trace;
  trace.requests = {{.adapter = 1}, {.adapter = kBaseModel}, {.adapter = 0}};
  EXPECT_THAT(adapter_references(trace), ElementsAre(1, 0));
}

TEST(ReuseDistance, CountsDistinctAdaptersSinceTheLastUse) {
  // Distances: - - - 3 1 2 (0 since then: 1, 2 and itself; 0 again; 2, then 0 in between).
  const std::vector<AdapterIndex> stream = {0, 1, 2, 0, 0, 2};
  EXPECT_THAT(reuse_distance_cdf(stream),
              ElementsAre(Pair(1, DoubleNear(1. / 6, 1e-15)), Pair(2, DoubleNear(2. / 6, 1e-15)),
                          Pair(3, DoubleNear(3. / 6, 1e-15))));
}

// A public figure for S-LoRA's popularity: 200 adapters, power(0.3), 8 slots. Hit ratios LRU .246,
// OPT .444, and .381 for a top-k that keeps all 8 and never loads another; ours keeps 7.
TEST(MissRatioCurve, SloraPopularityWithEightSlots) {
  Trace trace;
  trace.requests.resize(40'000);
  assign_adapters(trace, {parse_popularity("power:0.3"), 200, {8}, 1});
  const auto curves = miss_ratio_curves(adapter_references(trace), std::vector<int32_t>{8});
  EXPECT_NEAR(1 - curves[0].miss_ratios[0], .246, .02);
  EXPECT_NEAR(1 - curves[1].miss_ratios[0], .444, .02);
  EXPECT_NEAR(1 - curves[2].miss_ratios[0], .381, .02);
  EXPECT_EQ(curves[0].policy, "lru");
  EXPECT_EQ(curves[1].policy, "opt");
  EXPECT_EQ(curves[2].policy, "top-k");
}

}  // namespace
}  // namespace loratory::sim
