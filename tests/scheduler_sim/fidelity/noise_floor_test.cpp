// How far two runs of one server are apart that should be alike: what no prediction can be better
// than. From the 160 measured servers of arXiv:2508.08343; docs/fidelity.md has the figures.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "scheduler_sim/measured/measured_table.hpp"
#include "tests/scheduler_sim/measured_data.hpp"

namespace loratory::sim {
namespace {

struct Point {
  double x, log_tps;  // slots, or adapters
};

std::vector<double> sizes_sorted(std::vector<double> values) {
  for (double& value : values) value = std::fabs(value);
  std::ranges::sort(values);
  return values;
}

double offered(const MeasuredRun& run) { return run.offered_rps() * run.client.duration_s; }

bool is_unsaturated(const MeasuredRun& run) {
  return run.measured.mean_ttft_ms < 1000 && run.measured.completed > 0.95 * offered(run);
}
bool is_overloaded(const MeasuredRun& run) { return run.measured.completed < 0.95 * offered(run); }

using Lines = std::map<std::string, std::vector<Point>>;

template <typename Key, typename Where>
Lines lines_of(const std::vector<MeasuredRun>& runs, bool (*takes)(const MeasuredRun&), Key key,
               Where where) {
  Lines lines;
  for (const MeasuredRun& run : runs) {
    if (takes(run)) lines[key(run)].push_back({where(run), std::log(run.measured.total_tps())});
  }
  for (auto& [name, line] : lines) std::ranges::sort(line, {}, &Point::x);
  return lines;
}

// A run's own deviation, from the difference to its neighbour: two of them make it.
std::vector<double> from_pairs(const Lines& lines) {
  std::vector<double> found;
  for (const auto& [name, line] : lines) {
    for (size_t i = 1; i < line.size(); ++i) {
      found.push_back((line[i].log_tps - line[i - 1].log_tps) / std::sqrt(2));
    }
  }
  return sizes_sorted(found);
}

// The same from the middle one of three and the straight line through the others.
std::vector<double> from_triples(const Lines& lines) {
  std::vector<double> found;
  for (const auto& [name, line] : lines) {
    for (size_t i = 2; i < line.size(); ++i) {
      const Point &a = line[i - 2], &b = line[i - 1], &c = line[i];
      const double w = (b.x - a.x) / (c.x - a.x);
      const double off = b.log_tps - (1 - w) * a.log_tps - w * c.log_tps;
      found.push_back(off / std::sqrt(1 + w * w + (1 - w) * (1 - w)));
    }
  }
  return sizes_sorted(found);
}

TEST(NoiseFloor, OfNeighbouringRuns) {
  const auto file = reference_folder() / "agullo_vllm085_multilora_sweep_measured_vs_dt.csv";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  std::vector<MeasuredRun> runs = read_measured_runs(file.string()).runs;
  std::erase_if(runs, [](const MeasuredRun& run) { return std::isnan(run.measured.completed); });
  ASSERT_EQ(runs.size(), 160u);

  // Nobody waits, so slots change nothing.
  const std::vector<double> quiet = from_pairs(lines_of(
      runs, is_unsaturated, [](const MeasuredRun& run) { return run.sweep; },
      [](const MeasuredRun& run) { return double(run.max_loras); }));
  double squares = 0;
  for (const double size : quiet) squares += size * size;
  const double rms = std::sqrt(squares / double(quiet.size()));
  // Everybody waits, so some adapters more or less change little, and evenly.
  const std::vector<double> busy = from_triples(lines_of(
      runs, is_overloaded,
      [](const MeasuredRun& run) { return fmt::format("{} {}", run.group, run.max_loras); },
      [](const MeasuredRun& run) { return double(run.num_adapters()); }));
  double least = 1, most = 1;  // arrivals / description
  for (const MeasuredRun& run : runs) {
    if (run.measured.mean_ttft_ms >= 1000) continue;
    least = std::min(least, run.measured.completed / offered(run));
    most = std::max(most, run.measured.completed / offered(run));
  }
  fmt::print(
      "unsaturated: {} pairs, rms {:.2f} %, largest {:.2f} %; overloaded: {} triples, median "
      "{:.2f} %; arrivals {:+.1f} to {:+.1f} %\n",
      quiet.size(), 100 * rms, 100 * quiet.back(), busy.size(), 100 * busy[busy.size() / 2],
      100 * (least - 1), 100 * (most - 1));
  EXPECT_EQ(quiet.size(), 12u);
  EXPECT_LT(rms, 0.002);
  EXPECT_EQ(busy.size(), 48u);
  EXPECT_LT(busy[busy.size() / 2], 0.009);
  EXPECT_GT(least, 0.96);
  EXPECT_LT(most, 1.04);
}

}  // namespace
}  // namespace loratory::sim
