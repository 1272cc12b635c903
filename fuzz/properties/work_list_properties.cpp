// How the work of a launch is divided among clusters.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fuzz/support/seeded_case.hpp"
#include "gpu/plan/work_list.hpp"

namespace loratory::gpu {
namespace {

// What a layer and a GPU say of a launch, and what its step has.
struct Step {
  KernelOfWork kernel;
  KernelParams p;
  uint32_t num_segments;

  uint32_t num_clusters() const { return uint32_t(p.num_clusters); }
};

Step any_step(sim::Draw& draw) {
  Step out{.kernel = {LoraOp(draw(3))}, .p = {}, .num_segments = 0};
  KernelParams& p = out.p;
  if (out.kernel.op == LoraOp::expand && draw.one_in(3)) out.kernel.warps = 4;
  p.num_slices = int32_t(draw.between(1, 8));
  p.all_slices_fit = !draw.one_in(4);
  p.num_items = int32_t(draw.one_of<int64_t>({1, 2, 3, 8, 25, 112}));
  p.max_items = int32_t(draw.between(1, p.num_items));
  p.num_sms = uint32_t(draw.one_of<int64_t>({1, 64, 132}));
  p.parts_per_segment =
      out.kernel.op == LoraOp::expand ? int32_t(draw.one_of<int64_t>({1, 2, 8})) : 1;
  p.max_segments = int32_t(draw.one_of<int64_t>({1, 4, 32, 300, 2000}));
  out.num_segments = uint32_t(draw.between(0, p.max_segments));
  p.num_clusters = int32_t(draw.one_of<int64_t>({1, 15, 62, 132, 198, 528}));
  return out;
}

WorkList work_of(const Step& s, uint32_t cluster) {
  return {s.p, s.num_segments, cluster, s.kernel};
}
uint32_t slices_per_problem(const Step& s, const WorkList& work) {
  return work.fuses_slices() ? uint32_t(s.p.num_slices) : 1;
}

// P12: every item is in one share, shares come in order, and none has two items more than another.
RC_GTEST_PROP(WorkList, SharesAreEqualAndCoverAllItemsOnce, ()) {
  const sim::SeededCase c = sim::any_seeded_case(2);
  sim::Draw draw(c.seed);
  const Step s = any_step(draw);
  const WorkList some = work_of(s, 0);
  const uint32_t num_problems = s.num_segments * uint32_t(s.p.parts_per_segment * s.p.num_slices) /
                                slices_per_problem(s, some);
  const uint32_t all = num_problems * some.items_per_problem();
  uint32_t end = 0;
  for (uint32_t cluster = 0; cluster < s.num_clusters(); ++cluster) {
    const WorkList work = work_of(s, cluster);
    RC_ASSERT(work.items_per_problem() == some.items_per_problem() &&
              work.fuses_slices() == some.fuses_slices());
    RC_ASSERT(work.first == end);
    RC_ASSERT(work.end - work.first >= all / s.num_clusters());
    RC_ASSERT(work.end - work.first <= (all + s.num_clusters() - 1) / s.num_clusters());
    end = work.end;
  }
  RC_ASSERT(end == all);
  RC_CLASSIFY(all == 0, "nothing to do");
  RC_CLASSIFY(all > s.num_clusters(), "more items than clusters");
  RC_CLASSIFY(some.items_per_problem() == 2 * uint32_t(s.p.num_items), "halves");
  RC_CLASSIFY(slices_per_problem(s, some) == 1 && s.p.num_slices > 1, "a slice each");
}

// P12: the item ranges of a share are its items, in order, each within one problem.
RC_GTEST_PROP(WorkList, RangesAreTheItemsOfAShare, ()) {
  const sim::SeededCase c = sim::any_seeded_case(2);
  sim::Draw draw(c.seed);
  const Step s = any_step(draw);
  const bool one_item = draw.one_in(2);
  const WorkList work = work_of(s, uint32_t(draw.between(0, int64_t{s.num_clusters()} - 1)));
  int num_ranges = 0;
  for (uint32_t item = work.first; item < work.end; ++num_ranges) {
    const ItemRange range = work.item_range_at(item, one_item);
    RC_ASSERT(range.first < range.end && range.end <= work.items_per_problem());
    RC_ASSERT(range.problem * work.items_per_problem() + range.first == item);
    RC_ASSERT(!one_item || range.end == range.first + 1);
    item += range.end - range.first;
    RC_ASSERT(one_item || item == work.end || range.end == work.items_per_problem());
    RC_ASSERT(item <= work.end);
  }
  RC_CLASSIFY(num_ranges > 1, "several work tiles");
}

// P12: the items of a problem share its column tiles: all of them, in order, none with two more
// than another.
RC_GTEST_PROP(WorkList, ItemsShareColumnTiles, ()) {
  const sim::SeededCase c = sim::any_seeded_case(2);
  sim::Draw draw(c.seed);
  const Step s = any_step(draw);
  const WorkList work = work_of(s, 0);
  const uint32_t num_items = work.items_per_problem(),
                 count = uint32_t(draw.between(0, draw.one_of<int64_t>({20, 300, 5000})));
  for (uint32_t item = 0; item < num_items; ++item) {
    const uint32_t size = work.share_of_item(count, item + 1) - work.share_of_item(count, item);
    RC_ASSERT(size == count / num_items || size == count / num_items + 1);
  }
  RC_ASSERT(work.share_of_item(count, 0) == 0u);
  RC_ASSERT(work.share_of_item(count, num_items) == count);
  RC_CLASSIFY(count < num_items, "fewer tiles than items");
  RC_CLASSIFY(count % num_items != 0, "uneven");
}

// P12, P71: a grid is made before the step is known: its clusters are enough for an item each, and
// in the largest step none of them is idle. A linear layer takes slices apart only while clusters
// are idle, so there it is a bound alone.
RC_GTEST_PROP(WorkList, AGridHasAClusterForEveryItem, ()) {
  const sim::SeededCase c = sim::any_seeded_case(2);
  sim::Draw draw(c.seed);
  Step s = any_step(draw);
  s.p.num_clusters = int32_t(most_clusters(s.kernel, s.p));
  const WorkList last = work_of(s, s.num_clusters() - 1);
  RC_ASSERT(last.end - last.first <= 1);
  s.num_segments = uint32_t(s.p.max_segments);
  const WorkList of_largest = work_of(s, s.num_clusters() - 1);
  if (s.kernel.op != LoraOp::linear && s.num_clusters() != s.p.num_sms)
    RC_ASSERT(of_largest.first < of_largest.end);
  RC_CLASSIFY(s.kernel.op == LoraOp::expand, "expand");
  RC_CLASSIFY(s.kernel.warps == 4, "four warps");
  RC_CLASSIFY(s.num_clusters() == s.p.num_sms, "no more than SMs");
}

// What is not known is not bounded.
TEST(WorkList, WithoutALargestStepTheGridIsWhatTheGpuHolds) {
  KernelParams p;
  p.num_items = 3;
  EXPECT_EQ(most_clusters({LoraOp::shrink}, p), INT32_MAX);
}

// Both in one launch: slices apart would compute h for fewer columns each.
TEST(WorkList, ALinearTakesSlicesApartWhileClustersAreIdle) {
  KernelParams p;
  p.num_items = 2;
  p.max_items = 1;
  p.num_slices = 3;
  p.all_slices_fit = true;
  p.num_clusters = 62;
  EXPECT_FALSE(WorkList(p, 20, 0, {LoraOp::linear}).fuses_slices());
  EXPECT_EQ(WorkList(p, 20, 0, {LoraOp::linear}).items_per_problem(), 1u);
  EXPECT_TRUE(WorkList(p, 21, 0, {LoraOp::linear}).fuses_slices());
  EXPECT_EQ(WorkList(p, 21, 0, {LoraOp::linear}).items_per_problem(), 2u);
  p.all_slices_fit = false;
  EXPECT_FALSE(WorkList(p, 21, 0, {LoraOp::linear}).fuses_slices());
}

// Few items of an expand are halved, up to one for each SM.
TEST(WorkList, FewItemsOfAnExpandAreHalved) {
  KernelParams p;
  p.num_items = 8;
  p.num_slices = 1;
  p.all_slices_fit = true;
  p.num_sms = 128;
  p.max_segments = 8;
  p.num_clusters = 132;
  EXPECT_EQ(WorkList(p, 8, 0, {LoraOp::expand}).items_per_problem(), 16u);
  EXPECT_EQ(WorkList(p, 9, 0, {LoraOp::expand}).items_per_problem(), 8u);
  EXPECT_EQ(WorkList(p, 8, 0, {LoraOp::shrink}).items_per_problem(), 8u);
  EXPECT_EQ(WorkList(p, 8, 0, {LoraOp::expand, 4}).items_per_problem(), 8u) << "as small as halves";
  EXPECT_EQ(most_clusters({LoraOp::expand}, p), 128);
  EXPECT_EQ(most_clusters({LoraOp::expand, 4}, p), 64);
  p.max_segments = 9;
  EXPECT_EQ(most_clusters({LoraOp::expand}, p), 128);
  p.max_segments = 17;
  EXPECT_EQ(most_clusters({LoraOp::expand}, p), 136);
  EXPECT_EQ(most_clusters({LoraOp::shrink}, p), 136);
}

}  // namespace
}  // namespace loratory::gpu
