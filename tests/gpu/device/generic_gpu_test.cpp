// The generic path on a GPU: bit for bit what the reference computes, in every mix of dtypes and in
// every mode that reaches it. The reference asks for one dtype of x and A, so here both are written
// as fp32 first, which loses nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gpu/runtime/cuda_check.hpp"
#include "gpu_case.hpp"
#include "reference/lora/linear.hpp"
#include "suite.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Fill;
using reference::IntermediateMode;
using reference::LoraCase;
using reference::LoraData;
using reference::NumericMode;
using reference::Tensor;

constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Segments of 8, 32 and 64 tokens: all that a variant is for this path.
const std::vector<LoraVariant> kSegmentSizes{
    {.rank_tiles = 2, .cluster = 8, .stages = 2, .aligned = false},
    {.token_tiles = 4, .stages = 3, .aligned = false},
    {.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3, .aligned = false}};

class GenericOnGpu : public OnGpu {};

/// Each number rounded to another dtype.
Tensor converted(const Tensor& from, Dtype dtype) {
  Tensor out(dtype, from.shape());
  for (int64_t i = 0; i < num_numbers(from); ++i) set_number(out, i, number(from, i));
  return out;
}

void convert(std::vector<Tensor>& tensors, Dtype dtype) {
  for (Tensor& t : tensors) t = converted(t, dtype);
}

/// As many columns as several CTAs share, and a width of its own for each slice.
void widen(LoraData& data, uint64_t seed) {
  int64_t columns = 0;
  for (size_t i = 0; i < data.b.size(); ++i) {
    data.num_out[i] = 1 + int64_t(reference::random_bits(seed, 1, i) % 700);
    columns += data.num_out[i];
    Tensor b(Dtype::f32, {data.b[i].shape()[0], data.num_out[i], data.b[i].shape()[2]});
    for (int64_t n = 0; n < num_numbers(b); ++n) {
      const int64_t slot = n / (b.shape()[1] * b.shape()[2]), j = n % b.shape()[2];
      const auto bits = reference::random_bits(seed, 10 + i, uint64_t(n));
      set_number(b, n, j < data.ranks[i][size_t(slot)] ? double(bits % 1001) / 500 - 1 : kNan);
    }
    data.b[i] = b;
  }
  data.y = Tensor(Dtype::f32, {data.y.shape()[0], columns});
  for (int64_t n = 0; n < num_numbers(data.y); ++n) {
    set_number(data.y, n, double(reference::random_bits(seed, 2, uint64_t(n)) % 9999) / 5000 - 1);
  }
}

/// A case; x and y have numbers that only their own dtype can hold.
LoraData data_of(uint64_t seed, Fill fill) {
  const auto draw = [seed](uint64_t stream) { return reference::random_bits(seed, 99, stream); };
  constexpr int kIns[] = {1, 2, 17, 63, 64, 65, 130, 896};
  constexpr int kRanks[] = {1, 2, 3, 5, 8, 63, 64, 65, 100, 512};
  const auto most_ranks = int(Trial::size(512, 65));
  LoraData data({.seed = seed,
                 .num_tokens = int(draw(0) % 45),
                 .num_in = kIns[draw(1) % std::size(kIns)],
                 .num_slices = int(1 + draw(2) % 3),
                 .max_loras = int(1 + draw(3) % 5),
                 .max_rank = std::min(kRanks[draw(4) % std::size(kRanks)], most_ranks),
                 .dtype = 0,
                 .mode = int(draw(9) % 16)},
                fill);
  if (draw(8) % 3 == 0) widen(data, seed);
  const Dtype weight = kDtypes[draw(5) % 3];
  data.x = converted(data.x, kDtypes[draw(6) % 3]);
  data.y = converted(data.y, kDtypes[draw(7) % 3]);
  convert(data.a, weight);
  convert(data.b, weight);
  return data;
}

/// A case that the tensor_core path does not take; h is the tensor between shrink and expand.
LoraData generic_case(const Trial& trial, LoraOp op, Dtype h = Dtype::f32) {
  constexpr Fill kFills[] = {Fill::reals, Fill::cancellation, Fill::tiny};
  for (uint64_t i = 0;; ++i) {
    const uint64_t seed = reference::random_bits(trial.seed(), 98, i);
    LoraData data = data_of(seed, kFills[seed % 3]);
    const Dtype x = data.x.dtype(), weight = data.a[0].dtype(), y = data.y.dtype();
    if (choose_path(op, {x, weight, h, y}, data.mode) != LoraPath::generic) continue;
    trial.classify(x == Dtype::f32, "x of f32");
    trial.classify(weight == Dtype::f32, "weights of f32");
    trial.classify(x != weight && x != Dtype::f32 && weight != Dtype::f32,
                   "x and weights of two 16-bit dtypes");
    trial.classify(y == Dtype::f32, "y of f32");
    trial.classify(data.mode.scale == reference::ScaleMode::folded_b, "scaling folded into B");
    trial.classify(data.slots.empty(), "no tokens");
    trial.classify(data.a[0].shape()[1] > 64, "ranks above 64");
    return data;
  }
}

/// h of the case's sizes; NaN where nothing will be written.
Tensor poisoned_h(const LoraData& data, Dtype dtype) {
  Tensor h(dtype, {int64_t(data.a.size()), int64_t(data.slots.size()), data.a[0].shape()[1]});
  for (int64_t i = 0; i < num_numbers(h); ++i) set_number(h, i, kNan);
  return h;
}

/// h by the reference.
Tensor shrunk(const LoraData& data, Tensor h) {
  const Tensor x = converted(data.x, Dtype::f32);
  std::vector<Tensor> a = data.a;
  convert(a, Dtype::f32);
  reference::ShrinkArgs args{.x = x.view(), .slots = data.slots, .slices = {}, .h = h.view()};
  for (size_t i = 0; i < a.size(); ++i) args.slices.push_back({a[i].view(), data.ranks[i]});
  reference::shrink(args);
  return h;
}

/// y by the reference.
Tensor expanded(const LoraData& data, const Tensor& h, int64_t offset_start = 0,
                bool add_inputs = true) {
  Tensor y = data.y;
  reference::ExpandArgs args{.h = h.view(),
                             .slots = data.slots,
                             .slices = {},
                             .offset_start = offset_start,
                             .add_inputs = add_inputs,
                             .mode = data.mode,
                             .y = y.view()};
  for (size_t i = 0; i < data.b.size(); ++i) {
    args.slices.push_back({data.b[i].view(), data.ranks[i], data.scalings[i]});
  }
  reference::expand(args);
  return y;
}

/// h between the two, in the dtype that the mode says.
Tensor buffer(const LoraData& data) {
  const bool as_x = data.mode.h == IntermediateMode::store_as_x;
  return poisoned_h(data, as_x ? data.x.dtype() : Dtype::f32);
}

Tensor linear(const LoraData& data) { return expanded(data, shrunk(data, buffer(data))); }

/// Bits, but any NaN for any NaN.
testing::AssertionResult same_numbers(const Tensor& got, const Tensor& expected) {
  for (int64_t i = 0; i < num_numbers(expected); ++i) {
    const double g = number(got, i), e = number(expected, i);
    const bool both_nan = g != g && e != e;
    if (both_nan || (g == e && std::signbit(g) == std::signbit(e))) continue;
    return testing::AssertionFailure() << "element " << i << ": " << g << " for " << e;
  }
  return testing::AssertionSuccess();
}

// [1.1]-[1.6], [1.13], [1.16], [1.17], P5, P9, P11, P16, P17: dtypes and modes that the tensor
// cores have not.
TEST_F(GenericOnGpu, LinearHasTheBitsOfTheReference) {
  for_all_seeds(120, [](Trial& trial) {
    const LoraData data = generic_case(trial, LoraOp::linear);
    const GpuCase on_gpu(data);
    ASSERT_EQ(on_gpu.layer().path_for({.x = on_gpu.x(), .y = on_gpu.y()}), LoraPath::generic);
    const Tensor expected = linear(data);
    for (const LoraVariant& v : kSegmentSizes) {
      ASSERT_TRUE(same_numbers(on_gpu.run(v), expected)) << v.segment_size();
      trial.count(num_numbers(expected));
    }
  });
}

// [1.7], [1.8]: covered rows up to their rank; NaN stays everywhere else.
TEST_F(GenericOnGpu, ShrinkHasTheBitsOfTheReference) {
  for_all_seeds(70, [](Trial& trial) {
    const Dtype dtype = kDtypes[trial.seed() % 3];
    const LoraData data = generic_case(trial, LoraOp::shrink, dtype);
    const GpuCase on_gpu(data);
    const Tensor h = poisoned_h(data, dtype);
    const Tensor expected = shrunk(data, h);
    for (const LoraVariant& v : kSegmentSizes) {
      ASSERT_TRUE(same_numbers(on_gpu.shrink(v, h), expected)) << v.segment_size();
      trial.count(num_numbers(expected));
    }
  });
}

// [1.7], [1.17]: h of any dtype, NaN in rows of base tokens and beyond the ranks.
TEST_F(GenericOnGpu, ExpandHasTheBitsOfTheReference) {
  for_all_seeds(70, [](Trial& trial) {
    const Dtype dtype = kDtypes[trial.seed() % 3];
    const LoraData data = generic_case(trial, LoraOp::expand, dtype);
    const GpuCase on_gpu(data);
    const Tensor h = shrunk(data, poisoned_h(data, dtype));
    const Tensor expected = expanded(data, h);
    for (const LoraVariant& v : kSegmentSizes) {
      ASSERT_TRUE(same_numbers(on_gpu.expand(v, h), expected)) << v.segment_size();
      trial.count(num_numbers(expected));
    }
  });
}

// [1.21], P13: NaN in a token's x, then in an adapter's weights.
TEST_F(GenericOnGpu, NanStaysInItsRowOrSlot) {
  for_all_seeds(20, [](Trial& trial) {
    LoraData data = data_of(trial.seed(), Fill::reals);
    data.mode.scale = reference::ScaleMode::folded_b;
    trial.classify(data.slots.empty(), "no tokens");
    if (data.slots.empty()) return;
    for (int64_t c = 0; c < data.x.shape()[1]; ++c) data.x.set(kNan, 0, c);
    ASSERT_TRUE(same_numbers(GpuCase(data).run(kSegmentSizes[0]), linear(data)));
    for (int64_t j = 0; j < data.a[0].shape()[1]; ++j) data.a[0].set(kNan, 0, j, 0);
    ASSERT_TRUE(same_numbers(GpuCase(data).run(kSegmentSizes[1]), linear(data)));
    trial.count(2 * num_numbers(data.y));
  });
}

// [1.6], P24, [1.5]: a first column, add_inputs = false over a poisoned y, and strides with gaps.
TEST_F(GenericOnGpu, StridesOffsetAndAddInputs) {
  for_all_seeds(20, [](Trial& trial) {
    LoraData data = data_of(trial.seed(), Fill::reals);
    data.mode.scale = reference::ScaleMode::folded_b;
    trial.classify(data.slots.empty(), "no tokens");
    const int64_t num_tokens = data.y.shape()[0], columns = data.y.shape()[1] + 3;
    Tensor y(data.y.dtype(), {num_tokens, columns}, {columns + 5, 1});
    for (int64_t n = 0; n < num_numbers(y); ++n) set_number(y, n, kNan);
    data.y = y;
    const GpuCase on_gpu(data);
    LoraLayerDesc desc = on_gpu.desc();
    desc.offset_start = 2;
    desc.add_inputs = false;
    const Tensor expected = expanded(data, shrunk(data, buffer(data)), 2, false);
    ASSERT_TRUE(same_numbers(on_gpu.run(LoraLayer(desc), kSegmentSizes[0]), expected));
    trial.count(num_numbers(expected));
  });
}

/// One buffer with room for tensors whose outermost strides exceed 2^31 elements of 16 bits.
class FarRoom {
 public:
  static constexpr int64_t kStride = (int64_t(1) << 31) + 64;
  static constexpr int64_t kPart = 4096;  // elements of one tensor at one outermost index

  /// Element [i, ...] of `t` at i·kStride + place·kPart + ...
  DeviceView put(int64_t place, const Tensor& t) {
    const int64_t each = num_numbers(t) / t.shape()[0];
    EXPECT_LE(each, kPart);
    const auto& shape = t.shape();
    DeviceView view = shape.size() == 2
                          ? device_view(t.dtype(), nullptr, {shape[0], shape[1]})
                          : device_view(t.dtype(), nullptr, {shape[0], shape[1], shape[2]});
    view.strides[0] = kStride;
    view.data = room_.get() + place * kPart * 2;
    for (int64_t i = 0; i < shape[0]; ++i) {
      LORATORY_CUDA_CHECK(cudaMemcpy(static_cast<std::byte*>(view.data) + i * kStride * 2,
                                     t.bytes().data() + i * each * 2, size_t(each * 2),
                                     cudaMemcpyHostToDevice));
    }
    return view;
  }

  void get(const DeviceView& view, Tensor& t) const {
    const int64_t each = num_numbers(t) / t.shape()[0];
    for (int64_t i = 0; i < t.shape()[0]; ++i) {
      LORATORY_CUDA_CHECK(cudaMemcpy(t.bytes().data() + i * each * 2,
                                     static_cast<std::byte*>(view.data) + i * kStride * 2,
                                     size_t(each * 2), cudaMemcpyDeviceToHost));
    }
  }

 private:
  DeviceBuffer room_ = make_device_buffer(size_t(kStride + 8 * kPart) * 2);
};

// P25: rows and slots further apart than 2^31 elements.
TEST_F(GenericOnGpu, OffsetsBeyond2To31) {
  LoraData data({.seed = 3,
                 .num_tokens = 2,
                 .num_in = 65,
                 .num_slices = 1,
                 .max_loras = 2,
                 .max_rank = 9,
                 .dtype = 1,
                 .mode = 0},
                Fill::reals);
  data.mode = reference::kVllmMode;
  data.slots = {1, 0};
  data.ranks = {{9, 5}};
  for (Tensor* weight : {&data.a[0], &data.b[0]}) {  // the case's ranks were others
    for (int64_t n = 0; n < num_numbers(*weight); ++n) set_number(*weight, n, double(n % 31) / 16);
  }
  FarRoom room;
  const DeviceBuffer ranks = upload(data.ranks[0]), scalings = upload(data.scalings[0]);
  const LoraLayer layer({.slices = {{.a = room.put(0, data.a[0]),
                                     .b = room.put(1, data.b[0]),
                                     .ranks = reinterpret_cast<const int32_t*>(ranks.get()),
                                     .scalings = reinterpret_cast<const float*>(scalings.get())}},
                         .mode = data.mode});
  const DeviceView x = room.put(2, data.x), y = room.put(3, data.y);
  DeviceSegments segments(2, 2, layer.variant_for({.x = x, .y = y}).segment_size());
  segments.upload(reference::make_batch_layout(data.slots, 2), nullptr);
  layer.launch({.x = x, .y = y}, segments.view(), nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  Tensor got(data.y.dtype(), data.y.shape());
  room.get(y, got);
  EXPECT_TRUE(same_numbers(got, linear(data)));
}

}  // namespace
}  // namespace loratory::gpu
