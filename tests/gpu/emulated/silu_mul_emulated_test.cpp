// LoRA on gate and up that ends with SwiGLU, thread by thread on the CPU: every gated expand gives
// all rows of random layers the bits of the linear and silu_mul() one after the other, and writes
// nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpu/api/lora_layer.hpp"
#include "gpu/model/swish.cuh"
#include "gpu/plan/variant_table.hpp"
#include "reference/base/input_error.hpp"
#include "tests/gpu/emulated/emulated_gpu.hpp"
#include "tests/gpu/emulated/emulated_layer.hpp"
#include "tests/gpu/support/gate_and_up.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LayerData;
using reference::Tensor;

// Of a few column tiles and segments.
constexpr GateAndUpLimits kLimits{.num_tokens = 140, .num_in = 64, .size = 1368};

class EmulatedGateAndUp {
 public:
  explicit EmulatedGateAndUp(const LayerData& data)
      : data_(data), size_(data.shape.num_out[0]), y_(memory_.put(data.batch.y)) {
    x_ = memory_.put(data.batch.x);
    y_.shape[1] = 2 * size_;
    Tensor activation(Dtype::bf16, {data.shape.num_tokens, size_});
    std::ranges::fill(activation.bytes(), std::byte{0xFF});
    activation_ = memory_.put(activation);
    layer_.emplace(emulated::put_linear(memory_, data));
  }
  ~EmulatedGateAndUp() { emulated::set_prior_grid({}); }  // of a launch that was refused
  EmulatedGateAndUp(const EmulatedGateAndUp&) = delete;
  EmulatedGateAndUp& operator=(const EmulatedGateAndUp&) = delete;

  /// The linear, then SwiGLU of its y.
  Tensor one_after_the_other() {
    reset();
    LoraVariant v = kShrinkVariants[0];
    v.launches = 2;
    emulated::Segments segments(data_.batch.slots, data_.shape.max_loras, v.segment_size());
    layer_->launch_variant(v, tensors(), segments.view(), nullptr);
    Tensor y = data_.batch.y, out(Dtype::bf16, {data_.shape.num_tokens, size_});
    emulated::Memory::get(y_, y);
    for (int64_t t = 0; t < data_.shape.num_tokens; ++t) {
      for (int64_t j = 0; j < size_; ++j) {
        out.set(silu_mul(float(y.get(t, j)), float(y.get(t, size_ + j))), t, j);
      }
    }
    return out;
  }
  /// Beside a product that still has to write y.
  Tensor at_once(const SiluMulVariants& variants, bool knows_segments) {
    reset();
    std::fill_n(static_cast<std::byte*>(y_.data), data_.batch.y.bytes().size(), std::byte{0xFF});
    emulated::set_prior_grid([this] { write_y(); });
    emulated::Segments segments(data_.batch.slots, data_.shape.max_loras,
                                variants.shrink.segment_size());
    SegmentView view = segments.view();
    if (knows_segments) view.max_segments = segments.count;
    layer_->launch_silu_mul(variants, tensors(), activation_, view, nullptr,
                            LaunchOrder::x_is_ready);
    Tensor y = data_.batch.y, out(Dtype::bf16, {data_.shape.num_tokens, size_});
    emulated::Memory::get(y_, y);
    EXPECT_TRUE(y.bytes() == data_.batch.y.bytes()) << "y was written";
    EXPECT_TRUE(memory_.is_intact()) << "written around a tensor";
    emulated::Memory::get(activation_, out);
    return out;
  }
  bool can() const { return layer_->silu_mul_variants_for(tensors(), activation_).has_value(); }

 private:
  const LayerData& data_;
  int64_t size_;
  emulated::Memory memory_;
  DeviceView x_, y_, activation_;
  std::optional<LoraLayer> layer_;

  LoraTensors tensors() const { return {.x = x_, .h = {}, .y = y_}; }
  void write_y() const {
    std::ranges::copy(data_.batch.y.bytes(), static_cast<std::byte*>(y_.data));
  }
  void reset() {
    write_y();
    const size_t size = size_t(data_.shape.num_tokens * size_) * 2;
    std::fill_n(static_cast<std::byte*>(activation_.data), size, std::byte{0xFF});
  }
};

// By every fifth pair of kernels.
void check_case(uint64_t seed, std::set<std::string>& seen) {
  const LayerData data = gate_and_up(seed, Dtype::bf16, kLimits);
  SCOPED_TRACE("REPRO: LORATORY_SEED=" + std::to_string(seed) + " " + describe(data.shape));
  EmulatedGateAndUp mlp(data);
  ASSERT_TRUE(mlp.can());
  const Tensor expected = mlp.one_after_the_other();
  uint64_t index = seed;
  for (const SiluMulVariants& variants :
       silu_mul_variants(/*has_clusters=*/true, /*has_wgmma=*/true)) {
    if (index++ % 5 != 0) continue;
    SCOPED_TRACE(describe(variants));
    try {
      const Tensor got = mlp.at_once(variants, index % 2 == 0);
      seen.insert(describe(variants.expand));
      for (int64_t t = 0; t < data.shape.num_tokens; ++t) {
        ASSERT_TRUE(same_row(got, t, expected, t))
            << "row " << t << " of slot " << data.batch.slots[size_t(t)];
      }
    } catch (const InputError&) {  // of a variant that has no room for this layer
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SiluMulEmulated, EveryGatedExpandHasTheBitsOfBothKernels) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one != nullptr ? std::stoull(one) : 1;
  std::set<std::string> seen;
  for (uint64_t seed = first; seed < first + (one != nullptr ? 1 : 16); ++seed) {
    check_case(seed, seen);
    if (HasFailure()) return;
  }
  if (one != nullptr) return;
  EXPECT_EQ(seen.size(), variants_of(LoraOp::gated_expand).size());
}

}  // namespace
}  // namespace loratory::gpu
