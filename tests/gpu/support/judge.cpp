#include "tests/gpu/support/judge.hpp"

#include <algorithm>

#include "reference/lora/oracle.hpp"
#include "tests/gpu/support/layer_statistics.hpp"

namespace loratory::gpu {

using reference::LayerBatch;
using reference::LayerData;
using reference::LinearArgs;
using reference::Tensor;

std::vector<int64_t> judged_rows(const LayerData& data, const LayerBatch& batch,
                                 int64_t num_products) {
  const reference::LayerCase& c = data.shape;
  const int64_t per_row =
      c.max_rank * (int64_t(data.slices.size()) * c.num_in + c.num_columns() - c.offset_start);
  const int64_t most = std::max<int64_t>(16, num_products / std::max<int64_t>(1, per_row));
  std::vector<int64_t> rows = reference::shuffled(batch.num_tokens(), c.seed);
  if (batch.num_tokens() > most) {
    rows.resize(size_t(most));
    rows[0] = 0, rows[1] = batch.num_tokens() - 1;
  }
  std::ranges::sort(rows);
  rows.erase(std::ranges::unique(rows).begin(), rows.end());
  return rows;
}

Bounds::Bounds(const LayerData& data, const LayerBatch& batch, double unit)
    : rows_(judged_rows(data, batch, int64_t(1) << 26)),
      num_columns_(batch.y.shape()[1]),
      out_(batch.y.dtype()),
      exact_(rows_.size() * size_t(num_columns_)),
      bound_(exact_.size()) {
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < rows_.size(); ++i) add_row(data, batch, i, unit);
}

void Bounds::add_row(const LayerData& data, const LayerBatch& batch, size_t i, double unit) {
  LayerBatch row = rows_of(batch, {rows_[i]});
  const LinearArgs args = data.args(row);
  const reference::Oracle oracle = linear_oracle(args);
  const reference::Arithmetic arithmetic = kernel_arithmetic(args, unit);
  for (int64_t n = 0; n < num_columns_; ++n) {
    const auto& facts = oracle.at(0, n);
    if (!facts) continue;
    const size_t at = i * size_t(num_columns_) + size_t(n);
    exact_[at] = facts->result();
    bound_[at] = reference::error_bound(*facts, arithmetic);
  }
}

Bounds::Verdict Bounds::judge(const Tensor& y) const {
  Verdict out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (int64_t n = 0; n < num_columns_; ++n) {
      const size_t at = i * size_t(num_columns_) + size_t(n);
      if (bound_[at] == 0) continue;
      const double ratio = reference::error_over(y.get(rows_[i], n), exact_[at], bound_[at], out_);
      ++out.num_results;
      if (ratio > out.worst) out.worst = ratio, out.row = rows_[i], out.column = n;
    }
  }
  return out;
}

Exact::Exact(const LayerData& data, const LayerBatch& batch)
    : rows_(judged_rows(data, batch, int64_t(1) << 28)), expected_(batch.y.dtype(), {0, 0}) {
  expected_ = data.run(rows_of(batch, rows_));
}

int64_t Exact::first_wrong_row(const Tensor& y) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!reference::same_row(y, rows_[i], expected_, int64_t(i))) return rows_[i];
  }
  return -1;
}

}  // namespace loratory::gpu
