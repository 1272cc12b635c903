// The sampler against reference::sample. A token must be the reference's wherever no decision lies
// within the rounding errors of float64 (docs/error_bounds.md, "The kernels of a model"); greedy
// tokens and the order of the likeliest always.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "fuzz/support/lora_case.hpp"
#include "gpu/model/sampler.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "model_case.hpp"
#include "reference/model/sampling.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int32_t kMaxTop = 40;
constexpr int32_t kUntouched = -77;

class SamplerOnGpu : public OnGpu {};

struct SamplerCase {
  std::vector<reference::Vector<float>> logits = {};  // of each row
  std::vector<reference::SamplingParams> params = {};
  std::vector<int64_t> positions = {};
  std::vector<int32_t> num_top = {};
  int64_t gap = 0;

  size_t num_rows() const { return logits.size(); }
  SamplerCase rows(const std::vector<size_t>& which, int64_t new_gap) const {
    SamplerCase out{.gap = new_gap};
    for (const size_t i : which) {
      out.logits.push_back(logits[i]);
      out.params.push_back(params[i]);
      out.positions.push_back(positions[i]);
      out.num_top.push_back(num_top[i]);
    }
    return out;
  }
};

struct Sampled {
  int32_t token = 0;
  double logprob = 0;
  std::vector<int32_t> top_tokens;
  std::vector<double> top_logprobs;

  bool same_bits(const Sampled& other) const {
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    return token == other.token && same(logprob, other.logprob) && top_tokens == other.top_tokens &&
           std::ranges::equal(top_logprobs, other.top_logprobs, same);
  }
};

template <typename T>
std::vector<T> download(const DeviceBuffer& from, size_t count) {
  std::vector<T> out(count);
  LORATORY_CUDA_CHECK(
      cudaMemcpy(out.data(), from.get(), count * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

std::vector<Sampled> run(const SamplerCase& c) {
  const auto rows = int64_t(c.num_rows()), vocab = int64_t(c.logits[0].size());
  Tensor logits(Dtype::f32, {rows, vocab}, {vocab + c.gap, 1});
  std::ranges::fill(logits.bytes(), std::byte{0x7F});  // between rows 3e38, which would win
  std::vector<SamplingRow> params;
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = size_t(i);
    std::memcpy(logits.bytes().data() + i * (vocab + c.gap) * 4, c.logits[row].data(),
                size_t(vocab) * 4);
    params.push_back(sampling_row(c.params[row], c.positions[row], c.num_top[row]));
  }
  const GuardedTensor on_gpu(logits);
  const DeviceBuffer param_buffer = upload(params);
  const auto count = size_t(rows), tops = count * kMaxTop;
  const DeviceBuffer tokens = upload(std::vector<int32_t>(count, kUntouched));
  const DeviceBuffer logprobs = upload(std::vector<double>(count, kUntouched));
  const DeviceBuffer top_tokens = upload(std::vector<int32_t>(tops, kUntouched));
  const DeviceBuffer top_logprobs = upload(std::vector<double>(tops, kUntouched));
  sample({.logits = on_gpu.view(),
          .rows = reinterpret_cast<const SamplingRow*>(param_buffer.get()),
          .tokens = reinterpret_cast<int32_t*>(tokens.get()),
          .logprobs = reinterpret_cast<double*>(logprobs.get()),
          .top_tokens = reinterpret_cast<int32_t*>(top_tokens.get()),
          .top_logprobs = reinterpret_cast<double*>(top_logprobs.get()),
          .max_top = kMaxTop},
         nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  const auto all_tokens = download<int32_t>(tokens, count);
  const auto all_logprobs = download<double>(logprobs, count);
  const auto all_top = download<int32_t>(top_tokens, tops);
  const auto all_top_logprobs = download<double>(top_logprobs, tops);
  std::vector<Sampled> out;
  for (size_t i = 0; i < count; ++i) {
    const auto first = int64_t(i * kMaxTop), last = first + kMaxTop;
    out.push_back({all_tokens[i],
                   all_logprobs[i],
                   {all_top.begin() + first, all_top.begin() + last},
                   {all_top_logprobs.begin() + first, all_top_logprobs.begin() + last}});
  }
  return out;
}

// --- cases ----------------------------------------------------------------------------------

float logit_for(int64_t kind, uint64_t seed, int64_t id) {
  const uint64_t bits = reference::random_bits(seed, 8000, uint64_t(id));
  const auto part = [bits](int i) { return double(bits >> (16 * i) & 0xFFFF) * 0x1p-15 - 1; };
  const double u = part(3), normal = 2.5 * (part(0) + part(1) + part(2)) + 0x1p-16 * u;
  switch (kind) {
    case 0:
      return float(normal);
    case 1:  // as bf16 would have them: many are equal
      return float(round_to(Dtype::bf16, normal));
    case 2:
      return 1.5F;
    case 3:  // most are forbidden
      return u < 0.98 ? -INFINITY : float(normal);
    case 4:
      return u < 0.02 ? NAN : float(2 * normal);
    case 5:  // one far ahead, many far behind
      return id % 977 == 5 ? float(normal + 50) : float(round_to(Dtype::bf16, normal));
    case 6:
      return float(0x1p-20 * u);
    case 7:
      return float(3e38 * u);
    case 8:
      return u > 0.999 ? INFINITY : float(normal);
    default:
      return id % 3 == 0 ? NAN : -INFINITY;
  }
}
constexpr int64_t kKinds = 10;

SamplerCase sampler_case(const Trial& trial) {
  constexpr int64_t kVocabs[] = {1,    2,     17,    100,    1000,   1023,  1025,
                                 4099, 32000, 50257, 128256, 151936, 262144};
  constexpr double kTemperatures[] = {0, 1, 0.7, 0.1, 1.5, 100, 1e10, 1e-3};
  constexpr int64_t kTopKs[] = {0, 0, 1, 2, 50, 1000, 1024, 1025, 5000, 1 << 20};
  constexpr double kTopPs[] = {1, 1, 0.999, 0.9, 0.5, 1e-6};
  constexpr int32_t kNumTops[] = {-1, -1, 0, 1, 5, 20, 40, 1000};
  const int64_t vocab = kVocabs[trial.pick(0, Trial::size(std::size(kVocabs), 8))];
  const int64_t rows = 1 + trial.pick(1, std::clamp<int64_t>(1000000 / vocab, 2, 40));
  SamplerCase out{.gap = trial.pick(2, 2) * trial.pick(3, 9)};
  for (int64_t i = 0; i < rows; ++i) {
    const auto pick = [&](int64_t index, int64_t below) {
      return trial.pick(uint64_t(100 + 20 * i + index), below);
    };
    const int64_t kind = pick(0, 3) == 0 ? pick(1, kKinds) : pick(1, 2);
    reference::Vector<float> logits(vocab);
#pragma omp parallel for
    for (int64_t id = 0; id < vocab; ++id) {
      logits(id) = logit_for(kind, trial.seed() + uint64_t(i), id);
    }
    out.logits.push_back(logits);
    out.params.push_back({.temperature = kTemperatures[pick(2, std::size(kTemperatures))],
                          .top_k = kTopKs[pick(3, std::size(kTopKs))],
                          .top_p = kTopPs[pick(4, std::size(kTopPs))],
                          .seed = reference::random_bits(trial.seed(), 7, uint64_t(i))});
    out.positions.push_back(pick(5, int64_t{1} << 40));
    out.num_top.push_back(kNumTops[pick(6, std::size(kNumTops))]);
  }
  trial.classify(vocab > 100000, "more than 100,000 tokens");
  trial.classify(rows > 16, "more than 16 rows");
  return out;
}

// --- what must come out ---------------------------------------------------------------------

/// The likeliest first, the lower id of equals.
std::vector<int32_t> in_order(const reference::Vector<float>& logits) {
  const auto number = [&](int32_t id) { return std::isnan(logits(id)) ? -INFINITY : logits(id); };
  std::vector<int32_t> out(size_t(logits.size()));
  std::iota(out.begin(), out.end(), 0);
  std::ranges::stable_sort(out, [&](int32_t a, int32_t b) { return number(a) > number(b); });
  return out;
}

/// Whether reference::sample decides clearly: no cut and no boundary lies within the errors of
/// float64 of what it is compared with, and no two different logits have weights that those errors
/// could exchange.
class Decision {
 public:
  Decision(const reference::Vector<float>& logits, const std::vector<int32_t>& order,
           const reference::SamplingParams& params, double uniform)
      : logits_(logits), order_(order), temperature_(params.temperature) {
    size_t left = order.size();
    if (params.top_k > 0) left = std::min(left, size_t(params.top_k));
    const double error = error_of(sum_of(left));
    if (are_exchangeable(left)) return;
    if (params.top_p < 1) {
      const double enough = params.top_p * sum_of(left);
      left = first_above(enough, left);
      if (is_close(enough, left, error)) return;
    }
    const double target = uniform * sum_of(left);
    is_clear_ = !is_close(target, first_above(target, left), error);
  }
  bool is_clear() const { return is_clear_; }

 private:
  const reference::Vector<float>& logits_;
  const std::vector<int32_t>& order_;
  double temperature_;
  bool is_clear_ = false;
  std::vector<double> sums_;  // of the first 0, 1, 2, ... tokens

  double logit(size_t i) const {
    const double v = logits_(order_[i]);
    return std::isnan(v) ? -kInfinity : v;
  }
  double distance(size_t i) const {
    return logit(i) == logit(0) ? 0 : (logit(i) - logit(0)) / temperature_;
  }
  double sum_of(size_t count) {
    if (sums_.empty()) {
      sums_.push_back(0);
      for (size_t i = 0; i < order_.size(); ++i) {
        sums_.push_back(sums_.back() + std::exp(distance(i)));
      }
    }
    return sums_[count];
  }
  /// Of any sum of up to all weights, three times: theirs, ours, and that of this class.
  double error_of(double sum) const {
    return 3 * 0x1p-52 * double(order_.size() + 4) * std::max(1.0, sum);
  }
  /// So many tokens have a sum of more.
  size_t first_above(double sum, size_t most) {
    sum_of(0);
    const auto at = std::upper_bound(sums_.begin(), sums_.begin() + int64_t(most), sum);
    return size_t(at - sums_.begin());
  }
  bool is_close(double sum, size_t count, double error) {
    const bool is_below = count == 0 || sums_[count - 1] <= sum - error;
    return !is_below || sums_[std::min(count, sums_.size() - 1)] <= sum + error;
  }
  bool are_exchangeable(size_t left) const {
    for (size_t i = 0; i + 1 < order_.size() && i <= left; ++i) {
      if (logit(i) == logit(i + 1) || distance(i) < -44) continue;
      const double scale = 1 + std::fabs(distance(i));
      if (distance(i) - distance(i + 1) < 8 * 0x1p-52 * scale) return true;
    }
    return false;
  }
};

/// How far the log-probability of a kernel and the reference's may be from each other.
double logprob_bound(const reference::Vector<float>& logits, double logprob) {
  const double top = std::fabs(double(logits.maxCoeff()));
  return 0x1p-50 * double(logits.size() + 4) + 0x1p-50 * (std::fabs(logprob) + top);
}

struct Judge {
  int64_t num_results = 0, num_unclear = 0;
  double worst = 0;  ///< of log-probabilities
  std::string failure = {};

  void fail(const std::string& why) {
    if (failure.empty()) failure = why;
  }

  void judge(const SamplerCase& c, size_t row, const Sampled& got) {
    const reference::Vector<float>& logits = c.logits[row];
    const std::vector<int32_t> order = in_order(logits);
    judge_token(c, row, got.token, order);
    if (c.num_top[row] < 0) {
      if (got.logprob != kUntouched) fail("a log-probability that nobody wanted");
    } else if (got.token >= 0 && got.token < logits.size()) {
      judge_logprob(logits, got.token, got.logprob);
    }
    const auto most = size_t(std::min<int64_t>(std::max(c.num_top[row], 0), kMaxTop));
    for (size_t i = 0; i < size_t(kMaxTop); ++i) {
      const bool is_wanted = i < std::min(most, order.size());
      ++num_results;
      if (got.top_tokens[i] != (is_wanted ? order[i] : kUntouched)) {
        fail(fmt::format("token {} of the likeliest is {}", i, got.top_tokens[i]));
      }
      if (is_wanted) judge_logprob(logits, order[i], got.top_logprobs[i]);
    }
  }

 private:
  void judge_token(const SamplerCase& c, size_t row, int32_t token,
                   const std::vector<int32_t>& order) {
    ++num_results;
    const int32_t expected = reference::sample(c.logits[row], c.params[row], c.positions[row]);
    if (token == expected) return;
    const double uniform = reference::sampling_uniform(c.params[row].seed, c.positions[row]);
    const bool is_greedy = c.params[row].temperature == 0;
    if (is_greedy || Decision(c.logits[row], order, c.params[row], uniform).is_clear()) {
      fail(fmt::format("token {}, not {}: temperature {} top_k {} top_p {} seed {} position {}",
                       token, expected, c.params[row].temperature, c.params[row].top_k,
                       c.params[row].top_p, c.params[row].seed, c.positions[row]));
    } else {
      ++num_unclear;
    }
    if (token < 0 || token >= c.logits[row].size()) fail(fmt::format("token {}", token));
  }

  void judge_logprob(const reference::Vector<float>& logits, int32_t token, double got) {
    ++num_results;
    const double expected = reference::log_probability(logits, token);
    if (got == expected || std::isnan(expected)) {
      if (std::isnan(expected) && !std::isnan(got)) fail("a log-probability that is none");
      return;
    }
    const double ratio = std::fabs(got - expected) / logprob_bound(logits, expected);
    worst = std::max(worst, ratio);
    if (!(ratio <= 1)) fail(fmt::format("log-probability {}, not {}", got, expected));
  }
};

TEST_F(SamplerOnGpu, TokensAreThoseOfTheReference) {
  for_all_seeds(Trial::size(60, 12), [](const Trial& trial) {
    const SamplerCase c = sampler_case(trial);
    const std::vector<Sampled> got = run(c);
    std::vector<Judge> judges(c.num_rows());
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < c.num_rows(); ++i) judges[i].judge(c, i, got[i]);
    for (const Judge& judge : judges) {
      EXPECT_EQ(judge.failure, "");
      trial.count(judge.num_results, judge.worst);
      trial.classify(judge.num_unclear > 0, "a decision within the errors of float64, other token");
    }
  });
}

TEST_F(SamplerOnGpu, ARowDependsOnNothingElse) {
  for_all_seeds(Trial::size(30, 8), [](const Trial& trial) {
    const SamplerCase c = sampler_case(trial);
    const std::vector<Sampled> all = run(c);
    std::vector<size_t> some;
    for (int64_t i = trial.pick(10, 4); i >= 0; --i) {
      some.push_back(size_t(trial.pick(uint64_t(11 + i), int64_t(c.num_rows()))));
    }
    const std::vector<Sampled> got = run(c.rows(some, 3));
    for (size_t i = 0; i < some.size(); ++i) {
      EXPECT_TRUE(got[i].same_bits(all[some[i]])) << "row " << some[i];
    }
    trial.count(int64_t(some.size()));
  });
}

// Frequencies: what a wrong use of U, or a lost part of the sum, would change.
TEST_F(SamplerOnGpu, TokensComeAsOftenAsTheirWeightsSay) {
  SamplerCase c{};
  reference::Vector<float> logits(3);
  logits << std::log(0.5F), std::log(0.2F), std::log(0.3F);
  const int64_t draws = Trial::size(20000, 500);
  for (int64_t i = 0; i < draws; ++i) {
    c.logits.push_back(logits);
    c.params.push_back({.temperature = 1, .seed = 9});
    c.positions.push_back(i);
    c.num_top.push_back(-1);
  }
  std::array<int64_t, 3> counts{};
  for (const Sampled& sampled : run(c)) ++counts.at(size_t(sampled.token));
  // Six standard deviations of a binomial count.
  for (const auto& [token, share] : {std::pair{0, 0.5}, {1, 0.2}, {2, 0.3}}) {
    const double width = 6 * std::sqrt(double(draws) * share * (1 - share));
    EXPECT_NEAR(double(counts.at(size_t(token))), double(draws) * share, width);
  }
  record_.num_results = draws;
}

}  // namespace
}  // namespace loratory::gpu
