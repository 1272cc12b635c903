#include "check/statistics/statistical_judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace loratory::check {
namespace {

using reference::DeltaModel;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNumTests = 3;
constexpr double kNumDirections = 3;
/// Of the mean of an error seen through a rounding, in deviations: where y* lies between two ties
/// may let errors of one sign show and hide the others.
constexpr double kMeanOfSeen = 0.5;

// P(any of `count` sub-Gaussian errors beyond z, on either side) <= level.
double tail_threshold(double count, double level) {
  return std::sqrt(2 * std::log(2 * count / level));
}

// P(mean of the squares of `count` independent sub-Gaussian numbers > q) <=
// exp(-count/2·(q - 1 - ln q)), as for those of normal numbers.
double mean_square_threshold(double count, double level) {
  const double needed = 2 * std::log(1 / level) / count;
  double low = 1, high = 2 + 2 * needed;
  for (int i = 0; i < 60; ++i) {
    const double q = (low + high) / 2;
    (q - 1 - std::log(q) < needed ? low : high) = q;
  }
  return high;
}

double sign_of(double v) { return v > 0 ? 1 : v < 0 ? -1 : 0; }

}  // namespace

StatisticalJudge::StatisticalJudge(const reference::Arithmetic& arithmetic, double level)
    : rounding_(arithmetic), level_(level) {}

void StatisticalJudge::add(int64_t group, const DeltaModel& model, double got, int64_t row,
                           int64_t column) {
  const double y = model.result();
  // An fp32 sum in front of a coarser rounding may decide a tie.
  const double mean =
      model.mean + (rounding_.out() == reference::Dtype::f32 ? 0 : 0x1p-24 * std::fabs(y));
  const double reach = mean + 8 * model.deviation;
  if (!(std::fabs(y) + reach < reference::largest_finite(rounding_.out()))) return;
  ++num_elements_;
  const double deviation = std::max(model.deviation, 0x1p-140);
  const double e = rounding_.excess(model, got, deviation / 64);
  const double size = std::isnan(got) ? kInfinity : std::max(0.0, std::fabs(e) - mean) / deviation;
  if (size > largest_ || row_ < 0)
    largest_ = std::max(largest_, size), row_ = row, column_ = column;

  const double visible = mean + deviation;
  if (rounding_(model.base, model.delta - visible) ==
      rounding_(model.base, model.delta + visible)) {
    return;
  }
  ++num_informative_;
  Group& g = groups_[group];
  g.num_elements += 1, g.squares += size * size, g.mean += mean / deviation;
  g.along_delta += sign_of(model.delta) * e / deviation;
  g.along_y += sign_of(y) * e / deviation;
  g.sum += e / deviation;
}

StatisticalVerdict StatisticalJudge::verdict() const {
  StatisticalVerdict out{.worst = {},
                         .tests = {},
                         .num_elements = num_elements_,
                         .num_informative = num_informative_,
                         .num_groups = int64_t(groups_.size()),
                         .row = row_,
                         .column = column_};
  const double each = level_ / kNumTests, count = std::max<double>(1, double(num_elements_));
  out.tests.push_back({"tail", largest_, tail_threshold(count, each)});
  if (!groups_.empty()) {
    Group mean;  // of the means of the groups
    const auto num_groups = double(groups_.size());
    for (const auto& [id, g] : groups_) {
      const double share = 1 / (g.num_elements * num_groups);
      mean.squares += share * g.squares, mean.mean += share * g.mean, mean.sum += share * g.sum;
      mean.along_delta += share * g.along_delta, mean.along_y += share * g.along_y;
    }
    out.tests.push_back(
        {"rms", std::sqrt(mean.squares), std::sqrt(mean_square_threshold(num_groups, each))});
    const double z = tail_threshold(kNumDirections, each);
    const double limit = mean.mean + kMeanOfSeen + std::sqrt(2 / num_groups) * z;
    out.tests.push_back({"bias along delta", std::fabs(mean.along_delta), limit});
    out.tests.push_back({"bias along y", std::fabs(mean.along_y), limit});
    out.tests.push_back({"bias", std::fabs(mean.sum), limit});
  }
  const auto over = [](const StatisticalTest& t) { return t.statistic / t.threshold; };
  out.worst = *std::ranges::max_element(out.tests, {}, over);
  out.ok = std::ranges::all_of(out.tests, &StatisticalTest::ok);
  return out;
}

std::string StatisticalVerdict::in_words() const {
  return fmt::format(
      "{} {:.3g} deviations, {} {:.3g}; {} elements, {} informative, {} rows{}", worst.name,
      worst.statistic, ok ? "within" : "beyond", worst.threshold, num_elements, num_informative,
      num_groups, row < 0 ? "" : fmt::format(", largest error in row {} column {}", row, column));
}

StatisticalVerdict judge_statistics(const reference::DeltaModels& models,
                                    const reference::Arithmetic& arithmetic,
                                    const reference::ConstTensorView& y, double level) {
  StatisticalJudge judge(arithmetic, level);
  for (size_t row = 0; row < models.groups.size(); ++row) {
    const auto t = int64_t(row);
    for (int64_t n = 0; n < models.num_columns; ++n) {
      const auto& model = models.at(t, n);
      if (model) judge.add(models.groups[row], *model, y.get(t, n), t, n);
    }
  }
  return judge.verdict();
}

}  // namespace loratory::check
