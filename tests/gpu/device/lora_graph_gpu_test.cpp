// Captured graphs, and launches that overlap: P67-P71; skipped without a GPU. A graph is captured
// once, on a batch of one adapter; whatever the steps after it bring, a replay gives the bits of a
// launch of its own on fresh buffers.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <stdexcept>

#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "gpu/product/skinny_product.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "layer_on_gpu.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::LayerBatch;
using reference::LayerCase;
using reference::LayerData;
using reference::LayerLimits;
using reference::LayerSlice;
using reference::Tensor;

constexpr LayerLimits kSmall{.num_products = int64_t(1) << 27, .weight_bytes = int64_t(1) << 23};

class LoraGraph : public OnGpu {};

void wait(const Stream& stream) { LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream.get())); }

void replay(const Graph& graph, const Stream& stream) {
  LORATORY_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream.get()));
}

/// Everything that a captured launch holds on to: x, y and segments of the largest step. Segments
/// that the device makes are made inside the graph, from a mapping that stays where it is.
class PersistentStep {
 public:
  PersistentStep(const LayerData& data, const KernelUnderTest& kernel, const Stream& stream,
                 SegmentsFrom from = SegmentsFrom::host)
      : data_(&data),
        from_(from),
        kernel_(kernel),
        stream_(stream),
        x_(data.batch.x),
        y_(data.batch.y),
        segments_(data.batch.num_tokens(), data.shape.max_loras, kernel.segment_size),
        builder_(data.batch.num_tokens(), data.shape.max_loras, {{kernel.segment_size}}),
        mapping_(make_device_buffer(data.batch.slots.size() * 4)) {}

  void launch() const {
    const auto num_tokens = data_->batch.num_tokens();
    if (from_ == SegmentsFrom::device) builder_.build(mapping(), num_tokens, stream_.get());
    kernel_.launch(x_.view(), y_.view(), segments(), stream_.get(), LaunchOrder::after_previous);
  }
  /// Brings the tensors and the segments of a step.
  void prepare(const LayerBatch& batch, bool with_garbage) {
    x_.write(batch.x), y_.write(batch.y);
    LORATORY_CUDA_CHECK(
        cudaMemcpy(mapping_.get(), batch.slots.data(), batch.slots.size() * 4, cudaMemcpyDefault));
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());  // such copies may end after they return
    if (with_garbage) fill_segments_with_garbage();
    segments_.upload(reference::make_batch_layout(batch.slots, data_->shape.max_loras),
                     stream_.get());
  }
  Tensor y() const {
    wait(stream_);
    EXPECT_TRUE(y_.guards_are_intact());
    return y_.read();
  }
  SegmentView segments() const {
    return from_ == SegmentsFrom::host ? segments_.view() : builder_.view(kernel_.segment_size);
  }

 private:
  const LayerData* data_;
  SegmentsFrom from_;
  KernelUnderTest kernel_;
  const Stream& stream_;
  GuardedTensor x_, y_;
  DeviceSegments segments_;
  DeviceSegmentBuilder builder_;
  DeviceBuffer mapping_;

  const int32_t* mapping() const { return reinterpret_cast<const int32_t*>(mapping_.get()); }

  /// P70: whatever an earlier step left, the next upload writes all that is read.
  void fill_segments_with_garbage() {
    const SegmentView view = segments();
    const auto garbage = [&](const void* at, int64_t num_bytes) {
      LORATORY_CUDA_CHECK(
          cudaMemsetAsync(const_cast<void*>(at), 0x5A, size_t(num_bytes), stream_.get()));
    };
    const int64_t num_tokens = data_->batch.num_tokens();
    const int64_t most = max_segments(num_tokens, data_->shape.max_loras, kernel_.segment_size);
    garbage(view.segments, most * int64_t(sizeof(Segment)));
    garbage(view.token_indices, num_tokens * 4);
    garbage(view.num_segments, 4);
  }
};

/// A sequence of steps as a server sees them; each returns what it was.
class Steps {
 public:
  Steps(const Trial& trial, const LayerCase& c) : trial_(trial), data_(c) {}
  const LayerData& now() const { return data_; }

  std::string next() {
    constexpr std::array<const char*, 7> kKinds{
        "another batch", "one adapter",   "base only",   "new weights everywhere",
        "a slot loaded", "slots swapped", "fewer tokens"};
    const auto kind = size_t(trial_.pick(100 + ++index_, int64_t(kKinds.size())));
    Mapping mapping = Mapping::uniform;
    if (kind == 1) mapping = Mapping::identical;
    if (kind == 2) mapping = Mapping::base;
    std::vector<int32_t> slots = draw_slots(data_.shape, mapping, seed());
    if (kind == 3 || kind == 4) load(kind == 3);
    if (kind == 5) slots = data_.batch.slots, swap_two_slots();
    if (kind == 6) std::fill(slots.begin() + ptrdiff_t(slots.size() / 3), slots.end(), -1);
    data_.batch = data_.make_batch(slots, seed());
    return kKinds[kind];
  }

 private:
  using Mapping = reference::Mapping;
  const Trial& trial_;
  LayerData data_;
  uint64_t index_ = 0;

  uint64_t seed() const { return trial_.seed() + index_ * 1000; }
  void load(bool all) {
    LayerCase c = data_.shape;
    c.seed = seed();
    c.padded = data_.shape.padded;
    const LayerData fresh(c);
    const int64_t one = trial_.pick(200 + index_, c.max_loras);
    for (int64_t s = 0; s < c.max_loras; ++s) {
      if (all || s == one) data_.copy_slot(fresh, s);
    }
  }
  void swap_two_slots() {
    auto to = reference::shuffled(data_.shape.max_loras, 0);
    std::ranges::sort(to);
    std::swap(to[size_t(trial_.pick(300 + index_, int64_t(to.size())))],
              to[size_t(trial_.pick(400 + index_, int64_t(to.size())))]);
    data_.move_slots(to);
  }
};

LayerCase graph_case(const Trial& trial) {
  LayerCase c = trial.layer(kSmall);
  c.num_tokens = std::max<int64_t>(c.num_tokens, 1);
  c.padded = false;  // gaps follow from the seed, and weights of several seeds share the memory
  c.fill_all_slots = true;
  return c;
}

/// The bits of a launch of its own, on buffers of its own, by any kernel.
Tensor eager(const Trial& trial, uint64_t index, const LayerData& data) {
  const LayerOnGpu layer(data);
  const auto kernels = layer.kernels(data.batch);
  return layer.run(kernels[size_t(trial.pick(index, int64_t(kernels.size())))], data.batch);
}

// P67-P71, [2.27]: replays after a bigger batch, other weights, base only, swapped slots; more
// adapters than at capture; garbage in the metadata; the same pointers throughout.
TEST_F(LoraGraph, P67P68P70P71ReplaysFollowTheStep) {
  for_all_seeds(40, [](Trial& trial) {
    LayerCase c = graph_case(trial);
    c.mapping = reference::Mapping::identical;
    Steps steps(trial, c);
    LayerOnGpu layer(steps.now());
    const auto kernels = layer.kernels(steps.now().batch);
    const KernelUnderTest& kernel = kernels[size_t(trial.pick(1, int64_t(kernels.size())))];
    SCOPED_TRACE(kernel.name);
    const Stream stream = make_stream();
    const auto from = SegmentsFrom(trial.pick(2, 2));
    trial.classify(from == SegmentsFrom::device, "segments made on the device");
    PersistentStep step(steps.now(), kernel, stream, from);
    step.prepare(steps.now().batch, false);
    const auto fails = [&] {
      step.launch();
      throw std::runtime_error("after a launch");
    };
    EXPECT_THROW(capture(stream.get(), fails), std::runtime_error);  // the stream is free again
    const Graph graph = capture(stream.get(), [&] { step.launch(); });
    for (uint64_t i = 0; i < 8; ++i) {
      const std::string kind = steps.next();
      trial.classify(true, kind);
      wait(stream);
      layer.write(steps.now());
      step.prepare(steps.now().batch, i % 2 == 1);
      replay(graph, stream);
      EXPECT_TRUE(have_same_bits(step.y(), eager(trial, i, steps.now())))
          << "step " << i << ", " << kind << ": " << describe(c);
      trial.count(num_numbers(steps.now().batch.y));
      if (testing::Test::HasFailure()) return;
    }
  });
}

// P69: what a captured launch points to stays where it is.
TEST_F(LoraGraph, P69PointersStay) {
  for_all_seeds(8, [](Trial& trial) {
    Steps steps(trial, graph_case(trial));
    const LayerOnGpu layer(steps.now());
    const Stream stream = make_stream();
    PersistentStep step(steps.now(), layer.kernels(steps.now().batch)[0], stream,
                        SegmentsFrom(trial.pick(2, 2)));
    const SegmentView before = step.segments();
    for (int i = 0; i < 4; ++i) {
      steps.next();
      step.prepare(steps.now().batch, true);
      EXPECT_EQ(step.segments().segments, before.segments);
      EXPECT_EQ(step.segments().num_segments, before.num_segments);
      EXPECT_EQ(step.segments().token_indices, before.token_indices);
    }
    wait(stream);
  });
}

// [1.19]: one hundred replays, the bits of a launch.
TEST_F(LoraGraph, HundredReplaysGiveTheSameBits) {
  for_all_seeds(6, [](Trial& trial) {
    const LayerData data(graph_case(trial));
    const LayerOnGpu layer(data);
    const Tensor expected = eager(trial, 0, data);
    const auto kernels = layer.kernels(data.batch);
    const Stream stream = make_stream();
    PersistentStep step(data, kernels[size_t(trial.pick(1, int64_t(kernels.size())))], stream);
    step.prepare(data.batch, false);
    const Graph graph = capture(stream.get(), [&] { step.launch(); });
    for (int i = 0; i < 100; ++i) {
      step.prepare(data.batch, false);
      replay(graph, stream);
      EXPECT_TRUE(have_same_bits(step.y(), expected)) << "replay " << i;
      if (testing::Test::HasFailure()) return;
    }
    trial.count(100 * num_numbers(expected));
  });
}

/// As many columns as in-features, so that y is the x of the next layer; deltas near 1.
LayerCase chain_case(const Trial& trial) {
  LayerCase c = trial.layer(kSmall);
  c.num_in = std::min<int64_t>(c.num_in, 4096);
  c.num_out = {c.num_in};
  c.offset_start = 0;
  c.max_rank = std::min(c.max_rank, 64);
  c.min_rank = 1;
  c.max_loras = std::min(c.max_loras, 8);
  c.num_tokens = std::clamp<int64_t>(c.num_tokens, 1, 64);
  c.out = c.weight;
  c.fill = reference::Fill::reals;
  c.padded = false;
  c.fill_all_slots = c.add_inputs = true;
  return c;
}

/// The product of a layer, which writes the y that its LoRA adds to.
struct ProductOnGpu {
  GuardedTensor weight;
  ProductShape shape;
  ProductChoice choice;
};
ProductOnGpu product_of(const LayerCase& c) {
  Tensor weight(c.weight, {c.num_in, c.num_in});
  const double scale = 2 / std::sqrt(double(c.num_in));
  for (int64_t i = 0; i < c.num_in * c.num_in; ++i) {
    const double unit = double(reference::random_bits(c.seed, 9, uint64_t(i)) >> 40) * 0x1p-23 - 1;
    weight.set(scale * unit, i / c.num_in, i % c.num_in);
  }
  const ProductShape shape{.num_out = c.num_in,
                           .num_in = c.num_in,
                           .max_tokens = c.num_tokens,
                           .weight = c.weight,
                           .out = c.weight};
  const std::vector<ProductChoice> choices = skinny_choices(shape, c.num_tokens, 132);
  return {GuardedTensor(weight), shape, choices[c.seed % choices.size()]};
}

/// Layers of which each reads what the one before wrote. `with_products`: behind products of the
/// same x, with shrinks beside them.
class Chain {
 public:
  Chain(const Trial& trial, const Stream& stream, bool with_products) : stream_(stream) {
    LayerCase c = chain_case(trial);
    if (with_products) c.num_in = std::min<int64_t>((c.num_in + 7) / 8 * 8, 1024);
    c.num_out = {c.num_in};
    for (uint64_t i = 0; i < kNumLayers; ++i) add_layer(trial, c, i, with_products);
    write_bases();
  }

  /// One after the other, with a wait behind each.
  void run_slowly() const {
    for (size_t i = 0; i < kNumLayers; ++i) {
      launch(i, LaunchOrder::after_previous);
      wait(stream_);
    }
  }
  void launch_all(LaunchOrder order) const {
    for (size_t i = 0; i < kNumLayers; ++i) {
      launch(i, i == 0 ? LaunchOrder::after_previous : order);
    }
  }
  void write_bases() {
    for (size_t i = 0; i < kNumLayers; ++i) tensors_[i + 1].write(data_[i].batch.y);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  }
  /// y of every layer.
  std::vector<Tensor> results() const {
    wait(stream_);
    std::vector<Tensor> out;
    for (size_t i = 1; i < tensors_.size(); ++i) out.push_back(tensors_[i].read());
    return out;
  }

 private:
  static constexpr size_t kNumLayers = 6;
  const Stream& stream_;
  std::deque<LayerData> data_;  // layers_ point to it
  std::deque<LayerOnGpu> layers_;
  std::vector<KernelUnderTest> kernels_;
  std::deque<ProductOnGpu> products_;
  std::deque<DeviceSegments> segments_;
  std::vector<GuardedTensor> tensors_;  // x, y of layer 0, y of layer 1, ...

  void add_layer(const Trial& trial, LayerCase c, uint64_t i, bool with_product) {
    c.seed += i;
    if (with_product) products_.push_back(product_of(c));
    LayerData& data = data_.emplace_back(c);
    if (i > 0) data.batch = data.make_batch(data_[0].batch.slots, c.seed);
    for (LayerSlice& slice : data.slices) {
      const auto scaling = float(8 / std::sqrt(double(c.num_in * c.max_rank)));
      std::ranges::fill(slice.scalings, scaling);
    }
    const LayerOnGpu& layer = layers_.emplace_back(data);
    const auto kernels = layer.kernels(data.batch);
    kernels_.push_back(kernels[size_t(trial.pick(50 + i, int64_t(kernels.size())))]);
    segments_.emplace_back(c.num_tokens, c.max_loras, kernels_.back().segment_size);
    segments_.back().upload(reference::make_batch_layout(data.batch.slots, c.max_loras), nullptr);
    if (i == 0) tensors_.emplace_back(data.batch.x);
    tensors_.emplace_back(data.batch.y);
  }
  void launch(size_t i, LaunchOrder order) const {
    if (!products_.empty()) {
      const ProductOnGpu& product = products_[i];
      launch_skinny_product(
          product.shape, product.choice,
          {.weight = product.weight.view(), .x = tensors_[i].view(), .y = tensors_[i + 1].view()},
          stream_.get(), order);
      if (overlaps(order)) order = LaunchOrder::x_is_ready;
    }
    kernels_[i].launch(tensors_[i].view(), tensors_[i + 1].view(), segments_[i].view(),
                       stream_.get(), order);
  }
};

void expect_same(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(have_same_bits(got[i], expected[i])) << "layer " << i;
  }
}

void check_chains(bool with_products) {
  for_all_seeds(10, [&](Trial& trial) {
    const Stream stream = make_stream();
    Chain chain(trial, stream, with_products);
    chain.run_slowly();
    const std::vector<Tensor> expected = chain.results();
    const Graph graph =
        capture(stream.get(), [&] { chain.launch_all(LaunchOrder::overlaps_previous); });
    for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(i % 2 == 0 ? "eager" : "captured");
      chain.write_bases();
      if (i % 2 == 0) {
        chain.launch_all(LaunchOrder::overlaps_previous);
      } else {
        replay(graph, stream);
      }
      expect_same(chain.results(), expected);
    }
    for (const Tensor& y : expected) trial.count(20 * num_numbers(y));
  });
}

// P67 for launches that overlap: every layer reads what the one before wrote, eager and captured.
TEST_F(LoraGraph, OverlappingLaunchesGiveTheBitsOfOrderedOnes) { check_chains(false); }
TEST_F(LoraGraph, OverlappingShrinksBesideProductsGiveTheBitsOfOrderedOnes) { check_chains(true); }

}  // namespace
}  // namespace loratory::gpu
