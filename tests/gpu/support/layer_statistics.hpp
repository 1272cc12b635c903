#pragma once

#include <vector>

#include "check/statistics/statistical_judge.hpp"
#include "fuzz/support/layer_case.hpp"

namespace loratory::gpu {

/// How the kernels compute these arguments: h stays in two parts where the mode keeps it in fp32.
/// unit: of one product or sum in the kernel's accumulators.
reference::Arithmetic kernel_arithmetic(const reference::LinearArgs& args, double unit);

/// The errors of some rows of a batch as random numbers, computed once for several results.
class LayerStatistics {
 public:
  LayerStatistics(const reference::LayerData& data, const reference::LayerBatch& batch,
                  std::vector<int64_t> rows, double unit);

  /// y has all rows of the batch.
  check::StatisticalVerdict judge(const reference::Tensor& y) const;

 private:
  std::vector<int64_t> rows_;
  reference::Arithmetic arithmetic_;
  reference::DeltaModels models_;  ///< of rows_ alone
};

}  // namespace loratory::gpu
