#include "gpu/api/peer_layouts.hpp"

#include <algorithm>
#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

/// Rows [first, end) of axis 1.
DeviceView rows(DeviceView view, int64_t first, int64_t end) {
  const int64_t offset = first * view.strides[1] * int64_t(size_bytes(view.dtype));
  view.data = static_cast<std::byte*>(view.data) + offset;
  view.shape[1] = end - first;
  return view;
}

void check(const StackedDeviceWeights& weights) {
  const std::vector<int64_t>& at = weights.output_offset;
  if (weights.a.num_axes != 3 || weights.b.num_axes != 3) {
    throw InputError("stacked_linear: a, b", "need three axes");
  }
  if (at.size() < 2 || at.front() < 0 || at.back() > weights.b.shape[1] ||
      !std::is_sorted(at.begin(), at.end())) {
    throw InputError("stacked_linear: output_offset", "does not divide the rows of b");
  }
  const int64_t expected = int64_t(at.size() - 1) * weights.b.shape[2];
  if (weights.a.shape[1] != expected) {
    throw InputError("stacked_linear: a", "has " + std::to_string(weights.a.shape[1]) +
                                              " rows, slices times rank are " +
                                              std::to_string(expected));
  }
}

}  // namespace

LoraLayerDesc vllm_linear(const VllmWeights& weights) {
  const int64_t num_slots = weights.num_slots, rank = weights.max_rank;
  LoraLayerDesc out;
  for (const VllmWeights::Slice& slice : weights.slices) {
    out.slices.push_back(
        {.a = device_view(weights.dtype, slice.a, {num_slots, rank, weights.num_in}),
         .b = device_view(weights.dtype, slice.b, {num_slots, slice.num_out, rank}),
         .ranks = slice.ranks,
         .scalings = slice.scalings});
  }
  return out;
}

LoraLayerDesc stacked_linear(const StackedDeviceWeights& weights) {
  check(weights);
  const std::vector<int64_t>& at = weights.output_offset;
  LoraLayerDesc out{.slices = {}, .offset_start = at.front()};
  for (size_t i = 0; i + 1 < at.size(); ++i) {
    out.slices.push_back({.a = rows(weights.a, 0, weights.b.shape[2]),
                          .b = rows(weights.b, at[i], at[i + 1]),
                          .ranks = weights.ranks,
                          .scalings = weights.scalings,
                          .a_rank_steps = int32_t(i)});
  }
  return out;
}

}  // namespace loratory::gpu
