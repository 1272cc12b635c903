#include "gpu/model/lora_bias.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {
namespace {

std::string place_of(size_t slice) { return fmt::format("add_lora_bias: slices[{}]", slice); }

// Adds slice i, which begins at column `offset`, to the launch. A slice without a bias has a width
// too: that of its shape.
void add_slice(const LoraBiasArgs& args, size_t i, int64_t offset, LoraBiasLaunch& launch) {
  const LoraBiasSlice& slice = args.slices[i];
  LoraBiasLaunch::Slice& out = launch.slices[launch.num_slices++];
  out.columns = int32_t(slice.bias.shape[1]);
  if (slice.bias.data == nullptr) return;
  check_matrix(slice.bias, place_of(i) + ".bias");
  require(slice.bias.dtype == args.y.dtype, place_of(i) + ".bias",
          fmt::format("has dtype {}, y has {}", name(slice.bias.dtype), name(args.y.dtype)));
  require(slice.ranks != nullptr, place_of(i) + ".ranks", "is null");
  out.bias = slice.bias.data;
  out.ranks = slice.ranks;
  out.stride = slice.bias.strides[0];
  out.num_slots = int32_t(slice.bias.shape[0]);
  out.offset = offset;
  const auto vector = int64_t(16 / size_bytes(args.y.dtype));
  launch.uses_vectors = launch.uses_vectors && has_aligned_rows(slice.bias) &&
                        out.columns % 8 == 0 && offset % vector == 0;
}

}  // namespace

void add_lora_bias(const LoraBiasArgs& args, CUstream_st* stream, LaunchOrder order) {
  check_matrix(args.y, "add_lora_bias: y");
  require(!args.slices.empty() && args.slices.size() <= size_t(kMaxSlices), "add_lora_bias: slices",
          fmt::format("are {}, not 1 to {}", args.slices.size(), kMaxSlices));
  require(args.offset_start >= 0, "add_lora_bias: offset_start", "is negative");
  LoraBiasLaunch launch{.y = args.y.data,
                        .slots = args.slots,
                        .y_stride = args.y.strides[0],
                        .num_tokens = int32_t(args.y.shape[0]),
                        .uses_vectors = has_aligned_rows(args.y),
                        .dtype = args.y.dtype};
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const DeviceView& bias = args.slices[i].bias;
    require(bias.num_axes == 2 && bias.shape[1] >= 1, place_of(i) + ".bias",
            "is not [slots, columns]");
    add_slice(args, i, offset, launch);
    offset += bias.shape[1];
  }
  require(offset <= args.y.shape[1], "add_lora_bias: y",
          fmt::format("has {} columns, the slices end at {}", args.y.shape[1], offset));
  if (launch.num_tokens == 0) return;
  require(args.slots != nullptr, "add_lora_bias: slots", "is null");
  launch_lora_bias(launch, stream, order);
}

}  // namespace loratory::gpu
