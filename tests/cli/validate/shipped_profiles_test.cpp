// The profiles that loratory ships against the runs that they were fitted to, every second one: no
// further off than their cross-validated errors say (docs/fidelity.md has all of them).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "cli/measured_engine.hpp"
#include "scheduler_sim/cost/step_profile.hpp"
#include "scheduler_sim/measured/measured_table.hpp"
#include "scheduler_sim/measured/predict_runs.hpp"
#include "scheduler_sim/measured/validation.hpp"
#include "tests/scheduler_sim/measured_data.hpp"

namespace loratory::cli {
namespace {

class ShippedProfiles : public testing::TestWithParam<const char*> {};

TEST_P(ShippedProfiles, AreNoFurtherOffThanTheySay) {
  const auto file = sim::reference_folder() / "agullo_vllm085_multilora_sweep_measured_vs_dt.csv";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  const sim::StepProfile profile = sim::read_step_profile(GetParam());
  std::vector<sim::MeasuredRun> runs;
  int64_t num_of_model = 0;
  for (const sim::MeasuredRun& run : sim::read_measured_runs(file.string()).runs) {
    if (run.model == profile.model && num_of_model++ % 2 == 0) runs.push_back(run);
  }
  const auto predicted = sim::predict_runs(
      runs, [](const sim::MeasuredRun& run) { return engine_of_run(run, GetParam()); },
      profile.server, {});
  const sim::GroupErrors errors = sim::validate(runs, predicted).all;
  const auto of = [&](sim::Quantity quantity) { return errors.ours[size_t(quantity)]; };
  const sim::ErrorSummary throughput = of(sim::Quantity::throughput);
  fmt::print(
      "{}: {} of {} runs; throughput {:.2f} %, completed {:.2f} %, ITL {:.2f} %, TTFT over "
      "200 ms {:.2f} %, under {:.2f} ms\n",
      GetParam(), throughput.num_rows, num_of_model, 100 * throughput.mean_size,
      100 * of(sim::Quantity::completed).mean_size, 100 * of(sim::Quantity::itl).mean_size,
      100 * of(sim::Quantity::slow_ttft).median_size, of(sim::Quantity::fast_ttft).median_size);
  const sim::ExpectedError& expected = profile.expected_error;
  EXPECT_GE(throughput.num_rows, 35);
  // Errors of runs spread about as far as their mean, so the mean of n of them has a standard
  // error of 1 / sqrt(n) of it.
  const double sampling = 1 + 1 / std::sqrt(double(throughput.num_rows));
  EXPECT_LE(throughput.mean_size, expected.throughput * sampling);
  EXPECT_LE(of(sim::Quantity::itl).mean_size, expected.itl * sampling);
  // The median of half of the runs is another one; docs/fidelity.md has both below 5 %.
  EXPECT_LE(of(sim::Quantity::slow_ttft).median_size, 0.05);
  EXPECT_LE(of(sim::Quantity::completed).mean_size, 0.02);
  EXPECT_TRUE(errors.wrong_starts.empty());
}

INSTANTIATE_TEST_SUITE_P(Fidelity, ShippedProfiles,
                         testing::Values("vllm-0.8/llama-3.1-8b", "vllm-0.8/qwen2.5-7b"));

}  // namespace
}  // namespace loratory::cli
