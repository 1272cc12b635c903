// Percentiles by hand: numpy's default, linear between order statistics.
#include "scheduler_sim/metrics/quantiles.hpp"

#include <gmock/gmock.h>

#include "scheduler_sim/metrics/latency_histogram.hpp"

namespace loratory::sim {
namespace {

using testing::IsEmpty;

TEST(Quantile, IsInterpolatedBetweenNeighbours) {
  std::vector<double> values{30, 0, 40, 10, 20};
  EXPECT_EQ(quantile(values, 0), 0);
  EXPECT_EQ(quantile(values, 0.25), 10);
  EXPECT_EQ(quantile(values, 0.3125), 12.5);  // a quarter of the way from 10 to 20
  EXPECT_EQ(quantile(values, 0.96875), 38.75);
  EXPECT_EQ(quantile(values, 1), 40);
}

TEST(Quantile, OfOneValueIsThatValue) {
  std::vector<double> one{7}, none;
  for (const double q : {0.0, 0.5, 1.0}) EXPECT_EQ(quantile(one, q), 7);
  EXPECT_EQ(quantile(none, 0.5), 0);
}

TEST(Summary, NamesEachPercentileByItsOwn) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i * i);  // mean and median differ
  const LatencySummary s = summarize_ms(values, 98);
  EXPECT_DOUBLE_EQ(s.mean_ms, 3350);
  EXPECT_DOUBLE_EQ(s.p50_ms, 2500);
  EXPECT_DOUBLE_EQ(s.p90_ms, 8100);
  EXPECT_DOUBLE_EQ(s.p95_ms, 9025);
  EXPECT_DOUBLE_EQ(s.p99_ms, 9801);
  EXPECT_DOUBLE_EQ(s.pslo_ms, 9604);
  std::vector<double> none;
  EXPECT_EQ(summarize_ms(none, 99).p99_ms, 0);
}

// numpy.std([1, 2, 4]) == 1.247219128924647: the mean of the squares over n, not n - 1.
TEST(Summary, DeviationIsThatOfThePopulation) {
  std::vector<double> values{4, 1, 2};
  EXPECT_DOUBLE_EQ(summarize_ms(values, 99).std_ms, 1.247219128924647);
  LatencyHistogram h, other;
  h.add(1'000'000), h.add(4'000'000), other.add(2'000'000);
  h.add(other);
  EXPECT_DOUBLE_EQ(h.summary_ms(99).std_ms, 1.247219128924647);
  LatencyHistogram equal;  // nothing is left of the squares, however large they are
  equal.add(int64_t{1} << 50, 1'000'000'000);
  EXPECT_EQ(equal.std_ns(), 0);
  equal.add((int64_t{1} << 50) + 2, 1'000'000'000);
  EXPECT_EQ(equal.std_ns(), 1);
  EXPECT_EQ(LatencyHistogram().std_ns(), 0);
}

TEST(Cdf, HasOnePointForEveryPercent) {
  std::vector<double> values{64, 0, 32};
  const std::vector<double> points = cdf(values);
  ASSERT_EQ(points.size(), 101U);
  for (size_t i = 0; i < points.size(); ++i) EXPECT_DOUBLE_EQ(points[i], 0.64 * double(i));
  std::vector<double> none;
  EXPECT_THAT(cdf(none), IsEmpty());
}

TEST(LatencyHistogram, CountsSmallValuesOneByOne) {
  LatencyHistogram h;
  EXPECT_EQ(h.mean_ns(), 0);
  EXPECT_EQ(h.quantile_ns(0.5), 0);
  h.add(3), h.add(2047), h.add(10, 2);
  EXPECT_EQ(h.total(), 4);
  EXPECT_EQ(h.mean_ns(), (3 + 2047 + 20) / 4.0);
  EXPECT_EQ(h.quantile_ns(0), 3);
  EXPECT_EQ(h.quantile_ns(0.5), 10);
  EXPECT_EQ(h.quantile_ns(0.99), 10);  // three of four lie below the last
  EXPECT_EQ(h.quantile_ns(1), 2047);
}

TEST(LatencyHistogram, ListsTheBucketsThatHoldSomething) {
  LatencyHistogram h;
  h.add(7, 3), h.add(1 << 20);
  const std::vector<DurationCount> counts = h.counts();
  ASSERT_EQ(counts.size(), 2U);
  EXPECT_EQ(counts[0].ns, 7);
  EXPECT_EQ(counts[0].count, 3);
  EXPECT_NEAR(counts[1].ns, 1 << 20, 512);
  EXPECT_EQ(h.summary_ms(100).pslo_ms, counts[1].ns * 1e-6);
}

// 2^-11 of the value is half a bucket.
TEST(LatencyHistogram, MidpointsAreWithinHalfABucket) {
  for (int64_t ns = 2048; ns < (int64_t{1} << 50); ns = ns * 5 / 4 + 1) {
    LatencyHistogram h;
    h.add(ns);
    EXPECT_NEAR(h.quantile_ns(0.5), double(ns), double(ns) / 2048) << ns;
    EXPECT_EQ(h.mean_ns(), double(ns));
  }
}

}  // namespace
}  // namespace loratory::sim
