#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "check/statistics/delta_excess.hpp"

// Whether the errors of a case are those of its declared arithmetic, as random numbers. The
// worst-case bound (reference/numerics/error_bound.hpp) must allow that all roundings point one
// way; this one knows how rarely they do, and sees faults that the bound has room for.
// docs/error_bounds.md derives the thresholds ("Errors as random numbers") and says what they see.

namespace loratory::check {

/// One of the tests of a case.
struct StatisticalTest {
  std::string name;      ///< "tail", "rms", "bias along delta", "bias along y", "bias"
  double statistic = 0;  ///< in deviations of the model
  double threshold = 0;  ///< a right implementation exceeds it with its share of the level
  bool ok() const { return statistic <= threshold; }
};

struct StatisticalVerdict {
  bool ok = true;
  /// The test that exceeds its threshold by the largest factor; of none, that closest to it.
  StatisticalTest worst;
  std::vector<StatisticalTest> tests;
  int64_t num_elements = 0;       ///< judged
  int64_t num_informative = 0;    ///< where an error of one deviation could have been seen
  int64_t num_groups = 0;         ///< rows that err independently, with an informative element
  int64_t row = -1, column = -1;  ///< of the largest error, in deviations

  /// One line: which test, statistic, threshold, where.
  std::string in_words() const;
};

/// Judges one case. Elements may come in any order.
class StatisticalJudge {
 public:
  /// level: probability at most with which a right implementation fails a case, all tests together.
  /// Of many cases, divide: 1e-3 in a million cases is the default.
  explicit StatisticalJudge(const reference::Arithmetic& arithmetic, double level = 1e-9);

  /// Errors of different groups are independent, of one they need not be (DeltaModels::groups).
  /// row and column only name the element.
  void add(int64_t group, const reference::DeltaModel& model, double got, int64_t row = -1,
           int64_t column = -1);

  StatisticalVerdict verdict() const;

 private:
  struct Group {
    double num_elements = 0, squares = 0, along_delta = 0, along_y = 0, sum = 0, mean = 0;
  };

  ResultRounding rounding_;
  double level_;
  int64_t num_elements_ = 0, num_informative_ = 0, row_ = -1, column_ = -1;
  double largest_ = 0;
  std::map<int64_t, Group> groups_;
};

/// The elements of `y` against their models.
StatisticalVerdict judge_statistics(const reference::DeltaModels& models,
                                    const reference::Arithmetic& arithmetic,
                                    const reference::ConstTensorView& y, double level = 1e-9);

}  // namespace loratory::check
