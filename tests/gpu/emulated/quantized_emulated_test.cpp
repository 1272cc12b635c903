// The kernels of 8-bit weights, thread by thread on the CPU: every variant of random layers through
// LoraLayer, against the bound and against the bits of the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fuzz/support/layer_case.hpp"
#include "gpu/model/swish.cuh"
#include "gpu/plan/quantized_variants.hpp"
#include "tests/gpu/emulated/emulated_gpu.hpp"
#include "tests/gpu/emulated/emulated_memory.hpp"
#include "tests/gpu/support/quantized_layer.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

// The weights of a case on the emulated GPU.
class Emulated {
 public:
  explicit Emulated(QuantizedLayerData& data) : data_(data) {}

  /// What is in h or y after a launch. Every order in turns.
  Tensor launch(LoraOp op, const LoraVariant& v) {
    emulated::Memory memory;
    Tensor out = op == LoraOp::shrink ? empty_h(data_) : data_.y;
    const LoraTensors on = tensors(op, memory);
    emulated::Segments segments(data_.slots, data_.shape.max_loras, v.segment_size());
    const auto order = LaunchOrder(++num_launches_ % 3);
    if (overlaps(order)) write_late(op, on, order);
    layer(op, memory).launch_variant(v, on, segments.view(), nullptr, order);
    emulated::set_prior_grid({});  // of a launch of no tokens
    EXPECT_TRUE(memory.is_intact()) << describe(data_.shape) << describe(v);
    emulated::Memory::get(op == LoraOp::shrink ? on.h : on.y, out);
    return out;
  }
  /// What the linear leaves, and SwiGLU of it; then the same at once, beside a product that still
  /// has to write y.
  Tensor one_after_the_other() {
    LoraVariant v = kQuantizedShrinkVariants[0];
    v.launches = 2;
    const Tensor y = launch(LoraOp::linear, v);
    const int64_t size = data_.shape.widths[0];
    Tensor out(data_.shape.y, {data_.shape.num_tokens, size});
    for (int64_t t = 0; t < data_.shape.num_tokens; ++t) {
      for (int64_t j = 0; j < size; ++j) {
        out.set(silu_mul(float(y.get(t, j)), float(y.get(t, size + j))), t, j);
      }
    }
    return out;
  }
  Tensor at_once(const SiluMulVariants& variants) {
    emulated::Memory memory;
    Tensor out(data_.shape.y, {data_.shape.num_tokens, data_.shape.widths[0]});
    std::ranges::fill(out.bytes(), std::byte{0xFF});
    const LoraTensors on = tensors(LoraOp::linear, memory);
    const DeviceView activation = memory.put(out);
    std::fill_n(static_cast<std::byte*>(on.y.data), data_.y.bytes().size(), std::byte{0xFF});
    emulated::set_prior_grid(
        [&] { std::ranges::copy(data_.y.bytes(), static_cast<std::byte*>(on.y.data)); });
    emulated::Segments segments(data_.slots, data_.shape.max_loras, variants.shrink.segment_size());
    layer(LoraOp::linear, memory)
        .launch_silu_mul(variants, on, activation, segments.view(), nullptr,
                         LaunchOrder::x_is_ready);
    Tensor y = data_.y;
    emulated::Memory::get(on.y, y);
    EXPECT_TRUE(y.bytes() == data_.y.bytes()) << "y was written";
    EXPECT_TRUE(memory.is_intact()) << "written around a tensor";
    emulated::Memory::get(activation, out);
    return out;
  }
  bool is_generic(LoraOp op) {
    emulated::Memory memory;
    return layer(op, memory).path_for(tensors(op, memory)) == LoraPath::generic;
  }

 private:
  QuantizedLayerData& data_;
  size_t num_launches_ = data_.slots.size();  // two of three may widen weights ahead

  /// What the launch reads is NaN until the kernel before it ends; x of a linear may be ready.
  void write_late(LoraOp op, const LoraTensors& on, LaunchOrder order) {
    std::vector<std::pair<std::byte*, std::span<const std::byte>>> late;
    const auto add = [&](const DeviceView& view, const Tensor& t) {
      late.emplace_back(static_cast<std::byte*>(view.data), t.bytes());
    };
    add(on.y, data_.y);
    if (op == LoraOp::expand) add(on.h, data_.h);
    if (op == LoraOp::expand && data_.h_scale) add(on.h_scale, *data_.h_scale);
    if (op != LoraOp::linear || order != LaunchOrder::x_is_ready) {
      add(on.x, data_.x);
      if (data_.x_scale) add(on.x_scale, *data_.x_scale);
    }
    for (const auto& [to, from] : late) std::fill_n(to, from.size(), std::byte{0xFF});
    emulated::set_prior_grid([late] {
      for (const auto& [to, from] : late) std::ranges::copy(from, to);
    });
  }
  LoraTensors tensors(LoraOp op, emulated::Memory& memory) const {
    LoraTensors out{.x = memory.put(data_.x),
                    .h = memory.put(op == LoraOp::shrink ? empty_h(data_) : data_.h),
                    .y = memory.put(data_.y)};
    if (data_.x_scale) out.x_scale = memory.put(*data_.x_scale);
    if (data_.h_scale) out.h_scale = memory.put(*data_.h_scale);
    return out;
  }
  LoraLayer layer(LoraOp op, emulated::Memory& memory) const {
    LoraLayerDesc desc =
        desc_of(data_, op,
                {.view = [&](const Tensor& t) { return memory.put(t); },
                 .ranks = [](const std::vector<int32_t>& v) { return v.data(); },
                 .scalings = [](const std::vector<float>& v) { return v.data(); }});
    desc.workspace_bytes = quantized_workspace_bytes(data_.shape.num_tokens, data_.num_slices(),
                                                     data_.shape.max_rank, data_.b_block.k);
    desc.workspace = memory.room(desc.workspace_bytes);
    desc.split_sums_bytes =
        split_sums_bytes(data_.shape.num_tokens, data_.num_slices(), data_.shape.max_rank);
    desc.split_sums = memory.zeros(desc.split_sums_bytes);
    return LoraLayer(desc);
  }
};

void expect_ok(const Verdict& verdict, const QuantizedLayerCase& c, const LoraVariant& v) {
  ASSERT_EQ(verdict.wrong, "") << describe(c) << "\n" << describe(v);
}

// The variants of a stage give the same bits, and they are right.
void check_stage(const QuantizedLayerCase& c, QuantizedLayerData& data, LoraOp op) {
  Emulated gpu(data);
  const bool is_generic = gpu.is_generic(op);
  const bool is_exact = is_generic || c.fill == reference::Fill::small_integers;
  std::optional<Tensor> first;
  for (const LoraVariant& v : all_quantized_variants(c, op, is_generic)) {
    const Tensor out = gpu.launch(op, v);
    if (first) {
      ASSERT_TRUE(reference::same_bits(out, *first)) << describe(c) << "\n" << describe(v);
    } else if (op == LoraOp::shrink) {
      expect_ok(judge_shrink(data, out, is_exact), c, v);
    } else if (op == LoraOp::expand) {
      expect_ok(judge_expand(data, out, is_exact), c, v);
    } else {
      const bool all_generic = gpu.is_generic(LoraOp::shrink) && gpu.is_generic(LoraOp::expand);
      const bool is_small = c.fill == reference::Fill::small_integers;
      expect_ok(judge_linear(data, out, is_small || all_generic), c, v);
    }
    if (testing::Test::HasFailure() || is_generic) return;
    first = out;
  }
}
void check_case(const QuantizedLayerCase& c) {
  QuantizedLayerData data(c);
  for (const LoraOp op : {LoraOp::shrink, LoraOp::expand, LoraOp::linear}) {
    check_stage(c, data, op);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(QuantizedEmulated, AlignedLayersLieWithinTheirBounds) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one != nullptr ? std::stoull(one) : 1;
  for (uint64_t seed = first; seed < first + (one != nullptr ? 1 : 8); ++seed) {
    SCOPED_TRACE("REPRO: LORATORY_SEED=" + std::to_string(seed));
    check_case(random_quantized_layer(seed, true, 1 << 16));
    if (testing::Test::HasFailure()) return;
  }
}

// The first random layer that tensor cores take and `is_wanted` does. Of three tokens, one has an
// adapter.
template <typename IsWanted>
void check_first(const IsWanted& is_wanted) {
  for (uint64_t seed = 1;; ++seed) {
    const QuantizedLayerCase c = random_quantized_layer(seed, true, 1 << 16);
    if (c.factors == Factors::block || c.num_tokens < 3 || !is_wanted(c)) continue;
    return check_case(c);
  }
}

// Few random layers have i8.
void check_i8(bool beside_i8) {
  check_first([beside_i8](const QuantizedLayerCase& c) {
    return c.integers && is_quantized(c.x) == beside_i8;
  });
}
TEST(QuantizedEmulated, I8BesideWideActivationsLiesWithinItsBound) { check_i8(false); }
TEST(QuantizedEmulated, I8BesideI8LiesWithinItsBound) { check_i8(true); }

// Narrow kernels have code of their own for e4m3fn. Few random layers have e5m2 in both A and B,
// and so many columns that more warps than the four that widen ahead have some.
TEST(QuantizedEmulated, E5m2LiesWithinItsBound) {
  check_first([](const QuantizedLayerCase& c) {
    if (is_quantized(c.x) || c.widths[0] < 320) return false;
    const QuantizedLayerData data(c);
    return data.a[0].dtype() == Dtype::f8_e5m2 && data.b[0].dtype() == Dtype::f8_e5m2;
  });
}

// Gate and up: every gated expand behind a shrink of its segments, and one behind a longer one.
TEST(QuantizedEmulated, EveryGatedExpandHasTheBitsOfBothKernels) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one != nullptr ? std::stoull(one) : 1;
  for (uint64_t seed = first; seed < first + (one != nullptr ? 1 : 20); ++seed) {
    SCOPED_TRACE("REPRO: LORATORY_SEED=" + std::to_string(seed));
    const QuantizedLayerCase c = random_quantized_gate_and_up(seed, 1 << 15);
    QuantizedLayerData data(c);
    Emulated gpu(data);
    const Tensor expected = gpu.one_after_the_other();
    for (const SiluMulVariants& variants : quantized_silu_mul_variants()) {
      const Tensor got = gpu.at_once(variants);
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        ASSERT_TRUE(reference::same_row(got, t, expected, t))
            << "row " << t << " of slot " << data.slots[size_t(t)] << ", " << describe(c) << "\n"
            << describe(variants.expand);
      }
    }
  }
}

// Most random layers have few tokens. Here several warps and fragments share a segment.
TEST(QuantizedEmulated, ManyTokensOfOneAdapterLieWithinTheirBounds) {
  for (const Dtype x : {Dtype::bf16, Dtype::f8_e4m3fn}) {
    check_case({.seed = 3,
                .num_tokens = 75,
                .num_in = 320,
                .max_rank = 80,
                .max_loras = 1,
                .widths = {72, 40},
                .x = x,
                .factors = Factors::channel});
  }
}

TEST(QuantizedEmulated, AnyLayerHasTheBitsOfTheReference) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    check_case(random_quantized_layer(seed, false, 1 << 15));
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace loratory::gpu
