#include "gpu/engine/decode_graphs.hpp"

#include <algorithm>

namespace loratory::gpu {
namespace {

constexpr int32_t kFewFromRows = 8;
// Few adapters are one, or so many that each has 16 tokens, which fill half a segment of the
// kernels for them. Of many rows it also counts whether each fills one.
constexpr int32_t kTokensEach = 16, kSegment = 32, kManyRows = 65;
// Of few rows, eight adapters are few enough for shrinks on SMs that a product leaves idle.
constexpr int32_t kSomeAdapters = 8, kFewRows = 32;

std::vector<int32_t> buckets(int32_t most) {
  std::vector<int32_t> out;
  for (int32_t rows = 1; rows < most;) {
    out.push_back(rows);
    if (rows < 4)
      rows *= 2;
    else if (rows < 8)
      rows = 8;
    else
      rows += rows < 64 ? 8 : rows < 128 ? 16 : rows < 256 ? 32 : 64;
  }
  if (most > 0) out.push_back(most);
  return out;
}

}  // namespace

DecodeGraphs::DecodeGraphs(int64_t max_num_seqs, int32_t max_graph_rows, bool lora) {
  const auto most = int32_t(std::min<int64_t>(max_num_seqs, max_graph_rows));
  const std::vector<int32_t> rows = buckets(most);
  for (auto it = rows.rbegin(); it != rows.rend(); ++it) {
    if (lora) graphs_.push_back({*it, kAnyNumber});
    if (lora && *it > kSomeAdapters && *it <= kFewRows) graphs_.push_back({*it, kSomeAdapters});
    if (lora && *it >= kFewFromRows) graphs_.push_back({*it, std::max(1, *it / kTokensEach)});
    if (lora && *it >= kManyRows) graphs_.push_back({*it, *it / kSegment});
    graphs_.push_back({*it, 0});
  }
}

int64_t DecodeGraphs::find(const StepBatch& batch) const {
  if (batch.empty() || !batch.is_one_token_a_row()) return -1;
  int64_t best = -1;  // they descend
  for (size_t i = 0; i < graphs_.size(); ++i) {
    const Graph& g = graphs_[i];
    const bool fits = g.num_rows >= batch.shape().num_rows && g.max_adapters >= batch.num_adapters;
    if (fits && (g.max_adapters > 0) == batch.has_lora()) best = int64_t(i);
  }
  return best;
}

}  // namespace loratory::gpu
