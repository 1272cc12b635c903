#include "tests/gpu/support/layer_statistics.hpp"

#include <utility>

#include "reference/lora/oracle.hpp"

namespace loratory::gpu {

reference::Arithmetic kernel_arithmetic(const reference::LinearArgs& args, double unit) {
  reference::Arithmetic out = arithmetic_of(args);
  out.unit = unit;
  if (out.mode.h == reference::IntermediateMode::fp32) {
    out.mode.h = reference::IntermediateMode::split2;
  }
  return out;
}

LayerStatistics::LayerStatistics(const reference::LayerData& data,
                                 const reference::LayerBatch& batch, std::vector<int64_t> rows,
                                 double unit)
    : rows_(std::move(rows)) {
  reference::LayerBatch some = rows_of(batch, rows_);
  const reference::LinearArgs args = data.args(some);
  arithmetic_ = kernel_arithmetic(args, unit);
  models_ = delta_models(args, arithmetic_);
}

check::StatisticalVerdict LayerStatistics::judge(const reference::Tensor& y) const {
  check::StatisticalJudge judge(arithmetic_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (int64_t n = 0; n < models_.num_columns; ++n) {
      const auto& model = models_.at(int64_t(i), n);
      if (model) judge.add(models_.groups[i], *model, y.get(rows_[i], n), rows_[i], n);
    }
  }
  return judge.verdict();
}

}  // namespace loratory::gpu
