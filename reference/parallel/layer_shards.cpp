#include "reference/parallel/layer_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

void require_positive(std::string_view what, int64_t size) {
  if (size < 1) throw InputError(what, fmt::format("is {}", size), "must be at least 1");
}

int64_t part_of(std::string_view what, int64_t size, int64_t num_tp_ranks) {
  require_positive(what, size);
  if (size % num_tp_ranks == 0) return size / num_tp_ranks;
  throw InputError(what, fmt::format("{} is not divisible by tp_size {}", size, num_tp_ranks));
}

Range part(std::string_view what, int64_t size, int64_t num_tp_ranks, int64_t p) {
  const int64_t count = part_of(what, size, num_tp_ranks);
  return {p * count, count};
}

// No shards yet; `parallel` is checked.
LayerShards start(const ParallelConfig& parallel, int64_t num_in, std::vector<int64_t> num_out) {
  require_positive("tp_size", parallel.tp_size);
  require_positive("max_lora_rank", parallel.max_lora_rank);
  if (parallel.fully_sharded) part_of("max_lora_rank", parallel.max_lora_rank, parallel.tp_size);
  require_positive("in-features", num_in);
  for (const int64_t size : num_out) require_positive("out-features", size);
  return {parallel, num_in, std::move(num_out), {}};
}

// A of a column-parallel layer: fully sharded by rows of the buffer.
Range column_a_rows(const ParallelConfig& parallel, int64_t p) {
  if (!parallel.fully_sharded) return {0, parallel.max_lora_rank};
  return {p * parallel.rank_shard(), parallel.rank_shard()};
}

// Where tp_rank p's rows of q, k and v begin.
struct QkvParts {
  Range q, kv;
};

QkvParts qkv_parts(const QkvSizes& sizes, int64_t num_tp_ranks, int64_t p) {
  part_of("query heads", sizes.num_heads, num_tp_ranks);
  const Range q = part("q output", sizes.q_size, num_tp_ranks, p);
  require_positive("head size", sizes.head_dim);
  require_positive("key-value heads", sizes.num_kv_heads);
  if (num_tp_ranks <= sizes.num_kv_heads) {
    const int64_t heads = part_of("key-value heads", sizes.num_kv_heads, num_tp_ranks);
    return {q, {p * heads * sizes.head_dim, heads * sizes.head_dim}};
  }
  if (num_tp_ranks % sizes.num_kv_heads != 0) {
    throw InputError("key-value heads",
                     fmt::format("{} do not divide tp_size {}", sizes.num_kv_heads, num_tp_ranks));
  }
  const int64_t rep = num_tp_ranks / sizes.num_kv_heads;
  return {q, {p / rep * sizes.head_dim, sizes.head_dim}};
}

}  // namespace

int64_t SliceShard::num_b_rows() const {
  int64_t count = 0;
  for (const Range& rows : b_rows) count += rows.count;
  return count;
}

int64_t SliceShard::local_rank(int64_t rank) const {
  return std::clamp<int64_t>(rank - a_rows.begin, 0, a_rows.count);
}

int64_t LayerShards::total_out() const {
  int64_t total = 0;
  for (const int64_t size : num_out) total += size;
  return total;
}

std::vector<Range> LayerShards::y_columns(int64_t p) const {
  std::vector<Range> columns;
  int64_t offset = 0;
  for (size_t i = 0; i < num_slices(); ++i) {
    for (const Range& rows : shards[size_t(p)][i].b_rows) {
      columns.push_back({offset + rows.begin, rows.count});
    }
    offset += num_out[i];
  }
  return columns;
}

LayerShards column_shards(const ParallelConfig& parallel, int64_t num_in, int64_t num_out) {
  return merged_column_shards(parallel, num_in, {num_out});
}

LayerShards fused_column_shards(const ParallelConfig& parallel, int64_t num_in,
                                const std::vector<int64_t>& output_sizes) {
  int64_t total = 0;
  for (const int64_t size : output_sizes) total += size;
  LayerShards layer = start(parallel, num_in, {total});
  for (int64_t p = 0; p < parallel.tp_size; ++p) {
    SliceShard shard{column_a_rows(parallel, p), {0, num_in}, {}};
    int64_t offset = 0;
    for (const int64_t size : output_sizes) {
      const Range rows = part("out-features", size, parallel.tp_size, p);
      shard.b_rows.push_back({offset + rows.begin, rows.count});
      offset += size;
    }
    layer.shards.push_back({shard});
  }
  return layer;
}

LayerShards merged_column_shards(const ParallelConfig& parallel, int64_t num_in,
                                 const std::vector<int64_t>& output_sizes) {
  LayerShards layer = start(parallel, num_in, output_sizes);
  for (int64_t p = 0; p < parallel.tp_size; ++p) {
    std::vector<SliceShard> slices;
    for (const int64_t size : output_sizes) {
      slices.push_back({column_a_rows(parallel, p),
                        {0, num_in},
                        {part("out-features", size, parallel.tp_size, p)}});
    }
    layer.shards.push_back(std::move(slices));
  }
  return layer;
}

LayerShards qkv_shards(const ParallelConfig& parallel, int64_t num_in, const QkvSizes& sizes) {
  LayerShards layer = start(parallel, num_in, {sizes.q_size, sizes.kv_size(), sizes.kv_size()});
  for (int64_t p = 0; p < parallel.tp_size; ++p) {
    const QkvParts parts = qkv_parts(sizes, parallel.tp_size, p);
    std::vector<SliceShard> slices;
    for (const Range& rows : {parts.q, parts.kv, parts.kv}) {
      slices.push_back({column_a_rows(parallel, p), {0, num_in}, {rows}});
    }
    layer.shards.push_back(std::move(slices));
  }
  return layer;
}

LayerShards fused_qkv_shards(const ParallelConfig& parallel, int64_t num_in,
                             const QkvSizes& sizes) {
  const int64_t k_begin = sizes.q_size, v_begin = sizes.q_size + sizes.kv_size();
  LayerShards layer = start(parallel, num_in, {v_begin + sizes.kv_size()});
  for (int64_t p = 0; p < parallel.tp_size; ++p) {
    const auto [q, kv] = qkv_parts(sizes, parallel.tp_size, p);
    const std::vector<Range> rows{
        q, {k_begin + kv.begin, kv.count}, {v_begin + kv.begin, kv.count}};
    layer.shards.push_back({{column_a_rows(parallel, p), {0, num_in}, rows}});
  }
  return layer;
}

LayerShards row_shards(const ParallelConfig& parallel, int64_t num_in, int64_t num_out) {
  LayerShards layer = start(parallel, num_in, {num_out});
  for (int64_t p = 0; p < parallel.tp_size; ++p) {
    const Range columns = part("in-features", num_in, parallel.tp_size, p);
    const Range rows = parallel.fully_sharded ? part("out-features", num_out, parallel.tp_size, p)
                                              : Range{0, num_out};
    layer.shards.push_back({{{0, parallel.max_lora_rank}, columns, {rows}}});
  }
  return layer;
}

LayerShards replicated_shards(const ParallelConfig& parallel, int64_t num_in, int64_t num_out) {
  LayerShards layer = start(parallel, num_in, {num_out});
  const SliceShard whole{{0, parallel.max_lora_rank}, {0, num_in}, {{0, num_out}}};
  layer.shards.assign(size_t(parallel.tp_size), {whole});
  return layer;
}

LayerShards vocab_shards(const ParallelConfig& parallel, int64_t hidden, int64_t vocab,
                         int64_t padded_vocab) {
  LayerShards layer = start(parallel, hidden, {vocab});
  if (padded_vocab < vocab) {
    throw InputError("padded vocabulary",
                     fmt::format("{} is less than {} tokens", padded_vocab, vocab));
  }
  for (int64_t p = 0; p < parallel.tp_size; ++p) {
    const Range rows = part("padded vocabulary", padded_vocab, parallel.tp_size, p);
    layer.shards.push_back({{{0, parallel.max_lora_rank}, {0, hidden}, {rows}}});
  }
  return layer;
}

}  // namespace loratory::reference
