#pragma once

#include <vector>

#include "fuzz/support/layer_case.hpp"
#include "reference/numerics/error_bound.hpp"

// What a result should be. Of large batches some rows are judged, the first and the last among
// them: the other rows are held by the bits they share with a row alone (P7).

namespace loratory::gpu {

/// All rows, or as many as `num_products` allow, at least 16.
std::vector<int64_t> judged_rows(const reference::LayerData& data,
                                 const reference::LayerBatch& batch, int64_t num_products);

/// The float64 oracle and the bound of a kernel, computed once for several results.
class Bounds {
 public:
  /// unit: of one product or sum in the kernel's accumulators.
  Bounds(const reference::LayerData& data, const reference::LayerBatch& batch, double unit);

  struct Verdict {
    int64_t num_results = 0;
    double worst = 0;  ///< error / bound
    int64_t row = -1, column = -1;
  };
  Verdict judge(const reference::Tensor& y) const;

 private:
  std::vector<int64_t> rows_;
  int64_t num_columns_ = 0;
  reference::Dtype out_;
  std::vector<double> exact_, bound_;  // [row][column]; not covered: bound 0

  void add_row(const reference::LayerData& data, const reference::LayerBatch& batch, size_t i,
               double unit);
};

/// Whether the judged rows have the bits of the reference.
class Exact {
 public:
  Exact(const reference::LayerData& data, const reference::LayerBatch& batch);
  /// The first row that differs, or -1.
  int64_t first_wrong_row(const reference::Tensor& y) const;
  int64_t num_results() const { return int64_t(rows_.size()) * expected_.shape()[1]; }

 private:
  std::vector<int64_t> rows_;
  reference::Tensor expected_;
};

}  // namespace loratory::gpu
