#include "reference/model/sampling.hpp"

#include <fmt/format.h>

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

double logit(const Vector<float>& logits, int32_t id) {
  const double v = logits(id);
  return std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
}

int32_t largest(const Vector<float>& logits) {
  int32_t best = 0;
  for (int32_t id = 1; id < int32_t(logits.size()); ++id) {
    if (logit(logits, id) > logit(logits, best)) best = id;
  }
  return best;
}

struct Candidate {
  int32_t id;
  double weight;  // probability, times a factor common to all
};

// All tokens, the likeliest first, the lower id of equals.
std::vector<Candidate> candidates(const Vector<float>& logits, double temperature) {
  const double top = logit(logits, largest(logits));
  std::vector<Candidate> out;
  for (int32_t id = 0; id < int32_t(logits.size()); ++id) {
    const double v = logit(logits, id);
    out.push_back({id, v == top ? 1 : std::exp((v - top) / temperature)});  // top may be infinite
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
  return out;
}

double sum(const std::vector<Candidate>& all) {
  double total = 0;
  for (const Candidate& c : all) total += c.weight;
  return total;
}

}  // namespace

void check_sampling_params(const SamplingParams& params) {
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    throw InputError("sample: temperature",
                     fmt::format("{} is not a finite number >= 0", params.temperature));
  }
  if (params.top_k < 0) {
    throw InputError("sample: top_k", fmt::format("{} is negative", params.top_k));
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    throw InputError("sample: top_p", fmt::format("{} is not in (0, 1]", params.top_p));
  }
}

double sampling_uniform(uint64_t seed, int64_t position) {
  const auto low = [](uint64_t v) { return uint32_t(v); };
  const auto high = [](uint64_t v) { return uint32_t(v >> 32); };
  const auto at = uint64_t(position);
  const r123::Philox4x32::ctr_type counter = {{low(at), high(at), 0, 0}};
  const r123::Philox4x32::key_type key = {{low(seed), high(seed)}};
  const r123::Philox4x32::ctr_type words = r123::Philox4x32{}(counter, key);
  return double((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

int32_t sample(const Vector<float>& logits, const SamplingParams& params, int64_t position) {
  if (logits.size() == 0) throw InputError("sample: logits", "are empty");
  check_sampling_params(params);
  if (params.temperature == 0) return largest(logits);
  std::vector<Candidate> left = candidates(logits, params.temperature);
  if (params.top_k > 0 && params.top_k < int64_t(left.size())) left.resize(size_t(params.top_k));
  const double enough = params.top_p * sum(left);
  size_t kept = 0;
  for (double before = 0; kept < left.size() && before < enough; ++kept) {
    before += left[kept].weight;
  }
  left.resize(kept);
  const double target = sampling_uniform(params.seed, position) * sum(left);
  double reached = 0;
  for (const Candidate& c : left) {
    reached += c.weight;
    if (reached > target) return c.id;
  }
  return left.back().id;  // target rounded up to the sum
}

double log_probability(const Vector<float>& logits, int32_t token) {
  if (token < 0 || token >= logits.size()) {
    throw InputError("log_probability: token",
                     fmt::format("{} is outside the {} logits", token, logits.size()));
  }
  const double top = logits.cast<double>().maxCoeff();
  double total = 0;
  for (Eigen::Index i = 0; i < logits.size(); ++i) total += std::exp(double(logits(i)) - top);
  return double(logits(token)) - top - std::log(total);
}

std::vector<TokenLogprob> top_log_probabilities(const Vector<float>& logits, int64_t count) {
  std::vector<int32_t> ids(size_t(logits.size()));
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = std::min<size_t>(size_t(count), ids.size());
  std::partial_sort(ids.begin(), ids.begin() + std::ptrdiff_t(kept), ids.end(),
                    [&](int32_t a, int32_t b) {
                      return std::tuple(-logit(logits, a), a) < std::tuple(-logit(logits, b), b);
                    });
  std::vector<TokenLogprob> out;
  for (size_t i = 0; i < kept; ++i) out.push_back({ids[i], log_probability(logits, ids[i])});
  return out;
}

}  // namespace loratory::reference
