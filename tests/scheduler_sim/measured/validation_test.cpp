#include "scheduler_sim/measured/validation.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace loratory::sim {
namespace {

TEST(ErrorSummary, OfThreeRowsByHand) {
  const std::vector<ErrorRow> rows{{4, 110, 100}, {7, 60, 100}, {9, 102, 100}};
  const ErrorSummary e = errors_of(rows, /*is_in_ms=*/false);
  EXPECT_EQ(e.num_rows, 3);
  EXPECT_NEAR(e.mean_size, (0.1 + 0.4 + 0.02) / 3, 1e-12);
  EXPECT_NEAR(e.median_size, 0.1, 1e-12);
  EXPECT_NEAR(e.bias, (0.1 - 0.4 + 0.02) / 3, 1e-12);
  EXPECT_NEAR(e.worst, -0.4, 1e-12);
  EXPECT_EQ(e.worst_run, 7u);
}

TEST(ErrorSummary, OfFourRowsInMilliseconds) {
  const std::vector<ErrorRow> rows{{0, 55, 50}, {1, 40, 50}, {2, 51, 50}, {3, 47, 50}};
  const ErrorSummary e = errors_of(rows, /*is_in_ms=*/true);
  EXPECT_NEAR(e.mean_size, (5 + 10 + 1 + 3) / 4.0, 1e-12);
  EXPECT_NEAR(e.median_size, 4, 1e-12);
  EXPECT_NEAR(e.bias, (5 - 10 + 1 - 3) / 4.0, 1e-12);
  EXPECT_NEAR(e.worst, -10, 1e-12);
}

TEST(ErrorSummary, OfNothing) {
  const ErrorSummary e = errors_of({}, false);
  EXPECT_EQ(e.num_rows, 0);
  EXPECT_TRUE(std::isnan(e.mean_size));
}

struct Case {
  MeasuredRun run;
  PredictedRun predicted;
};

// A run of 100 + 100 tokens/s measured, unless a test says otherwise.
Case a_case(const char* model, const char* sweep, int64_t max_loras, double predicted_tps) {
  Case c;
  c.run.model = c.run.group = model;
  c.run.sweep = sweep;
  c.run.max_loras = max_loras;
  c.run.measured.input_tps = c.run.measured.output_tps = 100;
  c.run.measured.completed = 1000;
  c.predicted.num_seeds = 1;
  c.predicted.measures.kv_tokens = 5000;
  c.predicted.measures.input_tps = predicted_tps / 4;
  c.predicted.measures.output_tps = predicted_tps * 3 / 4;
  return c;
}

Validation validate(const std::vector<Case>& cases) {
  std::vector<MeasuredRun> runs;
  std::vector<PredictedRun> predicted;
  for (const Case& c : cases) {
    runs.push_back(c.run);
    predicted.push_back(c.predicted);
  }
  return validate(runs, predicted);
}

const ErrorSummary& ours(const GroupErrors& group, Quantity q) { return group.ours[size_t(q)]; }

TEST(Validation, GroupsByModelAndLeavesOutWhatWasSkipped) {
  std::vector<Case> cases{a_case("a", "", 4, 220), a_case("b", "", 4, 100), a_case("a", "", 8, 180),
                          a_case("b", "", 8, 1)};
  cases[3].predicted.skip = "a reason";
  cases[0].run.other.input_tps = cases[0].run.other.output_tps = 150;
  const Validation v = validate(cases);
  ASSERT_EQ(v.models.size(), 2u);
  EXPECT_EQ(v.all.num_runs, 3);
  EXPECT_EQ(v.models[0].name, "a");
  EXPECT_EQ(v.models[0].num_runs, 2);
  EXPECT_NEAR(ours(v.models[0], Quantity::throughput).mean_size, 0.1, 1e-12);
  EXPECT_NEAR(ours(v.models[0], Quantity::throughput).bias, 0, 1e-12);
  EXPECT_NEAR(ours(v.models[1], Quantity::throughput).worst, -0.5, 1e-12);
  EXPECT_EQ(ours(v.models[0], Quantity::completed).num_rows, 0);  // nothing was predicted
  EXPECT_EQ(v.models[0].other[size_t(Quantity::throughput)].num_rows, 1);
  EXPECT_NEAR(v.models[0].other[size_t(Quantity::throughput)].bias, 0.5, 1e-12);
}

TEST(Validation, TtftIsSplitAt200MsAndAtTheCapacity) {
  std::vector<Case> cases(4, a_case("a", "", 4, 200));
  const double measured[] = {50, 200, 1000, 1000}, predicted[] = {40, 230, 1100, 3000};
  for (size_t i = 0; i < 4; ++i) {
    cases[i].run.measured.mean_ttft_ms = measured[i];
    cases[i].predicted.measures.mean_ttft_ms = predicted[i];
  }
  cases[3].predicted.utilisation = 1.03;
  cases[2].predicted.utilisation = 1.031;
  cases[1].predicted.utilisation = 1.0;  // short: not critical
  const GroupErrors all = validate(cases).all;
  EXPECT_EQ(ours(all, Quantity::fast_ttft).num_rows, 2);
  EXPECT_NEAR(ours(all, Quantity::fast_ttft).mean_size, 20, 1e-12);
  EXPECT_EQ(ours(all, Quantity::slow_ttft).num_rows, 1);
  EXPECT_NEAR(ours(all, Quantity::slow_ttft).mean_size, 0.1, 1e-12);
  EXPECT_NEAR(ours(all, Quantity::all_slow_ttft).mean_size, (0.1 + 2) / 2, 1e-12);
  EXPECT_EQ(all.critical, std::vector<size_t>{3});
}

TEST(Validation, Starts) {
  std::vector<Case> cases(4, a_case("a", "", 4, 200));
  cases[0].run.measured = {};  // not known
  cases[1].predicted.measures.kv_tokens = 0;
  cases[2].run.measured.kv_tokens = 0;
  cases[3].run.measured = {};
  cases[3].run.measured.kv_tokens = 0;
  cases[3].predicted.measures.kv_tokens = 0;
  const GroupErrors all = validate(cases).all;
  EXPECT_EQ(all.num_starts_known, 3);
  EXPECT_EQ(all.wrong_starts, (std::vector<size_t>{1, 2}));
}

TEST(Validation, RegretOfTheChosenSlots) {
  std::vector<Case> cases{a_case("a", "s", 16, 300), a_case("a", "s", 8, 310),
                          a_case("a", "s", 4, 310),  a_case("a", "one", 4, 200),
                          a_case("a", "t", 4, 100),  a_case("a", "t", 8, 200)};
  cases[0].run.measured.input_tps = 150;  // 250 in all: the best
  cases[1].run.measured.input_tps = 125;  // 225
  cases[2].run.measured.input_tps = 105;  // 205, chosen: of equals that with fewer slots
  cases[0].run.other.input_tps = cases[0].run.other.output_tps = 9;
  cases[5].run.measured = {};
  cases[5].run.measured.kv_tokens = 0;  // chosen, and does not start
  const Validation v = validate(cases);
  ASSERT_EQ(v.choices.size(), 2u);
  EXPECT_EQ(v.choices[0].best, 0u);
  EXPECT_EQ(v.choices[0].ours.run, 2u);
  EXPECT_NEAR(v.choices[0].ours.regret, 1 - 205 / 250.0, 1e-12);
  EXPECT_EQ(v.choices[0].other.run, 0u);
  EXPECT_NEAR(v.choices[0].other.regret, 0, 1e-12);
  EXPECT_NEAR(v.choices[1].ours.regret, 1, 1e-12);
  EXPECT_FALSE(v.choices[1].other.is_made);
}

}  // namespace
}  // namespace loratory::sim
