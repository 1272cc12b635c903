// P25 on a GPU: offsets beyond 2^31 elements in x, y, A and B; skipped without a GPU or without the
// memory.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "gpu/model/embedding_lora.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "layer_on_gpu.hpp"
#include "suite.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::LayerCase;
using reference::LayerData;
using reference::Tensor;

/// From the first row (or slot) of a tensor to its last, in elements.
constexpr int64_t kSpan = (int64_t(1) << 31) + (int64_t(1) << 22);
constexpr int64_t kPartSize = int64_t(1) << 21;  // room of each tensor in each of its places
constexpr int64_t kNumParts = 6;                 // x, y, and A and B of two slices
constexpr size_t kNumBytes = 2 * size_t(kSpan + 4096 + kNumParts * kPartSize);

/// Places of tensors with 4 and with 8 rows are kSpan / 21 apart or the same: parts never overlap.
int64_t far_stride(int64_t num_rows) {
  return num_rows < 2 ? 0 : (kSpan / (num_rows - 1) + 7) / 8 * 8;
}

/// One allocation over which the rows of every tensor are spread; NaN where nothing is.
class FarMemory {
 public:
  FarMemory() {
    size_t free = 0, total = 0;
    LORATORY_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    if (free < kNumBytes + (size_t(1) << 30)) return;
    buffer_ = make_device_buffer(kNumBytes);
    LORATORY_CUDA_CHECK(cudaMemset(buffer_.get(), 0xFF, kNumBytes));
  }
  bool is_there() const { return buffer_ != nullptr; }

  /// The tensor with its rows (or, with `far_slots`, its slots) far apart.
  DeviceView put(const Tensor& host, bool far_slots) {
    LORATORY_ASSERT(host.dtype() != reference::Dtype::f32, "16-bit numbers");
    DeviceView view{.dtype = host.dtype(),
                    .data = buffer_.get() + 2 * kPartSize * next_part_++,
                    .num_axes = int(host.shape().size())};
    const size_t far_axis = view.num_axes == 3 && !far_slots ? 1 : 0;
    for (size_t i = 0; i < size_t(view.num_axes); ++i) {
      view.shape[i] = host.shape()[i];
      view.strides[i] = i == far_axis ? far_stride(view.shape[i]) : host.strides()[i];
    }
    // With far rows the slots lie next to each other inside each place.
    if (far_axis == 1) view.strides[0] = host.shape()[2];
    write(host, view);
    return view;
  }

  static void write(const Tensor& host, const DeviceView& view) {
    const bool has_slots = view.num_axes == 3;
    const auto row_bytes = size_t(2 * view.shape[size_t(view.num_axes - 1)]);
    for (int64_t s = 0; s < view.shape[0]; ++s) {
      for (int64_t j = 0; j < (has_slots ? view.shape[1] : 1); ++j) {
        auto* const to = static_cast<std::byte*>(view.data) +
                         2 * (s * view.strides[0] + (has_slots ? j * view.strides[1] : 0));
        const std::byte* const from =
            has_slots ? host.view().address(s, j, 0) : host.view().address(s, 0);
        LORATORY_CUDA_CHECK(cudaMemcpy(to, from, row_bytes, cudaMemcpyHostToDevice));
      }
    }
  }

  Tensor get(const DeviceView& view) const {
    Tensor host(view.dtype, {view.shape[0], view.shape[1]});
    for (int64_t t = 0; t < view.shape[0]; ++t) {
      const auto* from = static_cast<const std::byte*>(view.data) + 2 * t * view.strides[0];
      LORATORY_CUDA_CHECK(cudaMemcpy(host.view().address(t, 0), from, size_t(2 * view.shape[1]),
                                     cudaMemcpyDeviceToHost));
    }
    return host;
  }

 private:
  DeviceBuffer buffer_;
  int64_t next_part_ = 0;
};

/// Four tokens and slots; eight rows of A and B, or four.
LayerCase small_case(uint64_t seed, bool aligned) {
  const int32_t num_rows = aligned ? 8 : 4;
  return {.seed = seed,
          .num_tokens = 4,
          .num_in = aligned ? 4096 : 4097,
          .num_out = {num_rows, num_rows},
          .max_loras = 4,
          .max_rank = num_rows,
          .mapping = reference::Mapping::distinct};
}

class LoraOffsets : public OnGpu {};

// P25: slots of A and B, rows of x and y; and rows of A and B.
TEST_F(LoraOffsets, P25OffsetsAre64Bit) {
  if (!FarMemory().is_there()) GTEST_SKIP() << "no " << (kNumBytes >> 30) + 1 << " GiB of memory";
  for_all_seeds(4, [](Trial& trial) {
    const bool far_slots = trial.seed() % 2 == 0, aligned = trial.seed() / 2 % 2 == 0;
    trial.classify(far_slots, "far slots");
    trial.classify(aligned, "aligned");
    const LayerCase c = small_case(trial.seed(), aligned);
    const LayerData data(c);
    const LayerOnGpu near(data);
    const Tensor expected = near.run(near.kernels(data.batch)[0], data.batch);
    FarMemory memory;
    const size_t h_bytes =
        workspace_bytes(c.num_tokens, int64_t(c.num_out.size()), int64_t(c.max_rank));
    const DeviceBuffer workspace = make_device_buffer(h_bytes);
    const size_t sums_bytes =
        split_sums_bytes(c.num_tokens, int64_t(c.num_out.size()), int64_t(c.max_rank));
    const DeviceBuffer split_sums = zeroed_buffer(sums_bytes);
    LoraLayerDesc desc{.slices = {},
                       .workspace = workspace.get(),
                       .workspace_bytes = h_bytes,
                       .split_sums = split_sums.get(),
                       .split_sums_bytes = sums_bytes};
    std::vector<DeviceBuffer> tables;
    for (const auto& slice : data.slices) {
      tables.push_back(upload(slice.ranks)), tables.push_back(upload(slice.scalings));
      desc.slices.push_back(
          {.a = memory.put(slice.a, far_slots),
           .b = memory.put(slice.b, far_slots),
           .ranks = reinterpret_cast<const int32_t*>(tables[tables.size() - 2].get()),
           .scalings = reinterpret_cast<const float*>(tables.back().get())});
    }
    const LoraLayer layer(desc);
    const DeviceView x = memory.put(data.batch.x, true), y = memory.put(data.batch.y, true);
    EXPECT_EQ(layer.variant_for({.x = x, .y = y}).aligned, aligned);
    for (const LoraVariant& v : variants_here(LoraOp::linear)) {
      if (v.aligned && !layer.variant_for({.x = x, .y = y}).aligned) continue;
      FarMemory::write(data.batch.y, y);
      DeviceSegments segments(c.num_tokens, c.max_loras, v.segment_size());
      segments.upload(reference::make_batch_layout(data.batch.slots, c.max_loras), nullptr);
      layer.launch_variant(v, {.x = x, .y = y}, segments.view(), nullptr);
      LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
      EXPECT_TRUE(have_same_bits(memory.get(y), expected));
      trial.count(num_numbers(expected));
    }
  });
}

// P25 [1.28]: slots of an embedding's A, and its rows, each of a whole vocabulary.
TEST_F(LoraOffsets, P25ColumnsOfAnEmbeddingLieFarApart) {
  if (!FarMemory().is_there()) GTEST_SKIP() << "no " << (kNumBytes >> 30) + 1 << " GiB of memory";
  const LayerData data(small_case(1, /*aligned=*/true));
  const Tensor& a = data.slices[0].a;
  const std::vector<int32_t> slots{3, 0, -1, 2, 1, 3};
  const auto last = int32_t(a.shape()[2] - 1);
  const std::vector<int32_t> ids{last, 0, 5, 7, last, 1}, &ranks = data.slices[0].ranks;
  const DeviceBuffer on_gpu[] = {upload(slots), upload(ids), upload(ranks)};
  const auto ints = [&](size_t i) { return reinterpret_cast<const int32_t*>(on_gpu[i].get()); };
  Tensor h(reference::Dtype::f32, {1, int64_t(slots.size()), a.shape()[1]}), expected = h;
  for (size_t t = 0; t < slots.size(); ++t) {
    for (int64_t j = 0; slots[t] >= 0 && j < ranks[size_t(slots[t])]; ++j) {
      expected.set(a.get(slots[t], j, ids[t]), 0, int64_t(t), j);
    }
  }
  for (const bool far_slots : {false, true}) {
    FarMemory memory;
    GuardedTensor out(h);
    shrink_embedding({.a = memory.put(a, far_slots),
                      .ranks = ints(2),
                      .slots = ints(0),
                      .ids = ints(1),
                      .h = out.view()},
                     nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(have_same_bits(out.read(), expected)) << far_slots;
    record_.num_results += reference::num_numbers(expected);
  }
}

}  // namespace
}  // namespace loratory::gpu
