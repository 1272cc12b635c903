#include "reference/lora/delta_model.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/numerics/matrix.hpp"
#include "reference/numerics/rows.hpp"

namespace loratory::reference {
namespace {

/// Roundings that happen with less than exp(-z²/2) are left out.
constexpr double kNever = 8;
/// Of the means of errors of several h: by how much of the largest one they may differ.
constexpr double kSpreadOfMean = 0.25;

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

double squared(double v) { return v * v; }

// Half of the step between a number of `dtype`, which may be 0, and the next one away from zero.
double half_step(Dtype dtype, double number) {
  const double relative = std::ldexp(unit_roundoff(dtype), std::ilogb(number));
  return std::max(relative, underflow_unit(dtype));
}

// What a computed h becomes: the rounded exact one, a step q, and how far from a tie it was.
struct Rounded {
  double value, step, distance;
};

Rounded rounded_to(Dtype dtype, double v) {
  const double value = round_to(dtype, v), half = half_step(dtype, v);
  return {value, 2 * half, half - std::fabs(v - value)};
}

Rounded split_in_two(Dtype dtype, double v) {
  const double hi = round_to(dtype, v);
  const Rounded lo = rounded_to(dtype, v - hi);
  return {hi + lo.value, lo.step, lo.distance};
}

// [rows][columns] of a tensor as [columns][rows].
std::vector<float> transposed(const ConstTensorView& view, int64_t num_rows, int64_t num_columns) {
  RowMajor matrix(num_rows, num_columns);
  for (int64_t i = 0; i < num_rows; ++i) {
    read_row(view, i, 0, std::span<float>(matrix.row(i).data(), size_t(num_columns)));
  }
  const RowMajor out = matrix.transpose();
  return {out.data(), out.data() + out.size()};
}

// Which slot and which input a row has.
template <typename Key>
std::vector<int64_t> groups_of(const std::vector<Key>& keys) {
  std::map<Key, int64_t> first;
  std::vector<int64_t> groups;
  for (const Key& key : keys)
    groups.push_back(first.emplace(key, int64_t(groups.size())).first->second);
  return groups;
}

std::vector<double> read_x(const ConstTensorView& x, int64_t row) {
  std::vector<double> out(size_t(x.size(1)));
  read_row(x, row, 0, std::span<double>(out));
  return out;
}

// FNV-1a of the bits, NaN or not.
uint64_t hash_of(const std::vector<double>& numbers) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const double v : numbers) hash = (hash ^ std::bit_cast<uint64_t>(v)) * 0x100000001B3;
  return hash;
}

DeltaModels empty_models(const ConstTensorView& y) {
  return {y.size(1), std::vector<std::optional<DeltaModel>>(size_t(y.size(0) * y.size(1))), {}};
}

void put(std::vector<DeltaModel> row_models, const ConstTensorView& y, bool reads_base, int64_t row,
         int64_t offset, DeltaModels& out) {
  for (size_t n = 0; n < row_models.size(); ++n) {
    const int64_t column = offset + int64_t(n);
    if (reads_base) row_models[n].base = y.get(row, column);
    out.elements[size_t(row * out.num_columns + column)] = row_models[n];
  }
}

}  // namespace

/// h of one row, in SoA.
struct SliceModel::RandomH {
  std::vector<double> value, partial;  // P² of its sum
  std::vector<RandomError> error;
  std::vector<double> operands;  // what rounded operands may do, the same way for all of them
  int64_t num_in = 0;
};

SliceModel::SliceModel(std::span<const float> a, std::span<const float> b, int64_t rank,
                       float scaling, const Arithmetic& arithmetic, std::optional<float> factor)
    : a_(a),
      rank_(rank),
      num_columns_(int64_t(b.size()) / rank),
      scaling_(scaling * double(factor.value_or(1))),
      has_factor_(factor.has_value()),
      arithmetic_(arithmetic),
      accumulators_(accumulators_of(arithmetic)),
      b_(b),
      sum_b_(size_t(num_columns_)) {
  if (arithmetic.mode.scale == ScaleMode::folded_b) fold(b, scaling, factor.value_or(1));
  for (size_t i = 0; i < b_.size(); ++i) sum_b_[i % sum_b_.size()] += std::fabs(double(b_[i]));
}

void SliceModel::fold(std::span<const float> b, float scaling, float factor) {
  doubtful_.resize(b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    const double product = double(scaling) * double(b[i]);
    const double once = round_to(arithmetic_.weight, product);
    folded_.push_back(float(once));
    doubtful_[i] = std::fabs(once - round_to(arithmetic_.weight, float(product)));
  }
  b_ = folded_;
  scaling_ = factor;
}

std::vector<DeltaModel> SliceModel::of_row(std::span<const double> x) const {
  LORATORY_ASSERT(a_.size() == x.size() * size_t(rank_), "x has the width of A");
  const SumFacts facts = sums_of_products(x, a_, rank_);
  RandomH h{facts.sum, facts.partial, {}, {}, facts.num_terms};
  const int64_t num_terms = facts.num_terms + arithmetic_.num_h_parts - 1;
  const double rounding = arithmetic_.operand_rounding;
  for (int64_t j = 0; j < rank_; ++j) {
    h.error.push_back(sum_error(facts, j, num_terms, accumulators_));
    h.operands.push_back(rounding *
                         (std::fabs(facts.sum[size_t(j)]) + std::sqrt(facts.squares[size_t(j)])));
  }
  round_h(h);
  return expand(h);
}

std::vector<DeltaModel> SliceModel::of_h(std::span<const double> h_star) const {
  const size_t r = h_star.size();
  LORATORY_ASSERT(int64_t(r) == rank_, "an h of the adapter's rank");
  RandomH h{{h_star.begin(), h_star.end()},
            std::vector<double>(r),
            std::vector<RandomError>(r),
            std::vector<double>(r),
            0};
  round_h(h);
  return expand(h);
}

void SliceModel::round_h(RandomH& h) const {
  for (size_t j = 0; j < h.value.size(); ++j) {
    round_one_h(h.value[j], h.partial[j], h.error[j]);
  }
}

// A computed h lies next to the exact one, so the rounded one is known, but for those near a tie:
// with probability exp(-z²/2) or less they go to the other side.
void SliceModel::round_one_h(double& value, double partial, RandomError& error) const {
  const Arithmetic& a = arithmetic_;
  const bool stored = a.mode.h == IntermediateMode::store_as_x;
  const Dtype kept = stored ? a.h : a.weight;
  if (a.mode.h == IntermediateMode::fp32 || kept == Dtype::f32) return;
  if (stored && a.num_h_parts > 1) {  // parts are rounded, and sums of them: in which order?
    const double num_roundings = double(a.num_h_parts + 1);
    error.variance +=
        num_roundings * (squared(unit_roundoff(kept)) * partial + squared(underflow_unit(kept)));
    return;
  }
  if (a.mode.h == IntermediateMode::split2) {
    // The two parts may be those of scaling·h: any rounding of lo, of the largest lo that h can
    // have.
    const Rounded r = split_in_two(kept, value);
    const double largest_step = squared(unit_roundoff(kept)) * std::fabs(value);
    value = r.value;
    error.variance += squared(std::max(r.step, largest_step));
    return;
  }
  if (has_factor_) {  // which number is rounded?
    error.variance += squared(half_step(kept, value));
    return;
  }
  const bool exact = error.mean == 0 && error.variance == 0;
  const Rounded r = rounded_to(kept, value);
  value = r.value;
  const double deviation = std::sqrt(error.variance);
  const double beyond = std::max(0.0, r.distance - std::fabs(error.mean));
  if (exact || beyond > kNever * deviation) {
    error.variance = 0;  // gone with the rounding
  } else {
    const double z = deviation == 0 ? 0 : beyond / deviation;
    const bool is_wide = std::fabs(error.mean) + deviation > r.step;
    error.variance = (is_wide ? error.variance : 0) + squared(r.step) / (1 + z * z);
  }
  // The mean stays: of many h, as many more cross a tie in its direction as make it up.
}

std::vector<DeltaModel> SliceModel::expand(const RandomH& h) const {
  using Vector = Eigen::VectorXd;
  const Eigen::Map<const RowMajor> b(b_.data(), rank_, num_columns_);
  const SumFacts facts = sums_of_products(h.value, b_, num_columns_);
  Vector shared(rank_), own(rank_), operands(rank_), magnitude(rank_);
  for (int64_t j = 0; j < rank_; ++j) {
    const auto at = size_t(j);
    shared(j) = h.error[at].mean;
    own(j) = h.error[at].variance + squared(kSpreadOfMean * h.error[at].mean);
    operands(j) = h.operands[at];
    magnitude(j) = std::fabs(h.value[at]);
  }
  const Eigen::MatrixXd columns = b.cast<double>().transpose();
  const Vector of_shared = columns * shared, of_own = columns.cwiseAbs2() * own,
               of_operands = columns.cwiseAbs() * operands;
  Vector doubt = Vector::Zero(num_columns_);
  if (!doubtful_.empty()) {
    doubt =
        Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
            doubtful_.data(), rank_, num_columns_)
            .transpose() *
        magnitude;
  }
  const double s = std::fabs(scaling_), u = 0x1p-24;
  const int64_t num_terms = arithmetic_.mode.h == IntermediateMode::split2 ? 2 * rank_ : rank_;
  const double smallest = lost_below_normal(arithmetic_);
  std::vector<DeltaModel> out(static_cast<size_t>(num_columns_));
  for (int64_t n = 0; n < num_columns_; ++n) {
    const auto at = size_t(n);
    const RandomError sum = sum_error(facts, n, num_terms, accumulators_);
    const double rounded_operands =
        of_operands(n) + arithmetic_.operand_rounding * std::sqrt(facts.squares[at]);
    const double scaled =
        squared((has_factor_ ? 4 : 2) * u) * (squared(facts.sum[at]) + facts.squares[at]);
    out[at].delta = scaling_ * facts.sum[at];
    out[at].mean =
        s * (std::fabs(of_shared(n)) + std::fabs(sum.mean) + doubt(n)) +
        smallest * (1 + std::max(1.0, s) * double(num_terms) + s * double(h.num_in) * sum_b_[at]);
    out[at].deviation =
        s * std::sqrt(of_own(n) + sum.variance + scaled + squared(rounded_operands));
  }
  return out;
}

DeltaModels delta_models(const LinearArgs& args, const Arithmetic& arithmetic,
                         std::optional<float> factor) {
  DeltaModels out = empty_models(args.y);
  std::vector<std::pair<int32_t, uint64_t>> keys;
  std::map<int32_t, std::vector<int64_t>> rows_of;
  for (size_t t = 0; t < args.slots.size(); ++t) {
    const int32_t slot = args.slots[t];
    keys.emplace_back(slot, hash_of(read_x(args.x, int64_t(t))));
    if (slot != kBaseSlot) rows_of[slot].push_back(int64_t(t));
  }
  out.groups = groups_of(keys);
  int64_t offset = args.offset_start;
  for (const LoraSlice& slice : args.slices) {
    for (const auto& of_slot : rows_of) {  // no binding: clang 14 has none in a parallel region
      const int32_t slot = of_slot.first;
      const std::vector<int64_t>& rows = of_slot.second;
      if (slice.ranks[size_t(slot)] == 0) continue;
      const int64_t rank = slice.ranks[size_t(slot)];
      const std::vector<float> a = transposed(slice.a[slot], rank, args.x.size(1));
      const std::vector<float> b = transposed(slice.b[slot], slice.b.size(1), rank);
      const SliceModel model(a, b, rank, slice.scalings[size_t(slot)], arithmetic, factor);
      const int64_t products = int64_t(rows.size() * (a.size() + b.size()));
#pragma omp parallel for schedule(dynamic) if (products >= kMinParallelProducts)
      for (size_t i = 0; i < rows.size(); ++i) {
        const std::vector<double> x = read_x(args.x, rows[i]);
        put(model.of_row(x), args.y, args.add_inputs, rows[i], offset, out);
      }
    }
    offset += slice.b.size(1);
  }
  return out;
}

DeltaModels delta_models(const EmbeddingArgs& args, const Arithmetic& arithmetic) {
  DeltaModels out = empty_models(args.y);
  std::vector<std::pair<int32_t, int64_t>> keys;
  for (size_t t = 0; t < args.slots.size(); ++t)
    keys.emplace_back(args.slots[t], args.token_ids[t]);
  out.groups = groups_of(keys);
  for (size_t t = 0; t < keys.size(); ++t) {
    const auto [slot, id] = keys[t];
    if (slot == kBaseSlot || args.slice.ranks[size_t(slot)] == 0) continue;
    const int64_t rank = args.slice.ranks[size_t(slot)];
    const std::vector<float> b = transposed(args.slice.b[slot], args.slice.b.size(1), rank);
    std::vector<double> h;
    for (int64_t j = 0; j < rank; ++j) h.push_back(args.slice.a[slot].get(j, id));
    const SliceModel model({}, b, rank, args.slice.scalings[size_t(slot)], arithmetic);
    put(model.of_h(h), args.y, true, int64_t(t), 0, out);
  }
  return out;
}

DeltaModels delta_models(const ShrinkArgs& args, const Arithmetic& arithmetic) {
  const int64_t num_tokens = args.x.size(0), width = args.h.size(2);
  const Accumulators accumulators = accumulators_of(arithmetic);
  const double smallest = lost_below_normal(arithmetic);
  DeltaModels out{width, {}, {}};
  out.elements.resize(args.slices.size() * size_t(num_tokens * width));
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ShrinkSlice& slice = args.slices[i];
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = args.slots[size_t(t)];
      const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
      out.groups.push_back(t);
      if (rank == 0) continue;
      const std::vector<double> x = read_x(args.x, t);
      const SumFacts facts =
          sums_of_products(x, transposed(slice.a[slot], rank, int64_t(x.size())), rank);
      for (int64_t j = 0; j < rank; ++j) {
        const auto at = size_t(j);
        const RandomError error = sum_error(facts, j, facts.num_terms, accumulators);
        const double operands =
            arithmetic.operand_rounding * (std::fabs(facts.sum[at]) + std::sqrt(facts.squares[at]));
        out.elements[size_t((int64_t(i) * num_tokens + t) * width + j)] =
            DeltaModel{.base = 0,
                       .delta = facts.sum[at],
                       .mean = std::fabs(error.mean) + smallest * double(facts.num_terms),
                       .deviation = std::sqrt(error.variance + squared(operands))};
      }
    }
  }
  return out;
}

DeltaModels delta_models(const ExpandArgs& args, const Arithmetic& declared,
                         std::optional<float> factor) {
  DeltaModels out = empty_models(args.y);
  Arithmetic arithmetic = declared;
  if (declared.mode.h == IntermediateMode::store_as_x) arithmetic.mode.h = IntermediateMode::fp32;
  for (size_t t = 0; t < args.slots.size(); ++t) out.groups.push_back(int64_t(t));
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpandSlice& slice = args.slices[i];
    for (size_t t = 0; t < args.slots.size(); ++t) {
      const int32_t slot = args.slots[t];
      const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
      if (rank == 0) continue;
      std::vector<double> h;
      for (int64_t j = 0; j < rank; ++j) h.push_back(args.h.get(int64_t(i), int64_t(t), j));
      const std::vector<float> b = transposed(slice.b[slot], slice.b.size(1), rank);
      const SliceModel model({}, b, rank, slice.scalings[size_t(slot)], arithmetic, factor);
      put(model.of_h(h), args.y, args.add_inputs, int64_t(t), offset, out);
    }
    offset += slice.b.size(1);
  }
  return out;
}

}  // namespace loratory::reference
