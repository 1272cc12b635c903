#include "scheduler_sim/cost/split_attention.hpp"

#include <algorithm>

#include "reference/base/integers.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kMultiprocessors = 132;  // H100, H200
constexpr int64_t kQueriesOfNarrowTile = 64, kQueriesOfTile = 128;
constexpr int64_t kKeysOfTile = 128, kMostSplits = 128;
constexpr int64_t kMostRows = 992;  // above, the rows are not looked at one by one
constexpr int64_t kCombinedRows = 8;

// Of the multiprocessors' turns that `tiles` take, the share that is not idle. In float, as there,
// for the sake of ties.
float efficiency(int64_t tiles) {
  const float turns = float(tiles) / float(kMultiprocessors);
  return turns / float(ceil_div(tiles, kMultiprocessors));
}

}  // namespace

int64_t num_kv_splits(const AttentionCall& call) {
  const int64_t queries = call.longest_query * (call.heads / call.kv_heads);
  int64_t tiles = call.kv_heads * ceil_div<int64_t>(queries, queries <= kQueriesOfNarrowTile
                                                                 ? kQueriesOfNarrowTile
                                                                 : kQueriesOfTile);
  if (call.rows > kMostRows) tiles *= call.rows;
  const int64_t blocks = ceil_div(call.longest_context, kKeysOfTile);
  if (double(tiles) >= 0.8 * double(kMultiprocessors) || blocks <= 4) return 1;
  const int64_t most = std::min({kMostSplits, kMultiprocessors, blocks});
  float best = 0;
  for (int64_t splits = 1; splits <= most; ++splits) {
    best = std::max(best, efficiency(tiles * splits));
  }
  int64_t splits = 1;
  while (efficiency(tiles * splits) < 0.85 * best) ++splits;
  return splits;
}

bool has_wide_tiles(const AttentionCall& call) {
  if (call.longest_query > kQueriesOfNarrowTile) return true;
  const int64_t packed = call.longest_query * (call.heads / call.kv_heads);
  return packed > kQueriesOfNarrowTile && num_kv_splits(call) > 1;
}

int64_t combine_blocks(const AttentionCall& call) {
  if (num_kv_splits(call) == 1) return 0;
  return ceil_div(call.longest_query * call.heads, kCombinedRows) * call.rows;
}

}  // namespace loratory::sim
