// The rules choose a variant for every shape, and only variants that have a kernel and that the
// tensors and the GPU allow.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fuzz/support/seeded_case.hpp"
#include "gpu/plan/variant_table.hpp"

namespace loratory::gpu {
namespace {

// Sizes on both sides of what the rules look at, and any other.
int64_t any_size(sim::Draw& draw, int64_t most) {
  const int64_t limit = draw.one_of<int64_t>({1, 8, 16, 32, 64, 256, 512, 1024, 4096, most});
  return draw.between(1, std::min(most, limit + draw(2)));
}

LaunchShape any_shape(sim::Draw& draw) {
  LaunchShape s{.op = LoraOp(draw(3)),
                .num_tokens = any_size(draw, 20'000),
                .num_in = any_size(draw, 30'000),
                .max_rank = any_size(draw, 512),
                .num_slices = draw.between(1, 8),
                .num_slots = any_size(draw, 3000),
                .has_workspace = !draw.one_in(4),
                .aligned = !draw.one_in(8),
                .has_clusters = !draw.one_in(8)};
  s.num_rank_blocks = (s.num_slices * ((s.max_rank + 15) / 16) + 3) / 4;
  s.has_wgmma = s.has_clusters && !draw.one_in(4);
  return s;
}

bool is_allowed(const LoraVariant& v, const LaunchShape& s) {
  return has_kernel(s.op, v) && can_launch(v, s.has_clusters, s.has_wgmma) &&
         (s.aligned || !v.aligned) && (v.launches == 1 || s.has_workspace);
}

// P12
RC_GTEST_PROP(ChooseVariant, OnlyWhatCanBeLaunched, ()) {
  const sim::SeededCase c = sim::any_seeded_case(60);
  sim::Draw draw(c.seed);
  for (int i = 0; i < 50; ++i) {
    const LaunchShape shape = any_shape(draw);
    const LoraVariant chosen = choose_variant(shape);
    RC_ASSERT(is_allowed(chosen, shape));
    if (shape.op == LoraOp::expand || chosen.launches == 2) {
      const LoraVariant expand = choose_expand_variant(shape, chosen.token_tiles);
      RC_ASSERT(has_kernel(LoraOp::expand, expand));
      RC_ASSERT(chosen.token_tiles % expand.token_tiles == 0);
    }
    RC_CLASSIFY(chosen.is_wide() && chosen.cluster == 1 && shape.op != LoraOp::expand,
                "a wide shrink by single CTAs");
  }
}

}  // namespace
}  // namespace loratory::gpu
