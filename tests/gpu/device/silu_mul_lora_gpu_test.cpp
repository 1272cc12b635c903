// LoRA on gate and up that ends with SwiGLU: the bits of the linear and silu_mul(), one after the
// other, in every row; y stays as it is. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "layer_on_gpu.hpp"
#include "reference/base/input_error.hpp"
#include "suite.hpp"
#include "tests/gpu/support/gate_and_up.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LayerData;
using reference::Tensor;

class SiluMulLora : public OnGpu {};

/// A layer and a step of it.
class Mlp {
 public:
  explicit Mlp(const LayerData& data)
      : data_(data),
        layer_(data),
        x_(data.batch.x),
        y_(data.batch.y),
        slots_(upload(data.batch.slots)) {}

  int64_t size() const { return data_.shape.num_out[0]; }
  LoraTensors tensors() const {
    DeviceView y = y_.view();
    y.shape[1] = 2 * size();
    return {.x = x_.view(), .h = {}, .y = y};
  }
  Tensor nothing() const {
    Tensor out(data_.shape.out, {data_.shape.num_tokens, size()});
    std::ranges::fill(out.bytes(), std::byte{0xFF});
    return out;
  }
  const LoraLayer& layer() const { return layer_.layer(); }

  Tensor one_after_the_other() {
    const LoraVariant v = layer().variant_for(tensors());
    const DeviceSegmentBuilder segments = segments_of(v.segment_size());
    const GuardedTensor activation(nothing());
    layer().launch(tensors(), segments.view(v.segment_size()), nullptr);
    silu_mul(tensors().y, activation.view(), nullptr);
    const Tensor out = activation.read();
    y_.write(data_.batch.y);
    return out;
  }
  /// Twice, so that the second launch overlaps the first.
  Tensor at_once(const SiluMulVariants& variants) {
    const int32_t size = variants.shrink.segment_size();
    const DeviceSegmentBuilder segments = segments_of(size);
    const GuardedTensor activation(nothing());
    for (const LaunchOrder order : {LaunchOrder::after_previous, LaunchOrder::overlaps_previous}) {
      layer().launch_silu_mul(variants, tensors(), activation.view(), segments.view(size), nullptr,
                              order);
    }
    Tensor out = activation.read();
    EXPECT_TRUE(y_.read().bytes() == data_.batch.y.bytes()) << "y was written";
    EXPECT_TRUE(y_.guards_are_intact() && activation.guards_are_intact());
    return out;
  }

 private:
  const LayerData& data_;
  LayerOnGpu layer_;
  GuardedTensor x_, y_;
  DeviceBuffer slots_;

  DeviceSegmentBuilder segments_of(int32_t size) const {
    DeviceSegmentBuilder out(data_.shape.num_tokens, data_.shape.max_loras, {{size}});
    out.build(reinterpret_cast<const int32_t*>(slots_.get()), data_.shape.num_tokens, nullptr);
    return out;
  }
};

LayerData data_of(const Trial& trial) {
  const GateAndUpLimits limits{.num_tokens = Trial::size(1025, 90),
                               .num_in = Trial::size(520, 64),
                               .size = Trial::size(1368, 136)};
  const Dtype dtype = trial.pick(0, 2) == 0 ? Dtype::bf16 : Dtype::f16;
  LayerData out = gate_and_up(trial.seed(), dtype, limits);
  const auto num_base = std::ranges::count(out.batch.slots, -1);
  trial.classify(num_base == out.shape.num_tokens, "base tokens only");
  trial.classify(num_base == 0, "no base tokens");
  trial.classify(out.shape.num_tokens > 256, "more than 256 tokens");
  trial.classify(out.shape.max_rank > 64, "ranks above 64");
  trial.classify(dtype == Dtype::f16, "f16");
  return out;
}

TEST_F(SiluMulLora, HasTheBitsOfBothKernels) {
  for_all_seeds(40, [](Trial& trial) {
    const LayerData data = data_of(trial);
    Mlp mlp(data);
    const Tensor expected = mlp.one_after_the_other();
    const GuardedTensor activation(mlp.nothing());
    const auto chosen = mlp.layer().silu_mul_variants_for(mlp.tensors(), activation.view());
    ASSERT_TRUE(chosen.has_value());
    const auto judge = [&](const SiluMulVariants& variants) {
      ASSERT_TRUE(have_same_bits(mlp.at_once(variants), expected)) << describe(variants);
      trial.count(data.shape.num_tokens * mlp.size());
    };
    judge(*chosen);  // what the rules choose is never refused
    for (const SiluMulVariants& variants : silu_mul_variants(has_clusters(), has_wgmma())) {
      if (HasFatalFailure()) return;
      try {
        judge(variants);
      } catch (const InputError&) {  // of a variant that has no room for this layer
      }
    }
  });
}

}  // namespace
}  // namespace loratory::gpu
