#include "gpu/model/rotary.hpp"

#include <fmt/format.h>

#include <numeric>

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"
#include "reference/model/rope.hpp"

namespace loratory::gpu {
namespace {

void check(const BatchView& batch, const RotaryArgs& args) {
  check_batch(batch, "rotary: batch");
  check_blocks(batch, args.kv, "rotary: kv");
  const int32_t head_dim = args.kv.head_dim;
  require(head_dim >= 2 && head_dim <= kMostHeadDim && head_dim % 2 == 0, "rotary: head_dim",
          fmt::format("is {}, not even, or not of 2 to {}", head_dim, kMostHeadDim));
  const bool needs_vectors = rotates_by_vectors(head_dim);
  require(args.num_heads >= 1, "rotary: num_heads", "must be at least 1");
  const int64_t num_heads = int64_t(args.num_heads) + 2 * int64_t(args.kv.kv_heads);
  check_matrix_like(args.qkv, args.kv.dtype, batch.num_tokens, num_heads * head_dim, "rotary: qkv");
  require(!needs_vectors || has_aligned_rows(args.qkv), "rotary: qkv",
          "rows are not aligned to 16 bytes");
  for (const DeviceView& table : {args.cos, args.sin}) {
    check_matrix_like(table, reference::Dtype::f32, args.cos.shape[0], head_dim / 2,
                      "rotary: cos and sin");
    require(table.strides[0] == head_dim / 2 && (!needs_vectors || has_aligned_rows(table)),
            "rotary: cos and sin", "have gaps, or are not aligned to 16 bytes");
  }
  require((args.q_norm == nullptr) == (args.k_norm == nullptr), "rotary: q_norm and k_norm",
          "one of them is null");
  require(args.eps >= 0, "rotary: eps", "is negative");
}

}  // namespace

RopeTables make_rope_tables(const reference::RopeConfig& config, int64_t head_dim,
                            int64_t num_positions) {
  std::vector<int64_t> positions(static_cast<size_t>(num_positions));
  std::iota(positions.begin(), positions.end(), int64_t{0});
  const auto exact = reference::rotations<double>(config, head_dim, positions);
  // Columns are positions and lie one behind the other: the rows of the tables.
  const auto rounded = [](const reference::Matrix<double>& m) {
    return std::vector<float>(m.data(), m.data() + m.size());
  };
  return {rounded(exact.cos), rounded(exact.sin)};
}

void rotary(const BatchView& batch, const RotaryArgs& args, CUstream_st* stream,
            LaunchOrder order) {
  check(batch, args);
  if (batch.num_tokens == 0) return;
  launch_rotary({.batch = batch,
                 .kv = args.kv,
                 .qkv = args.qkv.data,
                 .cos = static_cast<const float*>(args.cos.data),
                 .sin = static_cast<const float*>(args.sin.data),
                 .q_norm = args.q_norm,
                 .k_norm = args.k_norm,
                 .qkv_stride = args.qkv.strides[0],
                 .num_heads = args.num_heads,
                 .eps = float(args.eps)},
                stream, order);
}

}  // namespace loratory::gpu
