// Slots of fp8 as the engine's layers read them, on the emulated GPU: the images of adapters one
// behind the other and tables by slot, against the float64 oracle on the numbers of the reference.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "fuzz/support/random_model.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/engine/slot_layout.hpp"
#include "gpu/layout/segments.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/model/slot_weights.hpp"
#include "tests/gpu/support/layer_statistics.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LinearRef;
using reference::ModelConfig;
using reference::PackedLinear;
using reference::RandomAdapter;
using reference::Tensor;

constexpr int32_t kNumSlots = 3;  // the one in the middle stays empty
constexpr int64_t kMaxRank = 5;
constexpr int64_t kNumTokens = 11;
constexpr double kTensorCoreUnit = 0x1p-22;

DeviceView view_of(Tensor& t) {
  return device_view(t.dtype(), t.bytes().data(), {t.shape()[0], t.shape()[1]});
}

// What DeviceSlots has on a GPU.
class Slots {
 public:
  explicit Slots(const ModelConfig& config)
      : layout_(base_model_shapes(config), {}, kMaxRank, Dtype::f8_e4m3fn),
        memory_(size_t(layout_.bytes()) * kNumSlots + 256, std::byte{0xFF}),
        ranks_(layout_.modules().size() * kNumSlots),
        scalings_(ranks_.size()),
        a_factors_(ranks_.size()),
        b_factors_(ranks_.size()) {}

  void fill(int32_t slot, const reference::Adapter& adapter) {
    std::byte* const at = image(slot);
    write_slot_image(layout_, adapter, {at, size_t(layout_.bytes())});
    const size_t num_modules = layout_.modules().size();
    for (size_t m = 0; m < num_modules; ++m) {
      const size_t to = m * kNumSlots + size_t(slot);
      std::memcpy(&ranks_[to], at + layout_.ranks_offset() + 4 * m, 4);
      std::memcpy(&scalings_[to], at + layout_.scalings_offset() + 4 * m, 4);
      std::memcpy(&a_factors_[to], at + layout_.factors_offset() + 4 * m, 4);
      std::memcpy(&b_factors_[to], at + layout_.factors_offset() + 4 * (num_modules + m), 4);
    }
  }

  LoraLayerDesc describe(const LinearRef& linear) {
    LoraLayerDesc out;
    for (const reference::Projection p : projections(linear.kind)) {
      const auto index = size_t(layout_.find({linear.layer, -1, p}));
      const SlotModule& m = layout_.modules()[index];
      const size_t at = index * kNumSlots;
      out.slices.push_back({.a = matrix(m.a_offset, layout_.max_rank(), m.num_in),
                            .b = matrix(m.b_offset, m.num_out, layout_.max_rank()),
                            .ranks = &ranks_[at],
                            .scalings = &scalings_[at],
                            .a_scale = device_view(Dtype::f32, &a_factors_[at], {kNumSlots}),
                            .b_scale = device_view(Dtype::f32, &b_factors_[at], {kNumSlots})});
    }
    return out;
  }

 private:
  std::byte* image(int32_t slot) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (256 - at % 256) % 256 + slot * layout_.bytes();
  }
  DeviceView matrix(int64_t offset, int64_t rows, int64_t columns) {
    DeviceView out =
        device_view(layout_.dtype(), image(0) + offset, {int64_t{kNumSlots}, rows, columns});
    out.strides[0] = layout_.bytes();
    return out;
  }

  SlotLayout layout_;
  std::vector<std::byte> memory_;
  std::vector<int32_t> ranks_;
  std::vector<float> scalings_, a_factors_, b_factors_;
};

// y after the layer's linear.
Tensor launched(LoraLayerDesc desc, Tensor& x, const Tensor& base,
                const std::vector<int32_t>& slots) {
  std::vector<std::byte> workspace(workspace_bytes(kNumTokens, 3, 16) + 16);
  desc.workspace = workspace.data();
  desc.workspace_bytes = workspace.size();
  Tensor y = base;
  const LoraLayer layer(desc);
  const LoraTensors tensors{.x = view_of(x), .h = {}, .y = view_of(y)};
  EXPECT_EQ(layer.path_for(tensors), LoraPath::tensor_core);
  SegmentList list;
  const reference::BatchLayout layout = reference::make_batch_layout(slots, kNumSlots);
  build(layout, layer.variant_for(tensors).segment_size(), list);
  const auto count = int32_t(list.segments.size());
  layer.launch(tensors,
               {.num_segments = &count,
                .segments = list.segments.data(),
                .token_indices = layout.token_indices_sorted.data(),
                .segment_size = list.segment_size},
               nullptr);
  return y;
}

Tensor random_numbers(int64_t columns, uint64_t seed) {
  Tensor out(Dtype::bf16, {kNumTokens, columns});
  for (int64_t i = 0; i < kNumTokens * columns; ++i) {
    const uint64_t bits = (seed + uint64_t(i)) * 0x9E3779B97F4A7C15ULL;
    out.set(double(bits >> 40) * 0x1p-23 - 1, i / columns, i % columns);
  }
  return out;
}

// The oracle's x has the dtype of its weights, which are the f32 numbers of 8-bit ones.
Tensor as_f32(const reference::ConstTensorView& x) {
  Tensor out(Dtype::f32, x.shape);
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < x.size(1); ++j) out.set(x.get(i, j), i, j);
  }
  return out;
}

// Every covered element within its bound, every other one as it was.
void expect_right(const reference::LinearArgs& args, const Tensor& base, const Tensor& y) {
  const Tensor x = as_f32(args.x);
  reference::LinearArgs exact = args;
  exact.x = x.view();
  const reference::Oracle oracle = linear_oracle(exact);
  reference::Arithmetic arithmetic = kernel_arithmetic(args, kTensorCoreUnit);
  arithmetic.weight = Dtype::bf16;  // of the parts of h
  int64_t num_covered = 0;
  for (int64_t t = 0; t < kNumTokens; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      const auto& facts = oracle.at(t, n);
      num_covered += facts.has_value();
      if (!facts) {
        ASSERT_EQ(y.get(t, n), base.get(t, n));
      } else {
        ASSERT_LE(error_over_bound(y.get(t, n), *facts, arithmetic), 1) << t << ", " << n;
      }
    }
  }
  EXPECT_GT(num_covered, 0);
}

// [1.50a] [5.9]: q|k|v, o, gate|up and down of the last layer.
TEST(SlotsOfFp8Emulated, LayersLieWithinTheBound) {
  ModelConfig config = dense(reference::random_model_config(1));
  config.hidden = 64, config.intermediate = 96, config.head_dim = 16, config.vocab = 104;
  config.num_heads = 4, config.num_kv_heads = 2;
  const auto shapes = base_model_shapes(config);
  Slots slots(config);
  reference::SlotWeights numbers(shapes, kNumSlots, 16, Dtype::f8_e4m3fn);
  for (const int32_t slot : {0, 2}) {
    const RandomAdapter adapter = random_adapter(config, uint64_t(slot + 1), {.rank = 5 - slot});
    slots.fill(slot, adapter.adapter);
    numbers.fill(slot, adapter.adapter, {uint64_t(slot + 1), 1});
  }
  const std::vector<int32_t> of_tokens{0, 2, 2, -1, 0, 1, 2, 0, 0, -1, 2};
  for (const PackedLinear kind :
       {PackedLinear::qkv, PackedLinear::o, PackedLinear::gate_up, PackedLinear::down}) {
    SCOPED_TRACE(int(kind));
    const LinearRef linear{config.num_layers - 1, -1, kind};
    LoraLayerDesc desc = slots.describe(linear);
    int64_t num_columns = 0;
    for (const LoraSliceDesc& slice : desc.slices) num_columns += slice.b.shape[1];
    Tensor x = random_numbers(desc.slices[0].a.shape[2], 7), base = random_numbers(num_columns, 9);
    const Tensor y = launched(desc, x, base, of_tokens);
    Tensor oracle_y = base;
    expect_right({.x = std::as_const(x).view(),
                  .slots = of_tokens,
                  .slices = numbers.slices(linear),
                  .y = oracle_y.view()},
                 base, y);
  }
}

}  // namespace
}  // namespace loratory::gpu
