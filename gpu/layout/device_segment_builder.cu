#include "gpu/layout/device_segment_builder.hpp"

#include <algorithm>
#include <string>

#include "gpu/layout/segment_builder_kernel.cuh"
#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

constexpr int64_t kHeaderBytes = 64;  // num_bad_entries, then a count for each list
static_assert(kHeaderBytes >= 8 + 4 * kMaxSegmentSizes && kHeaderBytes % sizeof(Segment) == 0);

void require(bool ok, const std::string& place, const std::string& rule) {
  if (!ok) throw InputError("segment builder: " + place, rule);
}

void check(int64_t max_tokens, int32_t max_loras, std::span<const int32_t> segment_sizes) {
  check_segment_limits(max_tokens, max_loras, segment_sizes);
  require(!segment_sizes.empty() && segment_sizes.size() <= size_t(kMaxSegmentSizes),
          "segment_sizes", "needs 1 to " + std::to_string(kMaxSegmentSizes) + " sizes");
}

using BuilderKernel = void (*)(SegmentBuilderParams);
constexpr BuilderKernel kBuilders[] = {build_segments_kernel<false>, build_segments_kernel<true>};

/// Allows as much shared memory as a CTA can have, because builders of any size share the kernel.
void allow_shared_bytes(BuilderKernel builder, int64_t needed, int32_t max_loras) {
  int device = 0, most = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes kernel{};
  LORATORY_CUDA_CHECK(cudaFuncGetAttributes(&kernel, builder));
  most -= int(kernel.sharedSizeBytes);
  require(needed <= most, "max_loras",
          std::to_string(max_loras) + " slots need " + std::to_string(needed) +
              " bytes of shared memory, this GPU has " + std::to_string(most));
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(builder, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
}

}  // namespace

DeviceSegmentBuilder::DeviceSegmentBuilder(int64_t max_tokens, int32_t max_loras,
                                           std::span<const int32_t> segment_sizes)
    : max_tokens_(max_tokens) {
  check(max_tokens, max_loras, segment_sizes);
  for (const BuilderKernel builder : kBuilders) {
    allow_shared_bytes(builder, BuilderTables::num_bytes(max_loras, int64_t(segment_sizes.size())),
                       max_loras);
  }
  int64_t num_segments = 0;
  for (const int32_t size : segment_sizes)
    num_segments += max_segments(max_tokens, max_loras, size);
  const auto num_bytes =
      size_t(kHeaderBytes + num_segments * int64_t(sizeof(Segment)) + max_tokens * 4);
  device_ = make_cleared_device_buffer(num_bytes);
  params_.max_loras = max_loras;
  params_.num_bad_entries = reinterpret_cast<int64_t*>(device_.get());
  auto* const counts = reinterpret_cast<int32_t*>(device_.get() + 8);
  auto* segments = reinterpret_cast<Segment*>(device_.get() + kHeaderBytes);
  for (const int32_t size : segment_sizes) {
    params_.lists[params_.num_lists] = {size, counts + params_.num_lists, segments};
    ++params_.num_lists;
    segments += max_segments(max_tokens, max_loras, size);
  }
  params_.token_indices = reinterpret_cast<int32_t*>(segments);
}

void DeviceSegmentBuilder::build(const int32_t* token_to_slot, int64_t num_tokens,
                                 CUstream_st* stream, const int32_t* num_tokens_used) const {
  require(
      num_tokens >= 0 && num_tokens <= max_tokens_, "num_tokens",
      "is " + std::to_string(num_tokens) + ", there is room for " + std::to_string(max_tokens_));
  require(num_tokens == 0 || token_to_slot != nullptr, "token_to_slot", "is null");
  SegmentBuilderParams params = params_;
  params.token_to_slot = token_to_slot;
  params.num_tokens_used = num_tokens_used;
  params.num_tokens = int32_t(num_tokens);
  launch(params, false, stream);
}

void DeviceSegmentBuilder::build(const ExpertPairs& pairs, CUstream_st* stream) const {
  const int64_t num_rows = pairs.rows.num_tokens * pairs.experts_per_token;
  require(pairs.rows.num_tokens >= 0 && num_rows <= max_tokens_, "rows",
          "are " + std::to_string(num_rows) + ", there is room for " + std::to_string(max_tokens_));
  require(num_rows == 0 || pairs.rows.experts != nullptr, "experts", "is null");
  const uint64_t num_pairs =
      uint64_t(pairs.rows.slots == nullptr ? 1 : pairs.num_slots) * pairs.num_experts;
  require(num_pairs == uint64_t(params_.max_loras), "experts",
          "are " + std::to_string(num_pairs) + " with their slots, the builder has room for " +
              std::to_string(params_.max_loras));
  SegmentBuilderParams params = params_;
  params.pairs = pairs;
  params.num_tokens = int32_t(num_rows);
  launch(params, true, stream);
}

void DeviceSegmentBuilder::launch(const SegmentBuilderParams& params, bool of_experts,
                                  CUstream_st* stream) const {
  const int num_ctas = std::max(1, (params.num_tokens + kBuilderThreads - 1) / kBuilderThreads);
  const auto shared_bytes = BuilderTables::num_bytes(params.max_loras, params.num_lists);
  kBuilders[of_experts]<<<unsigned(num_ctas), kBuilderThreads, size_t(shared_bytes), stream>>>(
      params);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

SegmentView DeviceSegmentBuilder::view(int32_t segment_size) const {
  for (int32_t i = 0; i < params_.num_lists; ++i) {
    const SegmentBuilderParams::List& list = params_.lists[i];
    if (list.segment_size != segment_size) continue;
    return {.num_segments = list.num_segments,
            .segments = list.segments,
            .token_indices = params_.token_indices,
            .segment_size = segment_size,
            .max_segments = int32_t(max_segments(max_tokens_, params_.max_loras, segment_size))};
  }
  throw InputError("segment builder: segment_size",
                   std::to_string(segment_size) + " is not one of its sizes");
}

}  // namespace loratory::gpu
