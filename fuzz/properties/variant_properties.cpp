// The rules that choose a variant: a total function of the shape, and never a launch that could not
// be.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fuzz/support/seeded_case.hpp"
#include "gpu/kernels/lora_variant.hpp"

namespace loratory::gpu {
namespace {

/// Sizes on both sides of what the rules look at, and any other.
int64_t any_size(sim::Draw& draw, int64_t most) {
  const int64_t limit = draw.one_of<int64_t>({1, 8, 16, 32, 64, 256, 512, 1024, 4096, most});
  return draw.between(1, std::min(most, limit + draw(2)));
}

LaunchShape any_shape(sim::Draw& draw) {
  LaunchShape s{.stage = LoraStage(draw(3)),
                .num_tokens = any_size(draw, 20'000),
                .num_in = any_size(draw, 30'000),
                .max_rank = any_size(draw, 512),
                .num_slices = draw.between(1, 8),
                .num_slots = any_size(draw, 3000),
                .has_workspace = !draw.one_in(4),
                .aligned = !draw.one_in(8),
                .has_clusters = !draw.one_in(8)};
  s.num_blocks = (s.num_slices * ((s.max_rank + 15) / 16) + 3) / 4;
  s.has_wgmma = s.has_clusters && !draw.one_in(4);
  return s;
}

bool can_be_launched(const LoraVariant& v, const LaunchShape& s) {
  const bool is_linear = s.stage == LoraStage::linear;
  return (s.aligned || !v.aligned) && (s.has_clusters || v.cluster == 1) &&
         (s.has_wgmma || !v.needs_wgmma()) && (v.launches == 1 || (is_linear && s.has_workspace)) &&
         (v.launches == 2 || !is_linear || v.token_tiles == 1);
}

// P12
RC_GTEST_PROP(ChooseVariant, NeverALaunchThatCouldNotBe, ()) {
  const sim::SeededCase c = sim::any_seeded_case(60);
  sim::Draw draw(c.seed);
  for (int i = 0; i < 50; ++i) {
    const LaunchShape shape = any_shape(draw);
    const LoraVariant chosen = choose_variant(shape);
    RC_ASSERT(can_be_launched(chosen, shape));
    RC_CLASSIFY(chosen.is_wide() && chosen.cluster == 1 && shape.stage != LoraStage::expand,
                "a wide shrink by single CTAs");
  }
}

}  // namespace
}  // namespace loratory::gpu
