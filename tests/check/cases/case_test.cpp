#include "check/cases/case.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "check/cases/case_data.hpp"
#include "check/cases/draw.hpp"
#include "check/cases/draw_case.hpp"
#include "check/kernels/kernel.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

using testing::HasSubstr;

std::string error_of(const std::string& label) {
  try {
    case_named(label);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Case, LabelIsTheCase) {
  const std::string label = "linear.K4097.N4096+1024.r3,64,0.n17.zipf.bf16.seed7";
  const Case c = case_named(label);
  EXPECT_EQ(label_of(c), label);
  EXPECT_EQ(c.num_in, 4097);
  EXPECT_EQ(c.num_columns(), 5120);
  EXPECT_EQ(c.num_slots(), 3);
  EXPECT_EQ(c.max_rank, 64);
  EXPECT_EQ(c.num_tokens, 17);
  EXPECT_EQ(c.mapping, Mapping::zipf);
  EXPECT_EQ(c.y, reference::Dtype::bf16);
}

TEST(Case, FieldsMayComeInAnyOrderAndRunsAreShort) {
  const Case c = case_named("shrink.seed9.f16.r16x3,2/0.R24.s0,1x2,b.N8+8.K5.hf16.gaps.ints");
  EXPECT_EQ(c.slots, (std::vector<int32_t>{0, 1, 1, -1}));
  EXPECT_EQ(c.rank(3, 0), 2);
  EXPECT_EQ(c.rank(3, 1), 0);
  EXPECT_EQ(label_of(c), "shrink.K5.N8+8.r16x3,2/0.R24.s0,1x2,b.f16.hf16.gaps.ints.seed9");
  EXPECT_EQ(case_named(label_of(c)), c);
}

TEST(Case, EveryDrawnCaseHasALabelThatIsIt) {
  const LoratoryClaims& claims = *reference_plugin().claims;
  for (int operation = 0; operation < LORATORY_NUM_OPERATIONS; ++operation) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const Case c = draw_case(seed, {.claims = claims, .operation = LoratoryOperation(operation)});
      ASSERT_EQ(case_named(label_of(c)), c) << label_of(c);
      EXPECT_LE(c.num_products(), int64_t(1) << 22);
    }
  }
}

TEST(CaseData, AbsentExpertsAndDisabledSlotsAreNotCovered) {
  const std::string label = "expert_linear.K5.N4.r2x9.n40.uniform.bf16.E4.k2.xrows.away.off.seed2";
  const CaseData data(case_named(label));
  EXPECT_EQ(label_of(data.shape), label);
  int64_t num_rows = 0, num_away = 0, num_off = 0;
  for (int64_t row = 0; row < data.shape.num_rows(); ++row) {
    const bool is_off = data.step.active_slot(row / 2) < 0, is_away = data.step.experts[row] < 0;
    num_off += is_off && data.step.slots[row / 2] >= 0, num_away += is_away;
    EXPECT_EQ(std::isnan(data.step.x->get(row, 0)), is_off || is_away);
    num_rows += !is_off && !is_away;
  }
  EXPECT_GT(num_away, 10);
  EXPECT_GT(num_off, 5);
  // Experts that an adapter leaves alone are not covered either.
  EXPECT_LE(int64_t(data.covered(data.step).size()), num_rows);
  EXPECT_GT(data.covered(data.step).size(), 10u);
  EXPECT_THAT(error_of("linear.K5.N4.r2.n1.bf16.off.seed1"), HasSubstr("experts are for"));
}

TEST(Case, RowsAreAlignedAsClaimed) {
  LoratoryClaims claims = *reference_plugin().claims;
  claims.alignment = 16;
  int num_aligned = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Case c = draw_case(seed, {.claims = claims, .operation = LORATORY_OP_LINEAR});
    ASSERT_EQ(case_named(label_of(c)), c) << label_of(c);
    EXPECT_EQ(c.num_in % row_unit(16, c.weight), 0);
    num_aligned += c.alignment == 16;
  }
  EXPECT_GT(num_aligned, 150);
  EXPECT_EQ(case_named("linear.K16.N8.r8.n1.bf16.a16.seed1").alignment, 16);
  EXPECT_THAT(error_of("linear.K16.N8.r8.n1.bf16.a24.seed1"), HasSubstr("is not a power of two"));
  EXPECT_THAT(error_of("linear.K17.N8.r8.n1.bf16.a16.seed1"), HasSubstr("in multiples of 8"));
}

TEST(Case, RanksAreMultiplesBelowTheLimit) {
  LoratoryClaims claims = *reference_plugin().claims;
  claims.rank_multiple = 8;
  claims.max_rank = 20;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = draw_case(seed, {.claims = claims, .operation = LORATORY_OP_LINEAR});
    EXPECT_EQ(c.max_rank % 8, 0) << label_of(c);
    EXPECT_LE(c.max_rank, 16) << label_of(c);
  }
  // A limit that aligned ranks do not fit below: the claim on ranks is kept.
  claims.alignment = 128;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = draw_case(seed, {.claims = claims, .operation = LORATORY_OP_LINEAR});
    EXPECT_EQ(c.max_rank % 8, 0) << label_of(c);
  }
}

// A sum is bounded while n·unit < 1: K and ranks are drawn below.
TEST(Case, SumsHaveABound) {
  LoratoryClaims claims = *reference_plugin().claims;
  int64_t most = 0;
  for (const double unit : {0x1p-12, 0x1p-8}) {
    claims.unit = unit;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const Case c = draw_case(seed, {.claims = claims, .operation = LORATORY_OP_LINEAR});
      EXPECT_LT(double(c.num_in + 2 * c.max_rank + 8) * unit, 1) << label_of(c);
      most = std::max(most, c.num_in);
    }
  }
  EXPECT_EQ(most, 1024);
  claims.num_in_multiple = 2000;  // of which one must be
  EXPECT_EQ(draw_case(1, {.claims = claims, .operation = LORATORY_OP_LINEAR}).num_in, 2000);
  claims.num_in_multiple = 0;
  claims.unit = 0;
  most = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = draw_case(seed, {.claims = claims, .operation = LORATORY_OP_LINEAR});
    most = std::max(most, c.num_in);
  }
  EXPECT_EQ(most, 14336);
}

TEST(Case, ErrorsNameTheField) {
  EXPECT_THAT(error_of("liner.K4"), HasSubstr("did you mean 'linear'"));
  EXPECT_THAT(error_of("linear.K4.N4.n2"), HasSubstr("has no ranks"));
  EXPECT_THAT(error_of("linear.K0.N4.r1"), HasSubstr("no number from 1"));
  EXPECT_THAT(error_of("linear.K4.N4.r1.q7"), HasSubstr("'q7'"));
  EXPECT_THAT(error_of("linear.K4.N4.r1.K4"), HasSubstr("twice"));
  EXPECT_THAT(error_of("linear.K4.N4.r9.R8"), HasSubstr("less than the largest rank"));
  EXPECT_THAT(error_of("linear.K4.N4.r9.s1"), HasSubstr("has no rank"));
  EXPECT_THAT(error_of("linear.K4.N4.r9.f8_e5m2"), HasSubstr("wtensor"));
  EXPECT_THAT(error_of("linear.K4.N4+4.r9/8.stacked"), HasSubstr("stacked"));
  EXPECT_THAT(error_of("linear.K4.N4.r9.E4"), HasSubstr("experts are for"));
}

TEST(Case, NoKindOfFieldIsThereTwice) {
  const auto expect_twice = [](const std::string& fields, const std::string& second) {
    const std::string error = error_of("linear.N4.r1." + fields);
    EXPECT_THAT(error, HasSubstr("'" + second + "': is of the same kind as '")) << fields;
  };
  expect_twice("K4.K8", "K8");
  expect_twice("f32.bf16", "bf16");
  expect_twice("xf16.xbf16", "xbf16");
  expect_twice("dense.stacked", "stacked");
  expect_twice("split2.cast", "cast");
  expect_twice("tiny.reals", "reals");
  expect_twice("zipf.base", "base");
  expect_twice("wtensor.wblock", "wblock");
  expect_twice("atoken.atensor", "atensor");
  expect_twice("seed1.seed2", "seed2");
  EXPECT_EQ(error_of("linear.K4.N4.r1.n1.s0.seed3.yf16.hf16.noadd.o4"), "");
}

LoratoryClaims small_claims() {
  LoratoryClaims claims{};
  claims.operations = 1U << LORATORY_OP_LINEAR | 1U << LORATORY_OP_SHRINK;
  claims.weight_dtypes = 1U << LORATORY_BF16;
  claims.layouts = 1U << LORATORY_LAYOUT_SLICES;
  return claims;
}

TEST(Case, WhatTheClaimsDoNotCoverIsNamed) {
  LoratoryClaims claims = small_claims();
  claims.max_rank = 16, claims.max_slots = claims.max_slices = 2, claims.max_tokens = 4;
  claims.rank_multiple = 2, claims.num_in_multiple = 8, claims.num_out_multiple = 4;
  const auto error = [&](const std::string& label) -> std::string {
    try {
      check_claimed(case_named(label), claims);
    } catch (const InputError& refused) {
      return refused.what();
    }
    return "";
  };
  EXPECT_EQ(error("linear.K8.N4.r2.n1.bf16"), "");
  EXPECT_EQ(error("shrink.K16.N8+4.r16/3,2.n4.bf16"), "");
  EXPECT_EQ(error("linear.K8.N4.r2.n1.bf16.stacked"),
            "case: 'stacked': the kernel does not claim this layout");
  EXPECT_THAT(error("expand.K8.N4.r2.n1.bf16"), HasSubstr("'expand': the kernel does not claim"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.f16"), HasSubstr("'f16'"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.bf16.yf32"), HasSubstr("this dtype of y"));
  EXPECT_THAT(error("shrink.K8.N4.r2.n1.bf16.hf16"), HasSubstr("this dtype of h"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.bf16.twice"), HasSubstr("these rounding points"));
  EXPECT_THAT(error("linear.K8.N4.r18.n1.bf16"), HasSubstr("'r': the kernel does not claim 18"));
  EXPECT_THAT(error("linear.K8.N4.r2x3.n1.bf16"), HasSubstr("3 slots, 2 at most"));
  EXPECT_THAT(error("linear.K8.N4+4+4.r2.n1.bf16"), HasSubstr("3 slices"));
  EXPECT_THAT(error("linear.K8.N4.r2.n5.bf16"), HasSubstr("5 tokens"));
  EXPECT_THAT(error("linear.K9.N4.r2.n1.bf16"), HasSubstr("'K': the kernel does not claim 9,"));
  EXPECT_THAT(error("linear.K8.N5.r2.n1.bf16"), HasSubstr("'N'"));
  EXPECT_THAT(error("linear.K8.N4.r3.n1.bf16"), HasSubstr("no multiple of 2"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.bf16.o4"), HasSubstr("offset_start"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.bf16.noadd"), HasSubstr("without inputs"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.bf16.gaps"), HasSubstr("apart"));
  EXPECT_THAT(error("linear.K8.N4+4.r2/0.n1.bf16"), HasSubstr("absent slices"));
  EXPECT_THAT(error("linear.K8.N4.r2.n1.bf16.a4"), HasSubstr("alignment"));
}

// Of the claims of the reference some are left out, others limited.
LoratoryClaims some_claims(uint64_t seed) {
  LoratoryClaims claims = *reference_plugin().claims;
  const auto pick = [&](uint64_t which, uint64_t below) {
    return random_bits(seed, which, 0) % below;
  };
  const auto subset = [&](uint64_t which, uint32_t of) {
    const auto chosen = of & uint32_t(random_bits(seed, which, 1));
    return chosen == 0 ? of : chosen;
  };
  claims.weight_dtypes = subset(1, 7) | (pick(2, 2) == 0 ? 0x38U : 0);
  claims.y_dtypes = pick(3, 3) == 0 ? 0 : subset(3, 7);
  claims.h_dtypes = pick(4, 3) == 0 ? 0 : subset(4, 7);
  claims.layouts = subset(5, 3) | (pick(6, 2) == 0 ? 4U : 0);
  claims.num_modes = int64_t(pick(7, 17));
  if (claims.num_modes == 0) claims.modes = nullptr;
  claims.max_rank = int64_t(pick(8, 2) * (8 + pick(9, 40)));
  claims.max_slots = int64_t(pick(10, 4));
  claims.max_slices = int64_t(pick(11, 4));
  claims.max_tokens = int64_t(pick(12, 9));
  claims.max_experts_per_token = int64_t(pick(13, 3));
  claims.rank_multiple = int64_t(pick(14, 9));
  claims.num_in_multiple = int64_t(pick(15, 9));
  claims.num_out_multiple = int64_t(pick(16, 9));
  claims.alignment = pick(17, 2) == 0 ? 0 : int64_t(1) << pick(18, 9);
  claims.abilities &= uint32_t(random_bits(seed, 19, 0));
  return claims;
}

TEST(Case, WhatIsDrawnIsClaimed) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const LoratoryClaims claims = some_claims(seed);
    check_claims(claims);
    for (int operation = 0; operation < LORATORY_NUM_OPERATIONS; ++operation) {
      const Case c = draw_case(seed, {.claims = claims, .operation = LoratoryOperation(operation)});
      EXPECT_NO_THROW(check_claimed(c, claims)) << label_of(c);
    }
  }
}

TEST(CaseData, NobodyReadsBeyondARank) {
  const CaseData data(case_named("linear.K3.N2.r2,0.R4.s0,b.bf16.seed5"));
  const auto& a = *data.slices[0].a;
  EXPECT_FALSE(std::isnan(a.get(0, 1, 2)));
  EXPECT_TRUE(std::isnan(a.get(0, 2, 0)));
  EXPECT_TRUE(std::isnan(a.get(1, 0, 0)));
  EXPECT_TRUE(std::isnan(data.slices[0].b->get(0, 1, 2)));
  EXPECT_TRUE(std::isnan(data.step.x->get(1, 0)));
  ASSERT_EQ(data.covered(data.step).size(), 1u);
  EXPECT_EQ(data.covered(data.step)[0].count, 2);
}

TEST(CaseData, MoreRoomForRanksChangesNoNumber) {
  const CaseData small(case_named("linear.K3.N2.r2.s0.bf16.gaps.seed5"));
  const CaseData large(case_named("linear.K3.N2.r2.R7.s0.bf16.gaps.seed5"));
  EXPECT_EQ(small.slices[0].a->get(0, 1, 2), large.slices[0].a->get(0, 1, 2));
  EXPECT_EQ(small.slices[0].b->get(0, 1, 1), large.slices[0].b->get(0, 1, 1));
  EXPECT_EQ(small.step.x->get(0, 2), large.step.x->get(0, 2));
}

TEST(CaseData, AMovedSlotTakesEverythingAlong) {
  CaseData data(case_named("linear.K3.N2.r2,1.s0,1.bf16.seed5"));
  const CaseData before = data;
  move_slots(data, std::vector<int64_t>{1, 0});
  EXPECT_EQ(data.rank(0, 1, 0), 2);
  EXPECT_EQ(data.slices[0].a->get(1, 1, 2), before.slices[0].a->get(0, 1, 2));
  EXPECT_EQ(data.slices[0].scalings[1], before.slices[0].scalings[0]);
}

// Slices of a layer may have scalings of their own; a slot of SGLang's pool has one.
TEST(CaseData, ASlotOfAStackedPoolHasOneScaling) {
  int num_different = 0;
  for (int seed = 0; seed < 8; ++seed) {
    const std::string label = "linear.K8.N8+8.r8,4.s0,1.bf16";
    const CaseData slices(case_named(label + ".seed" + std::to_string(seed)));
    const CaseData stacked(case_named(label + ".stacked.seed" + std::to_string(seed)));
    num_different += slices.slices[0].scalings != slices.slices[1].scalings ? 1 : 0;
    EXPECT_EQ(stacked.slices[0].scalings, stacked.slices[1].scalings);
  }
  EXPECT_GT(num_different, 0);
}

}  // namespace
}  // namespace loratory::check
