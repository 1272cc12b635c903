// LoRA with 8-bit weights on the GPU: each stage against its float64 oracle, every variant the same
// bits, the generic path and small integers against the bits of the reference. The same cases as
// tests/gpu/emulated has, and larger ones.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "captured_graph.hpp"
#include "fuzz/support/layer_case.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/plan/quantized_variants.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "reference/layout/batch_layout.hpp"
#include "suite.hpp"
#include "tests/gpu/support/quantized_layer.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Fill;
using reference::Tensor;

class QuantizedOnGpu : public OnGpu {};

// The weights of a case on the GPU; they stay there.
class Quantized {
 public:
  explicit Quantized(QuantizedLayerData& data)
      : data_(data),
        workspace_bytes_(most_workspace()),
        workspace_(make_device_buffer(workspace_bytes_)),
        split_sums_(zeroed_buffer(sums_bytes())) {
    LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, workspace_bytes_));
    for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
      layers_.push_back(std::make_unique<LoraLayer>(desc(op)));
    }
  }

  /// What is in h or y after a launch for the tokens of `slots`.
  Tensor run(LoraOp op, const LoraVariant& v, const std::vector<int32_t>& slots,
             LaunchOrder order = LaunchOrder::after_previous) {
    const bool shrinks = op == LoraOp::shrink;
    const GuardedTensor x(data_.x), h(shrinks ? empty_h(data_) : data_.h), y(data_.y);
    LoraTensors tensors{.x = x.view(), .h = h.view(), .y = y.view()};
    std::optional<GuardedTensor> x_scale, h_scale;
    if (data_.x_scale) tensors.x_scale = x_scale.emplace(*data_.x_scale).view();
    if (data_.h_scale) tensors.h_scale = h_scale.emplace(*data_.h_scale).view();
    const auto max_loras = int32_t(data_.shape.max_loras);
    DeviceSegments segments(int64_t(slots.size()), max_loras, v.segment_size());
    segments.upload(reference::make_batch_layout(slots, max_loras), nullptr);
    layer(op).launch_variant(v, tensors, segments.view(), nullptr, order);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    for (const GuardedTensor* t : {&x, &h, &y}) EXPECT_TRUE(t->guards_are_intact());
    for (const GuardedTensor& t : weights_) EXPECT_TRUE(t.guards_are_intact());
    return (shrinks ? h : y).read();
  }
  Tensor run(LoraOp op, const LoraVariant& v, LaunchOrder order = LaunchOrder::after_previous) {
    return run(op, v, data_.slots, order);
  }

  /// y after four linears that were captured, and replayed twice from the same y.
  Tensor run_chain(const LoraVariant& v, LaunchOrder order) {
    const GuardedTensor x(data_.x);
    GuardedTensor y(data_.y);
    LoraTensors tensors{.x = x.view(), .y = y.view()};
    std::optional<GuardedTensor> x_scale;
    if (data_.x_scale) tensors.x_scale = x_scale.emplace(*data_.x_scale).view();
    const auto max_loras = int32_t(data_.shape.max_loras);
    DeviceSegments segments(data_.shape.num_tokens, max_loras, v.segment_size());
    segments.upload(reference::make_batch_layout(data_.slots, max_loras), nullptr);
    const CapturedGraph graph([&](cudaStream_t stream) {
      for (int i = 0; i < 4; ++i) {
        const LaunchOrder of = i == 0 ? LaunchOrder::after_previous : order;
        layer(LoraOp::linear).launch_variant(v, tensors, segments.view(), stream, of);
      }
    });
    for (int i = 0; i < 2; ++i) {
      y.write(data_.y);
      graph.replay();
    }
    EXPECT_TRUE(y.guards_are_intact());
    return y.read();
  }

  /// SwiGLU of what the linear leaves; then both at once, twice, so that the second overlaps the
  /// first.
  Tensor one_after_the_other(const LoraVariant& v) {
    const GuardedTensor y(run(LoraOp::linear, v)), activation(no_activation());
    silu_mul(y.view(), activation.view(), nullptr);
    return activation.read();
  }
  Tensor at_once(const SiluMulVariants& variants) {
    const GuardedTensor x(data_.x), y(data_.y), activation(no_activation());
    const auto max_loras = int32_t(data_.shape.max_loras);
    DeviceSegments segments(data_.shape.num_tokens, max_loras, variants.shrink.segment_size());
    segments.upload(reference::make_batch_layout(data_.slots, max_loras), nullptr);
    for (const LaunchOrder order : {LaunchOrder::after_previous, LaunchOrder::overlaps_previous}) {
      layer(LoraOp::linear)
          .launch_silu_mul(variants, {.x = x.view(), .h = {}, .y = y.view()}, activation.view(),
                           segments.view(), nullptr, order);
    }
    Tensor out = activation.read();
    EXPECT_TRUE(y.read().bytes() == data_.y.bytes()) << "y was written";
    EXPECT_TRUE(y.guards_are_intact() && activation.guards_are_intact());
    return out;
  }

  bool is_generic(LoraOp op) {
    const GuardedTensor x(data_.x), h(op == LoraOp::shrink ? empty_h(data_) : data_.h), y(data_.y);
    return layer(op).path_for({.x = x.view(), .h = h.view(), .y = y.view()}) == LoraPath::generic;
  }

 private:
  QuantizedLayerData& data_;
  std::vector<GuardedTensor> weights_;
  std::vector<DeviceBuffer> tables_;
  size_t workspace_bytes_;
  DeviceBuffer workspace_, split_sums_;
  std::vector<std::unique_ptr<LoraLayer>> layers_;

  Tensor no_activation() const {
    Tensor out(data_.shape.y, {data_.shape.num_tokens, data_.shape.widths[0]});
    std::ranges::fill(out.bytes(), std::byte{0xFF});
    return out;
  }
  const LoraLayer& layer(LoraOp op) const { return *layers_[size_t(op)]; }
  size_t most_workspace() const {
    return 256 + quantized_workspace_bytes(data_.shape.num_tokens, data_.num_slices(),
                                           data_.shape.max_rank, data_.b_block.k);
  }
  size_t sums_bytes() const {
    return split_sums_bytes(data_.shape.num_tokens, data_.num_slices(), data_.shape.max_rank);
  }
  LoraLayerDesc desc(LoraOp op) {
    const auto table = [this](const auto& values) {
      return tables_.emplace_back(upload(values)).get();
    };
    LoraLayerDesc out = desc_of(
        data_, op,
        {.view = [&](const Tensor& t) { return weights_.emplace_back(t).view(); },
         .ranks = [&](const auto& v) { return reinterpret_cast<const int32_t*>(table(v)); },
         .scalings = [&](const auto& v) { return reinterpret_cast<const float*>(table(v)); }});
    out.workspace = workspace_.get();
    out.workspace_bytes = workspace_bytes_;
    out.split_sums = split_sums_.get();
    out.split_sums_bytes = sums_bytes();
    return out;
  }
};

std::vector<LoraVariant> variants_of_linear(Quantized& on_gpu, const QuantizedLayerCase& c) {
  return all_quantized_variants(c, LoraOp::linear, on_gpu.is_generic(LoraOp::linear));
}

QuantizedLayerCase case_of(const Trial& trial, bool aligned, int64_t num_products) {
  const QuantizedLayerCase c =
      random_quantized_layer(trial.seed(), aligned, Trial::size(num_products, 1 << 16));
  trial.classify(c.is_w8a8(), "w8a8");
  trial.classify(c.is_w8a8() && c.by_tensor, "w8a8 by tensor");
  trial.classify(c.integers, "i8");
  trial.classify(c.factors == Factors::tensor, "factors of tensors");
  trial.classify(c.factors == Factors::channel, "factors of channels");
  trial.classify(c.factors == Factors::block, "factors of blocks");
  trial.classify(c.factors == Factors::one_group, "blocks of one group");
  trial.classify(c.fill == Fill::small_integers, "small integers");
  trial.classify(c.widths.size() > 1, "packed");
  trial.classify(c.num_tokens == 0, "no tokens");
  trial.classify(c.max_rank > 64, "ranks above 64");
  return c;
}

// One operation: right, and all variants alike.
void check_op(const Trial& trial, QuantizedLayerData& data, Quantized& on_gpu, LoraOp op) {
  const bool is_generic = on_gpu.is_generic(op);
  const bool small = data.shape.fill == Fill::small_integers;
  std::optional<Tensor> first;
  for (const LoraVariant& v : all_quantized_variants(data.shape, op, is_generic)) {
    SCOPED_TRACE(describe(data.shape) + ", " + describe(v) + (is_generic ? ", generic" : ""));
    const Tensor out = on_gpu.run(op, v);
    if (first) {
      ASSERT_TRUE(have_same_bits(out, *first));
      continue;
    }
    first = out;
    Verdict verdict;
    if (op == LoraOp::shrink) verdict = judge_shrink(data, out, small || is_generic);
    if (op == LoraOp::expand) verdict = judge_expand(data, out, small || is_generic);
    const bool all_generic = on_gpu.is_generic(LoraOp::shrink) && on_gpu.is_generic(LoraOp::expand);
    if (op == LoraOp::linear) verdict = judge_linear(data, out, small || all_generic);
    trial.count(verdict.num_results, verdict.worst);
    ASSERT_EQ(verdict.wrong, "");
  }
}

void check_case(const Trial& trial, const QuantizedLayerCase& c) {
  QuantizedLayerData data(c);
  Quantized on_gpu(data);
  for (const LoraOp op : {LoraOp::shrink, LoraOp::expand, LoraOp::linear}) {
    check_op(trial, data, on_gpu, op);
    if (testing::Test::HasFailure()) return;
  }
}

// [1.42]-[1.47] P5, P19: formats and factors of every kind, each slice its own; NaN beyond ranks,
// in empty slots, in rows of base tokens and in factors of nothing.
TEST_F(QuantizedOnGpu, P19AlignedStagesLieWithinTheirBounds) {
  for_all_seeds(80, [](Trial& trial) { check_case(trial, case_of(trial, true, 1 << 22)); });
}

// [1.46]-[1.48] P19: any stride, any block, any alignment: the bits of the reference.
TEST_F(QuantizedOnGpu, P19AnyStageHasTheBitsOfTheReference) {
  for_all_seeds(60, [](Trial& trial) { check_case(trial, case_of(trial, false, 1 << 18)); });
}

// [1.19] P7, P11: a row alone has the bits of the row in its batch, by every variant.
TEST_F(QuantizedOnGpu, P7RowsDoNotDependOnTheBatch) {
  for_all_seeds(40, [](Trial& trial) {
    QuantizedLayerCase c = case_of(trial, trial.pick(0, 4) != 0, 1 << 21);
    c.by_tensor = false;  // there h has one factor for the batch
    c.fill = Fill::reals;
    c.num_tokens = std::max<int64_t>(c.num_tokens, 2);
    QuantizedLayerData data(c);
    Quantized on_gpu(data);
    const std::vector<LoraVariant> all = variants_of_linear(on_gpu, c);
    const Tensor whole = on_gpu.run(LoraOp::linear, all[0]);
    const int64_t kept = trial.pick(1, c.num_tokens);
    std::vector<int32_t> alone(data.slots.size(), -1);
    alone[size_t(kept)] = data.slots[size_t(kept)];
    for (const LoraVariant& v : all) {
      const Tensor y = on_gpu.run(LoraOp::linear, v, alone);
      ASSERT_TRUE(reference::same_row(y, kept, whole, kept)) << describe(c) << describe(v);
      trial.count(y.shape()[1]);
    }
  });
}

// [1.42]-[1.47] Gate and up that end with SwiGLU: the bits of both kernels, in rows without an
// adapter and in slots that lack a module, too.
TEST_F(QuantizedOnGpu, GateAndUpEndWithSwiGlu) {
  for_all_seeds(40, [](Trial& trial) {
    const QuantizedLayerCase c =
        random_quantized_gate_and_up(trial.seed(), Trial::size(1 << 22, 1 << 16));
    trial.classify(c.x == Dtype::f16, "f16");
    trial.classify(c.integers, "i8");
    trial.classify(c.num_tokens > 8, "more than 8 tokens");
    trial.classify(c.max_rank > 64, "ranks above 64");
    QuantizedLayerData data(c);
    Quantized on_gpu(data);
    const Tensor expected = on_gpu.one_after_the_other(variants_of_linear(on_gpu, c)[0]);
    for (const SiluMulVariants& variants : quantized_silu_mul_variants()) {
      ASSERT_TRUE(have_same_bits(on_gpu.at_once(variants), expected))
          << describe(c) << describe(variants.expand);
      trial.count(reference::num_numbers(expected));
    }
  });
}

// All variants, where they may widen weights ahead.
void check_overlapping(const QuantizedLayerCase& c) {
  QuantizedLayerData data(c);
  Quantized on_gpu(data);
  for (const LoraOp op : {LoraOp::shrink, LoraOp::expand, LoraOp::linear}) {
    const std::vector<LoraVariant> all = all_quantized_variants(c, op, false);
    const Tensor expected = on_gpu.run(op, all[0]);
    for (const LoraVariant& v : all) {
      const Tensor out = on_gpu.run(op, v, LaunchOrder::overlaps_previous);
      ASSERT_TRUE(have_same_bits(out, expected)) << describe(c) << describe(v);
    }
  }
}

// [1.19] P11: every variant beside wide x, with more ranks than an expand has in most stages, and
// of y in both dtypes. Few random cases of a tool have a linear in one launch.
TEST_F(QuantizedOnGpu, EveryVariantBesideWideXHasTheSameBits) {
  for_all_seeds(2, [](Trial& trial) {
    const bool is_first = trial.pick(0, 2) == 0;
    QuantizedLayerCase c{.seed = trial.seed(), .num_tokens = 9, .num_in = 512, .max_rank = 160};
    c.max_loras = 2;
    c.widths = {320, 8};
    c.x = is_first ? Dtype::bf16 : Dtype::f16;
    trial.classify(is_first, "bf16");
    for (const Dtype y : {c.x, Dtype::f32}) {
      c.y = y;
      check_case(trial, c);
      if (!testing::Test::HasFailure()) check_overlapping(c);
    }
  });
}

// The sizes that are timed, and many adapters: several work tiles for each cluster.
TEST_F(QuantizedOnGpu, LargeLayersLieWithinTheirBounds) {
  for_all_seeds(Trial::size(12, 2), [](Trial& trial) {
    QuantizedLayerCase c{.seed = trial.seed()};
    const bool is_long = trial.pick(0, 2) == 0;
    c.num_tokens = Trial::size(is_long ? 300 : 48, 9);
    c.num_in = Trial::size(is_long ? 1024 : 4096, 512);
    c.max_rank = trial.pick(1, 2) == 0 ? 64 : 16;
    c.max_loras = trial.pick(2, 2) == 0 ? 40 : 3;
    c.widths = {Trial::size(1024, 128), Trial::size(512, 64)};
    c.x = trial.pick(3, 3) == 0 ? Dtype::f8_e4m3fn : Dtype::bf16;
    c.factors = Factors(trial.pick(4, 2));
    trial.classify(c.is_w8a8(), "w8a8");
    trial.classify(c.max_loras > 8, "many slots");
    check_case(trial, c);
  });
}

// Launches that add to the same y one after the other: each may start while the one before runs.
// In a graph they have the bits of launches that wait.
TEST_F(QuantizedOnGpu, P12OverlappedLaunchesInAGraphHaveTheirBits) {
  for_all_seeds(10, [](Trial& trial) {
    QuantizedLayerCase c = case_of(trial, true, 1 << 20);
    c.num_tokens = std::max<int64_t>(c.num_tokens, 3);
    QuantizedLayerData data(c);
    Quantized on_gpu(data);
    for (const LoraVariant& v : variants_of_linear(on_gpu, c)) {
      const Tensor waited = on_gpu.run_chain(v, LaunchOrder::after_previous);
      const Tensor overlapped = on_gpu.run_chain(v, LaunchOrder::overlaps_previous);
      ASSERT_TRUE(have_same_bits(waited, overlapped)) << describe(c) << describe(v);
      trial.count(reference::num_numbers(waited));
    }
  });
}

}  // namespace
}  // namespace loratory::gpu
