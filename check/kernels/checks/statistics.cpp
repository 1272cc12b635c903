#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "check/kernels/checks/checks.hpp"
#include "check/kernels/one_row.hpp"
#include "check/kernels/reference_call.hpp"
#include "check/statistics/statistical_judge.hpp"
#include "reference/quantized/oracle.hpp"
#include "reference/quantized/stage_model.hpp"

namespace loratory::check {

namespace {

using reference::Arithmetic;
using reference::ConstTensorView;
using reference::DeltaModel;
using reference::DeltaModels;

// What a row of the output is computed from: rows that have the same of it err alike.
struct Input {
  int32_t slot, expert;
  std::string numbers;

  friend auto operator<=>(const Input&, const Input&) = default;
};

std::string bits_of(const ConstTensorView& row) {
  std::string out;
  const size_t size = size_bytes(row.dtype);
  for (int64_t i = 0; i < row.size(0); ++i) {
    out.append(reinterpret_cast<const char*>(row.address(i)), size);
  }
  return out;
}

// An expand has an h for each slice, which come from one x.
Input input_of(const OneRow& row) {
  const Case& c = row.c();
  std::string numbers = c.operation == LORATORY_OP_EMBEDDING
                            ? std::to_string(row.step.token_ids[size_t(row.token())])
                        : c.expands() ? std::to_string(row.token())
                                      : bits_of(row.x());
  return {row.at.slot, row.at.expert, std::move(numbers)};
}

DeltaModels models_of(const OneRow& row, const Arithmetic& arithmetic) {
  const Case& c = row.c();
  const std::array<int32_t, 1> slots{0}, ranks{row.rank()};
  const std::array<float, 1> scalings{row.slice().scalings[row.pair()]};
  if (c.shrinks()) {
    reference::Tensor h(c.h, {1, 1, row.rank()});
    return delta_models(
        reference::ShrinkArgs{
            OneRow::one(row.x()), slots, {{OneRow::one(row.a()), ranks}}, h.view()},
        arithmetic);
  }
  const ConstTensorView b = OneRow::one(row.b());
  std::optional<float> router_weight;
  if (!row.step.router_weights.empty()) {
    router_weight = row.step.router_weights[size_t(row.at.row)];
  }
  if (c.expands()) {
    return delta_models(reference::ExpandArgs{.h = OneRow::one(OneRow::one(row.h())),
                                              .slots = slots,
                                              .slices = {{b, ranks, scalings}},
                                              .add_inputs = c.add_inputs,
                                              .y = row.y()},
                        arithmetic, router_weight);
  }
  const reference::LoraSlice slice{OneRow::one(row.a()), b, ranks, scalings, std::nullopt};
  if (c.operation == LORATORY_OP_EMBEDDING) {
    const std::array<int64_t, 1> ids{row.step.token_ids[size_t(row.token())]};
    return delta_models(
        reference::EmbeddingArgs{.token_ids = ids, .slots = slots, .slice = slice, .y = row.y()},
        arithmetic);
  }
  return delta_models(reference::LinearArgs{.x = OneRow::one(row.x()),
                                            .slots = slots,
                                            .slices = {slice},
                                            .add_inputs = c.add_inputs,
                                            .y = row.y()},
                      arithmetic, router_weight);
}

// The elements of a case with their models, one stretch after the other.
class Judged {
 public:
  Judged(const CaseRun::Variant& v, const Arithmetic& arithmetic)
      : variant_(v), arithmetic_(arithmetic), judge_(arithmetic) {}

  void add_row_by_row() {
    for (const Stretch& s : variant_.expected.stretches()) {
      const OneRow row{variant_.data, variant_.data.step, s};
      const DeltaModels models = models_of(row, arithmetic_);
      const auto first = inputs_.emplace(input_of(row), int64_t(inputs_.size())).first;
      for (int64_t i = 0; i < s.count; ++i) add(first->second, *models.at(0, i), s, i);
    }
  }

  // 8-bit weights: one model for the whole step.
  void add_stages(bool splits_h) {
    const StepData& step = variant_.data.step;
    const InHostMemory placed(variant_.data, step);
    const bool shrinks = variant_.data.shape.shrinks();
    const DeltaModels models = models_of_step(placed, splits_h);
    for (const Stretch& s : variant_.expected.stretches()) {
      const int64_t row = shrinks ? s.slice * step.num_tokens() + s.row : s.row;
      for (int64_t i = 0; i < s.count; ++i) {
        const auto& model = models.at(row, s.first + i);
        if (model) add(models.groups[size_t(row)], *model, s, i);
      }
    }
  }

  StatisticalVerdict verdict() const { return judge_.verdict(); }

 private:
  DeltaModels models_of_step(const InHostMemory& placed, bool splits_h) const {
    const LoratoryLayer& layer = placed.layer();
    const LoratoryCall& call = placed.call();
    const Case& c = variant_.data.shape;
    if (c.shrinks()) return stage_models(quantized_shrink_args(layer, call), arithmetic_);
    if (c.is_linear()) {
      return stage_models(quantized_linear_args(layer, call), arithmetic_, splits_h);
    }
    Arithmetic of_expand = arithmetic_;
    if (splits_h) of_expand.operand_rounding += reference::kSplitOfH;
    return stage_models(quantized_expand_args(layer, call), of_expand, splits_h);
  }

  const CaseRun::Variant& variant_;
  Arithmetic arithmetic_;
  StatisticalJudge judge_;
  std::map<Input, int64_t> inputs_;

  void add(int64_t group, const DeltaModel& model, const Stretch& s, int64_t i) {
    const reference::Tensor& after = variant_.outcome.output;
    const size_t at = size_t(s.element + i) * size_bytes(after.dtype());
    const double got = reference::load(after.dtype(), after.bytes().data() + at);
    judge_.add(group, model, got, s.row, s.first + i);
  }
};

}  // namespace

void look_at_statistics(CaseRun& run) {
  const Case& c = run.shape();
  const CaseRun::Variant& v = run.plain();
  Arithmetic arithmetic = arithmetic_of(c, run.kernel().claims());
  // h of a shrink is rounded once; of 8-bit stages the mode says only how delta meets base.
  if (c.shrinks()) arithmetic.mode.sum = reference::SumMode::one_round;
  if (c.is_quantized()) arithmetic.mode.h = reference::IntermediateMode::fp32;
  const bool splits_h = (run.kernel().claims().abilities & LORATORY_SPLITS_H) != 0 &&
                        !c.shrinks() && !c.has_quantized_activations();
  Judged judged(v, arithmetic);
  if (c.is_quantized()) {
    judged.add_stages(splits_h);
  } else {
    judged.add_row_by_row();
  }
  const StatisticalVerdict verdict = judged.verdict();
  Tally& tally = run.tally("statistics");
  tally.num_comparisons += verdict.num_elements;
  if (verdict.worst.threshold > 0) {
    tally.worst = std::max(tally.worst, verdict.worst.statistic / verdict.worst.threshold);
  }
  if (!verdict.ok) run.fail("statistics", verdict.in_words());
}

}  // namespace loratory::check
