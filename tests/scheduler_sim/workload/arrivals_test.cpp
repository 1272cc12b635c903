#include "scheduler_sim/workload/arrivals.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "reference/base/input_error.hpp"
#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

AdapterMix uniform_mix(uint32_t num_adapters) { return make_adapter_mix({}, num_adapters, {}); }

struct GapStatistics {
  double mean_s = 0, cv = 0;
};

GapStatistics gap_statistics(const std::vector<Arrival>& arrivals) {
  double sum = 0, squares = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = double(arrivals[i].time_ns - arrivals[i - 1].time_ns) * 1e-9;
    sum += gap;
    squares += gap * gap;
  }
  const double n = double(arrivals.size() - 1);
  const double mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean) / mean};
}

TEST(Arrivals, SharedStreamHasItsRateAndCv) {
  for (const double cv : {0.5, 1.0, 2.0, 4.0}) {
    const auto arrivals = shared_arrivals({20, cv}, uniform_mix(4), {50'000}, 1);
    ASSERT_EQ(arrivals.size(), 50'000u);
    const GapStatistics gaps = gap_statistics(arrivals);
    EXPECT_NEAR(gaps.mean_s, 0.05, 4 * 0.05 * cv / std::sqrt(5e4)) << cv;
    EXPECT_NEAR(gaps.cv, cv, 0.05 * cv) << cv;
    EXPECT_TRUE(
        std::is_sorted(arrivals.begin(), arrivals.end(),
                       [](const Arrival& a, const Arrival& b) { return a.time_ns < b.time_ns; }));
  }
}

// Poisson: the counts of disjoint seconds are Poisson, so their variance is their mean.
TEST(Arrivals, PoissonCountsHaveVarianceEqualToTheirMean) {
  const auto arrivals =
      shared_arrivals({10, 1}, uniform_mix(1), {.duration_ns = 4000 * kSecond}, 3);
  std::vector<double> counts(4000, 0);
  for (const Arrival& a : arrivals) ++counts.at(size_t(a.time_ns / kSecond));
  double sum = 0, squares = 0;
  for (const double c : counts) sum += c, squares += c * c;
  const double mean = sum / 4000, variance = squares / 4000 - mean * mean;
  EXPECT_NEAR(mean, 10, 4 * std::sqrt(10.0 / 4000));
  EXPECT_NEAR(variance / mean, 1, 4 * std::sqrt(2.0 / 4000));
}

// A stationary stream expects rate x t arrivals in [0, t) from the first moment on. A stream that
// began with a whole gap would start with a burst (CV > 1).
TEST(Arrivals, BurstyStreamsDoNotStartWithABurst) {
  std::vector<double> rates_rps(4000, 0.1);
  const auto arrivals = adapter_arrivals(rates_rps, 4, {.duration_ns = kSecond}, 5);
  // Expected 400; one adapter rarely has several, so the count's deviation is a few times
  // sqrt(400).
  EXPECT_NEAR(double(arrivals.size()), 400, 200);
}

TEST(Arrivals, AdapterStreamsHaveTheirOwnRates) {
  const auto arrivals = adapter_arrivals({0.5, 0, 2.0}, 1, {.duration_ns = 4000 * kSecond}, 7);
  std::vector<double> counts(3, 0);
  for (const Arrival& a : arrivals) ++counts.at(a.adapter);
  EXPECT_NEAR(counts[0], 2000, 4 * std::sqrt(2000.0));
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[2], 8000, 4 * std::sqrt(8000.0));
}

TEST(Arrivals, AnAdapterKeepsItsTimesWhateverTheOthersDo) {
  const auto of_adapter_0 = [](const std::vector<Arrival>& all) {
    std::vector<int64_t> times;
    for (const Arrival& a : all) {
      if (a.adapter == 0) times.push_back(a.time_ns);
    }
    return times;
  };
  const ArrivalLimit limit{.duration_ns = 100 * kSecond};
  EXPECT_EQ(of_adapter_0(adapter_arrivals({1, 0.5}, 1, limit, 7)),
            of_adapter_0(adapter_arrivals({1, 3, 2}, 1, limit, 7)));
}

ClientLoad load_of(GapLaw law, double shape) {
  ClientLoad load;
  load.names = {"x", "y"};
  load.windows = {{{4.0, law, shape}, {0.0, GapLaw::none, 0}},
                  {{0.0, law, shape}, {8.0, law, shape}}};
  return load;
}

TEST(Arrivals, ClientsFollowTheirWindows) {
  for (const auto& [law, shape] : {std::pair{GapLaw::none, 0.0},
                                   {GapLaw::gamma, 0.5},
                                   {GapLaw::weibull, 0.6},
                                   {GapLaw::weibull, 2.0}}) {
    const auto arrivals = client_arrivals(load_of(law, shape), 0.5, {}, 9);
    double first = 0, second = 0;
    for (const Arrival& a : arrivals) {
      ASSERT_EQ(a.adapter, a.time_ns < kClientWindowNs ? 0u : 1u);
      ASSERT_LT(a.time_ns, 2 * kClientWindowNs);
      (a.adapter == 0 ? first : second) += 1;
    }
    // 600 s at half of 4 and 8 per second; a gap CV of c widens the count's deviation c times
    // (CV 1.41 and 1.76 for the bursty ones).
    EXPECT_NEAR(first, 1200, 4 * 1.8 * std::sqrt(1200.0));
    EXPECT_NEAR(second, 2400, 4 * 1.8 * std::sqrt(2400.0));
  }
}

// 600 s of 4 and of 8 per second: a factor of 2e5 makes 1.4e9 of them, a number of requests ends
// it.
TEST(Arrivals, ClientsSendNoMoreThanFit) {
  const ClientLoad load = load_of(GapLaw::gamma, 0.5);
  try {
    client_arrivals(load, 2e5, {}, 9);
    FAIL() << "too many arrivals are refused";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "--duration: about 1e+09 requests arrive in it; shorten it, lower the rate, or "
                 "give --requests N");
  }
  EXPECT_EQ(client_arrivals(load, 2e5, {.num_requests = 5}, 9).size(), 5u);
  EXPECT_FALSE(client_arrivals(load, 2e5, {.duration_ns = kSecond / 1000}, 9).empty());
}

// Folder of the public traces that are too large for the repository; empty when there is none.
std::string public_traces() {
  const char* variable = std::getenv("LORATORY_SHARED");
  const std::string folder = variable ? std::string(variable) + "/traces"
                                      : std::string(LORATORY_SOURCE_DIR) + "/../shared/traces";
  return std::filesystem::exists(folder) ? folder : "";
}

// An hour of all clients of one model: as many requests as the table's rates add up to.
TEST(Arrivals, ClientsOfServegenHaveTheirMeasuredRates) {
  if (public_traces().empty()) GTEST_SKIP() << "no public traces; set LORATORY_SHARED";
  const auto table = read_client_windows(public_traces() + "/servegen_client_windows.csv.gz");
  const ClientLoad load = make_client_load(table, "m-large", 0, "F");
  EXPECT_EQ(load.names.size(), 162u);
  double expected = 0;
  for (size_t window = 0; window < 6; ++window) {
    for (const ClientLoad::Cell& cell : load.windows[window]) expected += 600 * cell.rate_rps * 0.1;
  }
  const auto arrivals = client_arrivals(load, 0.1, {.duration_ns = 6 * kClientWindowNs}, 1);
  // The busiest client has CV 1.3 and half of the requests: two deviations are about 1 %.
  EXPECT_NEAR(double(arrivals.size()) / expected, 1, 0.02);
}

TEST(Arrivals, TraceTimesAreKeptUpToTheLimit) {
  Trace trace;
  for (const int64_t t : {0, 5, 5, 9}) trace.requests.push_back({.arrival_ns = t});
  const auto times = [&](const ArrivalLimit& limit) {
    std::vector<int64_t> result;
    for (const Arrival& a : trace_arrivals(trace, uniform_mix(2), limit, 1)) {
      result.push_back(a.time_ns);
    }
    return result;
  };
  EXPECT_EQ(times({}), (std::vector<int64_t>{0, 5, 5, 9}));
  EXPECT_EQ(times({.num_requests = 3}), (std::vector<int64_t>{0, 5, 5}));
  EXPECT_EQ(times({.duration_ns = 9}), (std::vector<int64_t>{0, 5, 5}));
}

TEST(Arrivals, AWorkloadNeedsAnEnd) {
  EXPECT_EQ(error_of([] {
              (void)shared_arrivals({1, 1}, uniform_mix(1), {}, 1);
            }),
            "--requests: the workload has no end; give --requests N or --duration S");
}

TEST(ArrivalLaw, ParsesAndNamesItsErrors) {
  EXPECT_EQ(parse_arrival_law("poisson:12.5").rate_rps, 12.5);
  EXPECT_EQ(parse_arrival_law("gamma:8:2.2").cv, 2.2);
  const auto error = [](const char* text) {
    return error_of([&] { (void)parse_arrival_law(text); });
  };
  EXPECT_EQ(error("poisson"),
            "--arrivals: unknown law of arrivals 'poisson'; "
            "give poisson:RATE, gamma:RATE:CV or trace:FILE");
  EXPECT_EQ(error("poisson:0"), "--arrivals: a rate of 0; give requests per second, > 0");
  EXPECT_EQ(error("gamma:1:0"), "--arrivals: CV 0 is out of range; give 0.01 .. 100");
  EXPECT_EQ(error("gamma:1:x"),
            "--arrivals: CV 'x' is not a number >= 0; write it like 12 or 0.25");
}

TEST(ScaleRate, DividesTimesAndKeepsPatience) {
  Trace trace;
  trace.requests = {{.arrival_ns = 3, .cancel_ns = 13}, {.arrival_ns = 1000}};
  scale_rate(trace, 2);
  EXPECT_EQ(trace.requests[0].arrival_ns, 2);  // 1.5 rounds up
  EXPECT_EQ(trace.requests[0].cancel_ns, 12);
  EXPECT_EQ(trace.requests[1].arrival_ns, 500);
  EXPECT_EQ(trace.requests[1].cancel_ns, kNever);
}

TEST(ScaleRate, RefusesWhatIsNotAFactor) {
  Trace trace;
  trace.requests = {{.arrival_ns = int64_t{1} << 60}};
  EXPECT_EQ(error_of([&] { scale_rate(trace, 0); }),
            "--rate-scale: 0 is not a factor; give one > 0");
  EXPECT_EQ(error_of([&] { scale_rate(trace, 1e-9); }),
            "--rate-scale: 1e-09 moves arrivals past 100 years; give a larger factor");
  EXPECT_EQ(trace.requests[0].arrival_ns, int64_t{1} << 60);  // nothing is moved
  EXPECT_FALSE(fits_at_rate(trace, 1e-9));
  EXPECT_TRUE(fits_at_rate(trace, 0.5));
}

}  // namespace
}  // namespace loratory::sim
