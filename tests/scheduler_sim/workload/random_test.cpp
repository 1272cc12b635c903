#include "scheduler_sim/workload/random.hpp"

#include <cmath>

#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

// Known answers of Random123 1.14, tests/kat_vectors, "philox4x64 10".
TEST(RandomStream, IsPhilox4x64) {
  EXPECT_EQ(RandomStream(0, uint64_t{0}).bits(0, 0), 0x16554d9eca36314cu);
}

TEST(RandomStream, PurposeAndSubstreamMakeTheStream) {
  const RandomStream stream(7, Purpose::adapters, 5);
  EXPECT_EQ(stream.bits(3), RandomStream(7, uint64_t{2} << 32 | 5).bits(3));
  EXPECT_NE(stream.bits(3), RandomStream(8, Purpose::adapters, 5).bits(3));
  EXPECT_NE(stream.bits(3), RandomStream(7, Purpose::arrivals, 5).bits(3));
  EXPECT_NE(stream.bits(3), RandomStream(7, Purpose::adapters, 6).bits(3));
  EXPECT_NE(stream.bits(3), stream.bits(4));
  EXPECT_NE(stream.bits(3, 0), stream.bits(3, 1));
}

TEST(RandomStream, UnitIsUniformAndNeverZeroOrOne) {
  const RandomStream stream(1, Purpose::adapters);
  std::vector<uint64_t> counts(64, 0);
  for (uint64_t i = 0; i < 64'000; ++i) {
    const double u = stream.unit(i);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    ++counts[size_t(u * 64)];
  }
  EXPECT_LT(std::abs(chi_square_z(counts, std::vector<double>(64, 1.0 / 64))), 4);
}

TEST(RandomStream, BelowIsUniform) {
  const RandomStream stream(1, Purpose::sampled_rows);
  std::vector<uint64_t> counts(7, 0);
  for (uint64_t i = 0; i < 70'000; ++i) ++counts.at(stream.below(7, i));
  EXPECT_LT(std::abs(chi_square_z(counts, std::vector<double>(7, 1.0 / 7))), 4);
  EXPECT_EQ(stream.below(1, 0), 0u);
}

struct Moments {
  double mean = 0, variance = 0;
};

template <typename Draw>
Moments moments_of(uint64_t n, const Draw& draw) {
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const double x = draw(i);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / double(n);
  return {mean, squares / double(n) - mean * mean};
}

TEST(RandomStream, ExponentialHasMeanAndVarianceOne) {
  const RandomStream stream(2, Purpose::think_times);
  const Moments m = moments_of(100'000, [&](uint64_t i) { return stream.exponential(i); });
  EXPECT_NEAR(m.mean, 1, 4 / std::sqrt(1e5));
  EXPECT_NEAR(m.variance, 1, 4 * std::sqrt(8 / 1e5));
}

TEST(RandomStream, GammaHasMeanAndVarianceOfItsShape) {
  constexpr uint64_t kDraws = 50'000;
  for (const double shape : {0.05, 0.3, 1.0, 2.5, 40.0}) {
    const RandomStream stream(3, Purpose::arrivals);
    const Moments m = moments_of(kDraws, [&](uint64_t i) { return stream.gamma(shape, i); });
    // Standard errors: sqrt(k / n) of the mean, sqrt((2 k^2 + 6 k) / n) of the variance.
    EXPECT_NEAR(m.mean, shape, 4 * std::sqrt(shape / kDraws)) << shape;
    EXPECT_NEAR(m.variance, shape, 4 * std::sqrt((2 * shape * shape + 6 * shape) / kDraws))
        << shape;
  }
}

// Bins of the exact law: gamma(1) is exponential, gamma(2) has P(<= x) = 1 - (1 + x) e^-x.
TEST(RandomStream, GammaFollowsItsLaw) {
  for (const double shape : {1.0, 2.0}) {
    const RandomStream stream(4, Purpose::arrivals);
    const auto below = [&](double x) { return 1 - (shape == 1 ? 1 : 1 + x) * std::exp(-x); };
    std::vector<double> shares;
    for (int bin = 0; bin < 40; ++bin)
      shares.push_back(below(bin / 8.0 + 0.125) - below(bin / 8.0));
    shares.push_back(1 - below(5));
    std::vector<uint64_t> counts(41, 0);
    for (uint64_t i = 0; i < 400'000; ++i) {
      ++counts[std::min<size_t>(40, size_t(stream.gamma(shape, i) * 8))];
    }
    EXPECT_LT(std::abs(chi_square_z(counts, shares)), 4) << shape;
  }
}

}  // namespace
}  // namespace loratory::sim
