#include "gpu/model/model_checks.hpp"

#include <fmt/format.h>

#include <bit>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

void require(bool ok, const std::string& place, const std::string& rule) {
  if (!ok) throw InputError(place, rule);
}

void check_matrix(const DeviceView& view, const std::string& place) {
  const bool is_known =
      view.dtype == Dtype::f32 || view.dtype == Dtype::f16 || view.dtype == Dtype::bf16;
  require(is_known, place, fmt::format("has dtype {}, not f32, f16 or bf16", name(view.dtype)));
  require(view.num_axes == 2, place, fmt::format("has {} axes, not 2", view.num_axes));
  const int64_t rows = view.shape[0], columns = view.shape[1];
  constexpr int64_t kMost = INT32_MAX;
  require(rows >= 0 && rows <= kMost && columns >= 1 && columns <= kMost, place,
          fmt::format("has shape [{}, {}]", rows, columns));
  require(columns == 1 || view.strides[1] == 1, place, "its columns do not lie side by side");
  require(rows <= 1 || view.strides[0] >= columns, place, "its rows overlap");
  require(rows == 0 || view.data != nullptr, place, "is null");
}

void check_matrix_like(const DeviceView& view, Dtype dtype, int64_t rows, int64_t columns,
                       const std::string& place) {
  check_matrix(view, place);
  require(view.dtype == dtype, place,
          fmt::format("has dtype {}, not {}", name(view.dtype), name(dtype)));
  require(
      view.shape[0] == rows && view.shape[1] == columns, place,
      fmt::format("has shape [{}, {}], not [{}, {}]", view.shape[0], view.shape[1], rows, columns));
}

void check_batch(const BatchView& batch, const std::string& place) {
  require(batch.num_tokens >= 0 && batch.num_rows >= 0, place, "a count is negative");
  if (batch.num_tokens == 0) return;
  require(batch.token_ids != nullptr, place, "token_ids is null");
  require(batch.positions != nullptr, place, "positions is null");
  require(batch.token_rows != nullptr, place, "token_rows is null");
}

void check_blocks(const BatchView& batch, const KvView& kv, const std::string& place) {
  require(batch.block_size >= 1 && std::has_single_bit(uint32_t(batch.block_size)), place,
          fmt::format("block_size {} is not a power of two", batch.block_size));
  require(kv.block_size == batch.block_size, place,
          fmt::format("the KV has blocks of {} tokens, the batch of {}", kv.block_size,
                      batch.block_size));
  require(kv.num_blocks >= 0 && kv.kv_heads >= 1 && kv.head_dim >= 1, place,
          "a size of the KV is too small");
  require(batch.num_tokens == 0 || (kv.k != nullptr && kv.v != nullptr), place,
          "keys or values are null");
  require(is_aligned(kv.k) && is_aligned(kv.v), place,
          "keys or values are not aligned to 16 bytes");
  require(batch.num_tokens == 0 || batch.block_tables != nullptr, place, "block_tables is null");
}

bool has_aligned_rows(const DeviceView& view) {
  const auto row_bytes = view.strides[0] * int64_t(size_bytes(view.dtype));
  return is_aligned(view.data) && (view.shape[0] <= 1 || row_bytes % 16 == 0);
}

}  // namespace loratory::gpu
