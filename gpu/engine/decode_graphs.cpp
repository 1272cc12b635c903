#include "gpu/engine/decode_graphs.hpp"

#include <algorithm>

namespace loratory::gpu {
namespace {

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
    graphs_.push_back({*it, false});
    if (lora) graphs_.push_back({*it, true});
  }
}

int64_t DecodeGraphs::find(const StepBatch& batch) const {
  if (batch.empty() || !batch.is_one_token_a_row()) return -1;
  int64_t best = -1;  // they descend
  for (size_t i = 0; i < graphs_.size(); ++i) {
    const bool fits = graphs_[i].num_rows >= batch.shape().num_rows;
    if (fits && graphs_[i].lora == batch.has_lora) best = int64_t(i);
  }
  return best;
}

}  // namespace loratory::gpu
