#include "gpu/attention/paged_attention.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <string>

#include "gpu/runtime/device_ability.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr int32_t kMostHeads = 1024;
constexpr int64_t kMostContext = int64_t{1} << 24;
constexpr int64_t kMostCtas = INT32_MAX;
constexpr int64_t kMostKvRows = INT32_MAX;  // tokens of all blocks and kv heads

void require_attention(bool ok, const std::string& place, const std::string& rule) {
  if (!ok) throw InputError("attention: " + place, rule);
}

void check(const AttentionShape& s) {
  require_attention(s.dtype == Dtype::f32 || s.dtype == Dtype::bf16 || s.dtype == Dtype::f16,
                    "dtype", fmt::format("is {}, must be f32, bf16 or f16", name(s.dtype)));
  require_attention(s.kv_heads >= 1 && s.kv_heads <= kMostHeads, "kv_heads",
                    fmt::format("is {}, must be 1 to {}", s.kv_heads, kMostHeads));
  require_attention(s.num_heads >= 1 && s.num_heads <= kMostHeads && s.num_heads % s.kv_heads == 0,
                    "num_heads",
                    fmt::format("is {}, must be 1 to {} and a multiple of {} kv_heads", s.num_heads,
                                kMostHeads, s.kv_heads));
  require_attention(s.head_dim >= 1 && s.head_dim <= kMostHeadDim, "head_dim",
                    fmt::format("is {}, must be 1 to {}", s.head_dim, kMostHeadDim));
  require_attention(
      s.block_size >= 1 && int64_t{s.block_size} * s.kv_heads * s.head_dim <= INT32_MAX,
      "block_size",
      fmt::format("is {}, must be 1 to {}", s.block_size, INT32_MAX / (s.kv_heads * s.head_dim)));
  require_attention(std::isfinite(s.scale) && s.scale > 0, "scale", "must be positive and finite");
}

void check(const AttentionLimits& limits, int32_t num_heads) {
  require_attention(
      limits.max_tokens >= 1 && limits.max_tokens * num_heads <= kMostCtas, "max_tokens",
      fmt::format("is {}, must be 1 to {}", limits.max_tokens, kMostCtas / num_heads));
  require_attention(limits.max_rows >= 1, "max_rows", "must be at least 1");
  require_attention(limits.max_context >= 1 && limits.max_context <= kMostContext, "max_context",
                    fmt::format("is {}, must be 1 to {}", limits.max_context, kMostContext));
}

AttentionPath path_of(const AttentionShape& s) {
  const bool can =
      has_wgmma() && s.dtype != Dtype::f32 && (s.head_dim == 64 || s.head_dim == 128) &&
      s.num_heads / s.kv_heads <= kMostGroup && std::has_single_bit(unsigned(s.block_size));
  return can ? AttentionPath::tensor_core : AttentionPath::plain;
}

// Each array begins at a multiple of 256 bytes.
WorkspaceLayout layout_of(const AttentionShape& s, const AttentionLimits& limits) {
  const int64_t group = s.num_heads / s.kv_heads;
  const int64_t pieces = int64_t{limits.max_rows} * num_attention_pieces(limits.max_context);
  // Only rows of several pieces leave sums.
  const int64_t items = limits.max_context > kPieceKeys ? pieces * s.kv_heads : 0;
  // Their tiles are counted in 32 bits.
  require_attention(pieces < int64_t{1} << 29, "max_rows",
                    fmt::format("{} rows of {} tokens are more than 2^29 pieces", limits.max_rows,
                                limits.max_context));
  WorkspaceLayout out{};
  int64_t end = 256;  // num_tiles
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end += (bytes + 255) / 256 * 256;
    return begin;
  };
  out.piece_starts = take(4 * (int64_t{limits.max_rows} + 1));
  out.tile_starts = take(4 * (int64_t{limits.max_rows} + 1));
  out.arrived = take(4 * int64_t{limits.max_rows} * s.kv_heads);
  out.late_taken = take(4);
  out.tiles = take(int64_t(sizeof(PrefillTile)) *
                   max_prefill_tiles(limits.max_tokens, limits.max_rows, int32_t(group)));
  out.sums = take(4 * items * group * s.head_dim);
  out.stats = take(4 * items * group * 2);
  out.num_bytes = end;
  return out;
}

bool is_aligned(const void* address, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(address) % to == 0;
}

}  // namespace

std::string_view name(AttentionPath path) {
  return path == AttentionPath::tensor_core ? "tensor_core" : "plain";
}

AttentionPlan::AttentionPlan(const AttentionShape& shape, const AttentionLimits& limits)
    : shape_(shape), limits_(limits) {
  check(shape);
  check(limits, shape.num_heads);
  path_ = path_of(shape);
  layout_ = path_ == AttentionPath::tensor_core ? layout_of(shape, limits)
                                                : WorkspaceLayout{.num_bytes = 256};
}

void AttentionPlan::check_batch(const BatchView& batch, const void* workspace) const {
  require_attention(batch.num_tokens >= 0 && batch.num_tokens <= limits_.max_tokens, "num_tokens",
                    fmt::format("is {}, planned for {}", batch.num_tokens, limits_.max_tokens));
  require_attention(batch.num_rows >= 0 && batch.num_rows <= limits_.max_rows, "num_rows",
                    fmt::format("is {}, planned for {}", batch.num_rows, limits_.max_rows));
  require_attention(
      batch.block_size == shape_.block_size, "block_size",
      fmt::format("of the batch is {}, planned for {}", batch.block_size, shape_.block_size));
  require_attention(batch.num_rows == 0 || batch.max_blocks >= 1, "max_blocks",
                    "must be at least 1");
  require_attention(batch.token_rows != nullptr || batch.num_tokens == 0, "token_rows", "is null");
  require_attention(batch.row_starts != nullptr, "row_starts", "is null");
  require_attention(
      batch.num_rows == 0 || (batch.contexts != nullptr && batch.block_tables != nullptr),
      batch.contexts == nullptr ? "contexts" : "block_tables", "is null");
  require_attention(workspace != nullptr && is_aligned(workspace, 256), "workspace",
                    "is null or not aligned to 256 bytes");
}

void AttentionPlan::check_rows(const char* place, const DeviceView& rows,
                               int32_t num_tokens) const {
  require_attention(rows.dtype == shape_.dtype, place,
                    fmt::format("is {}, planned for {}", name(rows.dtype), name(shape_.dtype)));
  const int64_t columns = int64_t{shape_.num_heads} * shape_.head_dim;
  require_attention(
      rows.num_axes == 2 && rows.shape[0] >= num_tokens && rows.shape[1] == columns, place,
      fmt::format("must be [{} tokens or more, {}], is {}", num_tokens, columns, describe(rows)));
  require_attention(rows.strides[1] == 1 && rows.strides[0] >= columns, place,
                    "has rows with gaps inside, or that overlap");
  require_attention(num_tokens == 0 || rows.data != nullptr, place, "is null");
  const size_t bytes = size_bytes(shape_.dtype);
  const bool needs_vectors = path_ == AttentionPath::tensor_core;
  require_attention(is_aligned(rows.data, needs_vectors ? 16 : bytes) &&
                        (!needs_vectors || rows.strides[0] % 8 == 0),
                    place, "has rows that are not aligned to 16 bytes");
}

void AttentionPlan::check_kv(const KvView& kv) const {
  require_attention(kv.dtype == shape_.dtype, "kv",
                    fmt::format("is {}, planned for {}", name(kv.dtype), name(shape_.dtype)));
  require_attention(
      kv.kv_heads == shape_.kv_heads && kv.head_dim == shape_.head_dim &&
          kv.block_size == shape_.block_size,
      "kv",
      fmt::format("has {} heads of {} in blocks of {}, planned for {}, {} and {}", kv.kv_heads,
                  kv.head_dim, kv.block_size, shape_.kv_heads, shape_.head_dim, shape_.block_size));
  require_attention(
      kv.num_blocks >= 1 && kv.num_blocks <= kMostKvRows / kv.kv_heads / kv.block_size, "kv",
      fmt::format("has {} blocks, must be 1 to {}", kv.num_blocks,
                  kMostKvRows / kv.kv_heads / kv.block_size));
  require_attention(kv.k != nullptr && kv.v != nullptr, "kv", "is null");
  require_attention(is_aligned(kv.k, 16) && is_aligned(kv.v, 16), "kv",
                    "is not aligned to 16 bytes");
}

AttentionParams AttentionPlan::params(const BatchView& batch, void* workspace) const {
  AttentionParams out;
  out.token_rows = batch.token_rows;
  out.row_starts = batch.row_starts;
  out.contexts = batch.contexts;
  out.block_tables = batch.block_tables;
  out.max_blocks = batch.max_blocks;
  out.block_size = shape_.block_size;
  out.block_shift = std::countr_zero(unsigned(shape_.block_size));
  out.num_tokens = batch.num_tokens;
  out.num_rows = batch.num_rows;
  out.kv_heads = shape_.kv_heads;
  out.group = shape_.num_heads / shape_.kv_heads;
  out.head_dim = shape_.head_dim;
  out.scale = shape_.scale;
  out.scale_log2 = float(double{shape_.scale} * std::numbers::log2e);
  auto* const base = static_cast<std::byte*>(workspace);
  out.work = {.num_tiles = reinterpret_cast<int32_t*>(base),
              .piece_starts = reinterpret_cast<int32_t*>(base + layout_.piece_starts),
              .tile_starts = reinterpret_cast<int32_t*>(base + layout_.tile_starts),
              .arrived = reinterpret_cast<int32_t*>(base + layout_.arrived),
              .late_taken = reinterpret_cast<int32_t*>(base + layout_.late_taken),
              .tiles = reinterpret_cast<PrefillTile*>(base + layout_.tiles),
              .sums = reinterpret_cast<float*>(base + layout_.sums),
              .stats = reinterpret_cast<float*>(base + layout_.stats)};
  return out;
}

void AttentionPlan::build_work(const BatchView& batch, void* workspace, CUstream_st* stream) const {
  check_batch(batch, workspace);
  if (path_ == AttentionPath::plain) return;
  launch_attention_work({shape_.dtype, params(batch, workspace), stream});
}

void AttentionPlan::launch(const AttentionTensors& tensors, const BatchView& batch,
                           int32_t max_row_tokens, void* workspace, CUstream_st* stream,
                           LaunchOrder order) const {
  check_batch(batch, workspace);
  require_attention(max_row_tokens >= 1, "max_row_tokens", "must be at least 1");
  check_rows("q", tensors.q, batch.num_tokens);
  check_rows("out", tensors.out, batch.num_tokens);
  check_kv(tensors.kv);
  if (batch.num_tokens == 0) return;
  AttentionParams p = params(batch, workspace);
  p.q = tensors.q.data;
  p.out = tensors.out.data;
  p.q_stride = tensors.q.strides[0];
  p.out_stride = tensors.out.strides[0];
  p.k = tensors.kv.k;
  p.v = tensors.kv.v;
  p.num_blocks = tensors.kv.num_blocks;
  p.overlaps_previous = overlaps(order);
  const AttentionLaunch launch{shape_.dtype, p, stream};
  if (path_ == AttentionPath::plain) return launch_plain_attention(launch);
  if (max_row_tokens > 1) launch_prefill_attention(launch);
  launch_decode_attention(launch);
}

}  // namespace loratory::gpu
