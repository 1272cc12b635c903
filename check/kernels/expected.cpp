#include "check/kernels/expected.hpp"

#include <array>
#include <cmath>
#include <optional>

#include "check/kernels/one_row.hpp"
#include "check/kernels/reference_call.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/numerics/rows.hpp"
#include "reference/quantized/oracle.hpp"

namespace loratory::check {

using reference::Arithmetic;
using reference::ConstTensorView;
using reference::DeltaFacts;
using reference::IntermediateMode;
using reference::Oracle;

namespace {

Oracle facts_of(const OneRow& row) {
  const std::array<int32_t, 1> slots{0}, ranks{row.rank()};
  const std::array<float, 1> scalings{row.slice().scalings[row.pair()]};
  if (row.c().expands()) {
    return reference::expand_oracle({.h = OneRow::one(OneRow::one(row.h())),
                                     .slots = slots,
                                     .slices = {{OneRow::one(row.b()), ranks, scalings}},
                                     .add_inputs = row.c().add_inputs,
                                     .y = row.y()});
  }
  if (row.c().operation == LORATORY_OP_EMBEDDING) {
    const std::array<int64_t, 1> ids{row.step.token_ids[size_t(row.token())]};
    return reference::embedding_oracle(
        {.token_ids = ids,
         .slots = slots,
         .slice = {OneRow::one(row.a()), OneRow::one(row.b()), ranks, scalings, std::nullopt},
         .mode = {},
         .y = row.y()});
  }
  reference::LinearArgs args{.x = OneRow::one(row.x()),
                             .slots = slots,
                             .slices = {},
                             .offset_start = 0,
                             .add_inputs = row.c().add_inputs,
                             .mode = {},
                             .y = row.y()};
  args.slices.push_back(
      {OneRow::one(row.a()), OneRow::one(row.b()), ranks, scalings, std::nullopt});
  return linear_oracle(args);
}

struct Value {
  double exact, bound;
};

Value value_of(DeltaFacts facts, const OneRow& row, const Arithmetic& arithmetic) {
  if (!row.c().add_inputs) facts.base = 0;
  if (!row.step.router_weights.empty()) {  // one more product
    const double weight = row.step.router_weights[size_t(row.at.row)];
    facts.delta *= weight, facts.scaling *= weight;
    ++facts.num_in;
  }
  return {facts.result(), error_bound(facts, arithmetic)};
}

// h of one row and slice.
void add_shrunk(const OneRow& row, const Arithmetic& arithmetic, std::vector<double>& exact,
                std::vector<double>& bound) {
  const ConstTensorView x = row.x(), a = row.a();
  std::vector<double> x_row(size_t(x.size(0))), a_row(x_row.size());
  reference::load_elements<double>(x.dtype, x.data, x.strides[0], x_row);
  for (int64_t j = 0; j < row.rank(); ++j) {
    const ConstTensorView a_j = a[j];
    reference::load_elements<double>(a_j.dtype, a_j.data, a_j.strides[0], a_row);
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < x_row.size(); ++i) {
      const double product = x_row[i] * a_row[i];
      sum += product, magnitude += std::fabs(product);
    }
    exact.push_back(sum);
    bound.push_back(reference::shrink_error_bound(sum, magnitude, x.size(0), arithmetic));
  }
}

reference::StageOracle stage_oracle(const CaseData& data, const StepData& step,
                                    const Arithmetic& arithmetic) {
  const InHostMemory placed(data, step);
  const LoratoryLayer& layer = placed.layer();
  const LoratoryCall& call = placed.call();
  if (data.shape.shrinks()) return shrink_oracle(quantized_shrink_args(layer, call));
  if (data.shape.expands()) return expand_oracle(quantized_expand_args(layer, call));
  return linear_oracle(quantized_linear_args(layer, call), arithmetic);
}

// 8-bit weights: one oracle for the whole step.
void add_stages(const CaseData& data, const StepData& step, const std::vector<Stretch>& stretches,
                bool splits_h, const Arithmetic& declared, std::vector<double>& exact,
                std::vector<double>& bound) {
  const bool shrinks = data.shape.shrinks();
  reference::StageOracle oracle = stage_oracle(data, step, declared);
  Arithmetic arithmetic = declared;
  if (splits_h && !shrinks && !data.shape.has_quantized_activations()) {
    arithmetic.operand_rounding += reference::kSplitOfH;
    for (auto& facts : oracle.elements) {
      if (facts) facts->num_terms = 2 * facts->num_terms + 8;
    }
  }
  for (const Stretch& s : stretches) {
    const int64_t row = shrinks ? s.slice * step.num_tokens() + s.row : s.row;
    for (int64_t i = 0; i < s.count; ++i) {
      const reference::StageFacts& facts = *oracle.at(row, s.first + i);
      exact.push_back(facts.result());
      bound.push_back(error_bound(facts, arithmetic));
    }
  }
}

}  // namespace

Arithmetic arithmetic_of(const Case& c, const LoratoryClaims& claims) {
  Arithmetic out{.mode = c.mode,
                 .h = c.x,
                 .weight = c.weight,
                 .out = c.shrinks() ? c.h : c.y,
                 .unit = claims.unit > 0 ? claims.unit : 0x1p-24,
                 .operand_rounding = claims.operand_rounding,
                 .flushes_subnormals = (claims.abilities & LORATORY_FLUSHES_SUBNORMALS) != 0};
  // A column of an embedding is a number of B's dtype: to split it loses nothing.
  const bool is_split = c.mode.h == IntermediateMode::split2;
  if (c.operation == LORATORY_OP_EMBEDDING && is_split) out.mode.h = IntermediateMode::fp32;
  return out;
}

Expected::Expected(const CaseData& data, const StepData& step, const LoratoryClaims& claims,
                   bool with_bounds)
    : stretches_(data.covered(step)),
      index_(size_t(step.num_tokens() * data.shape.experts_per_token) * data.slices.size(), -1),
      num_slices_(int64_t(data.slices.size())) {
  for (size_t i = 0; i < stretches_.size(); ++i) {
    const Stretch& s = stretches_[i];
    index_[size_t(s.row * num_slices_ + s.slice)] = int32_t(i);
    begins_.push_back(num_values_);
    num_values_ += s.count;
  }
  const Case& c = data.shape;
  if (!with_bounds) return;
  const Arithmetic arithmetic = arithmetic_of(c, claims);
  if (c.is_quantized()) {
    const bool splits_h = (claims.abilities & LORATORY_SPLITS_H) != 0;
    add_stages(data, step, stretches_, splits_h, arithmetic, exact_, bound_);
    return;
  }
  for (const Stretch& s : stretches_) {
    const OneRow row{data, step, s};
    if (c.shrinks()) {
      add_shrunk(row, arithmetic, exact_, bound_);
      continue;
    }
    const Oracle oracle = facts_of(row);
    for (int64_t i = 0; i < s.count; ++i) {
      const Value value = value_of(*oracle.at(0, i), row, arithmetic);
      exact_.push_back(value.exact), bound_.push_back(value.bound);
    }
  }
}

int64_t Expected::find(int64_t row, int64_t slice) const {
  return index_[size_t(row * num_slices_ + slice)];
}

bool may_write_beyond_rank(const CaseData& data, const StepData& step, int64_t row, double value) {
  const Case& c = data.shape;
  const int64_t token = row / c.experts_per_token;
  if (data.beyond != BeyondRank::zeros || !c.shrinks() || step.active_slot(token) < 0) return false;
  if (c.has_experts() && step.experts[size_t(row)] < 0) return false;
  const bool x_is_nan = std::isnan(step.x->get(c.x_by_row ? row : token, 0));
  return value == 0 || (std::isnan(value) && x_is_nan);
}

}  // namespace loratory::check
