// A gated expand that shrinks for the next layer too: the activation and y of that layer have the
// bits of all launches one after the other. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/plan/variant_table.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "layer_on_gpu.hpp"
#include "suite.hpp"
#include "tests/gpu/support/gate_and_up.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

class SiluMulLoraWithNextShrink : public OnGpu {};

/// Both layers and a step of them.
class Mlp {
 public:
  explicit Mlp(const DenseMlp& data)
      : data_(data),
        gate_up_(data.gate_up),
        down_(data.down),
        x_(data.gate_up.batch.x),
        gate_up_y_(data.gate_up.batch.y),
        y_(data.down.batch.y),
        activation_(nothing()),
        slots_(upload(data.gate_up.batch.slots)) {}

  struct Results {
    Tensor activation, y;
  };
  Results one_after_the_other() {
    const auto variants = gate_up_.layer().silu_mul_variants_for(of_gate_up(), activation_.view());
    const int32_t size = variants->shrink.segment_size();
    const DeviceSegmentBuilder segments = segments_of(size);
    gate_up_.layer().launch_silu_mul(*variants, of_gate_up(), activation_.view(),
                                     segments.view(size), nullptr);
    const int32_t size_of_down = down_.layer().variant_for(of_down()).segment_size();
    const DeviceSegmentBuilder segments_of_down = segments_of(size_of_down);
    down_.layer().launch(of_down(), segments_of_down.view(size_of_down), nullptr);
    return results();
  }
  Results at_once(const LoraVariant& shrink) {
    gate_up_y_.write(data_.gate_up.batch.y);
    y_.write(data_.down.batch.y);
    activation_.write(nothing());
    const DeviceSegmentBuilder segments = segments_of(64);
    const SiluMulVariants variants{shrink, kGatedShrinkVariants[0], /*shrinks_next=*/true};
    const LaunchOrder overlaps = LaunchOrder::overlaps_previous;
    gate_up_.layer().launch_silu_mul(variants, of_gate_up(), activation_.view(), segments.view(64),
                                     nullptr, overlaps, &down_.layer());
    down_.layer().launch_behind_splits(of_down(), of_gate_up().y, segments.view(64), nullptr,
                                       overlaps);
    return results();
  }

 private:
  const DenseMlp& data_;
  LayerOnGpu gate_up_, down_;
  GuardedTensor x_, gate_up_y_, y_, activation_;
  DeviceBuffer slots_;

  Tensor nothing() const {
    Tensor out(data_.down.shape.out, {data_.down.shape.num_tokens, data_.down.shape.num_in});
    std::ranges::fill(out.bytes(), std::byte{0xFF});
    return out;
  }
  LoraTensors of_gate_up() const {
    DeviceView y = gate_up_y_.view();
    y.shape[1] = gate_up_.layer().num_columns();
    return {.x = x_.view(), .h = {}, .y = y};
  }
  LoraTensors of_down() const {
    DeviceView y = y_.view();
    y.shape[1] = down_.layer().num_columns();
    return {.x = activation_.view(), .h = {}, .y = y};
  }
  DeviceSegmentBuilder segments_of(int32_t size) const {
    DeviceSegmentBuilder out(data_.down.shape.num_tokens, data_.down.shape.max_loras, {{size}});
    out.build(reinterpret_cast<const int32_t*>(slots_.get()), data_.down.shape.num_tokens, nullptr);
    return out;
  }
  Results results() const {
    EXPECT_TRUE(gate_up_y_.guards_are_intact() && y_.guards_are_intact() &&
                activation_.guards_are_intact());
    return {activation_.read(), y_.read()};
  }
};

DenseMlp data_of(const Trial& trial) {
  const GateAndUpLimits limits{.num_tokens = Trial::size(1025, 90),
                               .num_in = Trial::size(520, 64),
                               .size = Trial::size(8192, 2048)};
  const Dtype dtype = trial.pick(0, 2) == 0 ? Dtype::bf16 : Dtype::f16;
  DenseMlp out = dense_mlp(trial.seed(), dtype, limits);
  const auto num_base = std::ranges::count(out.down.batch.slots, -1);
  trial.classify(num_base == out.down.shape.num_tokens, "base tokens only");
  trial.classify(num_base == 0, "no base tokens");
  trial.classify(out.down.shape.num_tokens > 256, "more than 256 tokens");
  trial.classify(dtype == Dtype::f16, "f16");
  return out;
}

TEST_F(SiluMulLoraWithNextShrink, HasTheBitsOfAllKernels) {
  if (!has_wgmma()) GTEST_SKIP() << "needs wgmma";
  for_all_seeds(30, [](Trial& trial) {
    const DenseMlp data = data_of(trial);
    Mlp mlp(data);
    const Mlp::Results expected = mlp.one_after_the_other();
    for (const LoraVariant& shrink : variants_here(LoraOp::shrink)) {
      if (shrink.segment_size() != 64) continue;
      const Mlp::Results got = mlp.at_once(shrink);
      ASSERT_TRUE(have_same_bits(got.activation, expected.activation)) << describe(shrink);
      ASSERT_TRUE(have_same_bits(got.y, expected.y)) << describe(shrink);
      trial.count(data.down.shape.num_tokens *
                  (data.down.shape.num_in + data.down.shape.num_columns()));
    }
  });
}

}  // namespace
}  // namespace loratory::gpu
