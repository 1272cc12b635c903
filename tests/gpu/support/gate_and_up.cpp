#include "tests/gpu/support/gate_and_up.hpp"

#include <algorithm>
#include <set>

#include "gpu/plan/variant_table.hpp"

namespace loratory::gpu {

using reference::IntermediateMode;
using reference::LayerCase;
using reference::LayerData;
using reference::SumMode;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t n) { return int64_t(reference::random_bits(seed_, 7, i_++) % uint64_t(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  int64_t one_of(std::initializer_list<int64_t> all) {
    return std::data(all)[below(int64_t(all.size()))];
  }
  /// One of those that are not above `most`.
  int64_t up_to(int64_t most, std::initializer_list<int64_t> ascending) {
    return std::data(
        ascending)[below(std::ranges::upper_bound(ascending, most) - ascending.begin())];
  }

 private:
  uint64_t seed_, i_ = 0;
};

LayerCase draw_case(Draw& draw, const GateAndUpLimits& limits) {
  LayerCase c;
  c.num_in = draw.up_to(limits.num_in, {8, 64, 200, 520});
  c.max_rank = int32_t(draw.one_of({8, 16, 24, 32, 40, 64, 72, 136, 200, 256}));
  c.num_out.assign(2, draw.up_to(limits.size, {8, 40, 72, 136, 280, 520, 1368}));
  c.num_tokens = draw.up_to(limits.num_tokens, {1, 2, 5, 9, 17, 33, 65, 90, 140, 257, 600, 1025});
  c.max_loras = int32_t(draw.one_of({1, 2, 3, 12, 40}));
  c.mode.sum = draw.one_in(3) ? SumMode::two_round : SumMode::one_round;
  c.mode.h = draw.one_in(3) ? IntermediateMode::cast_to_weight : IntermediateMode::fp32;
  c.padded = draw.one_in(2);
  c.fill_all_slots = true;
  return c;
}

void leave_out_modules(Draw& draw, LayerData& data) {
  for (int32_t slot = 0; slot < data.shape.max_loras; ++slot) {
    const int64_t kind = draw.below(5);  // 0: no gate; 1: no up; 2: none
    for (size_t i = 0; i < 2; ++i) {
      if (kind == 2 || kind == int64_t(i)) data.slices[i].ranks[size_t(slot)] = 0;
    }
  }
}

std::vector<int32_t> draw_slots(Draw& draw, const LayerCase& c) {
  const bool has_adapters = !draw.one_in(8), has_base = !draw.one_in(4);
  std::vector<int32_t> out;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const bool is_base = !has_adapters || (has_base && draw.one_in(3));
    out.push_back(is_base ? -1 : int32_t(draw.below(c.max_loras)));
  }
  return out;
}

void fill_y(Draw& draw, LayerData& data) {
  for (int64_t t = 0; t < data.shape.num_tokens; ++t) {
    for (int64_t j = 0; j < data.shape.num_columns(); ++j) {
      data.batch.y.set(draw.one_in(9) ? -0.0 : double(draw.below(1024) - 512) / 100, t, j);
    }
  }
}

}  // namespace

LayerData gate_and_up(uint64_t seed, reference::Dtype dtype, const GateAndUpLimits& limits) {
  Draw draw(seed);
  LayerCase c = draw_case(draw, limits);
  c.seed = seed;
  c.weight = c.out = dtype;
  LayerData out(c);
  leave_out_modules(draw, out);
  out.batch = out.make_batch(draw_slots(draw, c), seed);
  fill_y(draw, out);
  return out;
}

DenseMlp dense_mlp(uint64_t seed, reference::Dtype dtype, const GateAndUpLimits& limits) {
  Draw draw(seed);
  LayerCase up = draw_case(draw, limits);
  up.seed = seed;
  up.weight = up.out = dtype;
  up.max_rank = int32_t(draw.one_of({8, 24, 40, 64}));
  up.num_out.assign(2, draw.up_to(limits.size, {1984, 2048, 3968, 6080, 8192}));
  LayerCase down = up;
  down.seed = seed + 1;
  down.max_rank = int32_t(draw.one_of({8, 24, 40, 64}));
  down.num_in = up.num_out[0];
  down.num_out = {draw.one_of({8, 72, 200})};
  DenseMlp out{LayerData(up), LayerData(down)};
  leave_out_modules(draw, out.gate_up);
  for (int32_t& rank : out.down.slices[0].ranks) {
    if (draw.one_in(4)) rank = 0;
  }
  const std::vector<int32_t> slots = draw_slots(draw, up);
  out.gate_up.batch = out.gate_up.make_batch(slots, seed);
  fill_y(draw, out.gate_up);
  out.down.batch = out.down.make_batch(slots, seed + 1);
  return out;
}

std::vector<SiluMulVariants> silu_mul_variants(bool has_clusters, bool has_wgmma) {
  std::vector<SiluMulVariants> out;
  std::set<int> sizes;
  for (const LoraVariant& shrink : lora_variants(LoraOp::shrink, has_clusters, has_wgmma)) {
    if (!shrink.aligned || !sizes.insert(shrink.segment_size()).second) continue;
    for (const LoraVariant& v : lora_variants(LoraOp::gated_expand, has_clusters, has_wgmma)) {
      if (shrink.segment_size() % v.segment_size() == 0) out.push_back({shrink, v});
    }
  }
  return out;
}

std::string describe(const SiluMulVariants& variants) {
  return describe(variants.shrink) + ", then " + describe(variants.expand);
}

}  // namespace loratory::gpu
