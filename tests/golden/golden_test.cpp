// Logits of every token against those of transformers and PEFT, which share no line with us.
//
// Both sides compute in float32 from the same bits on disk, in orders of their own. A traced
// float64 pass gives, for each logit, the exact value and how far from it any float32
// implementation can be. So nothing here is tolerated that is not derived:
//   |ours - exact| <= bound, |theirs - exact| <= bound.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/dequantize.hpp"
#include "reference/adapter/expand_module.hpp"
#include "reference/model/adapter_options.hpp"
#include "reference/model/dense_kv.hpp"
#include "reference/model/direct_lora.hpp"
#include "reference/model/model.hpp"
#include "reference/model/oracle.hpp"
#include "reference/model/sampling.hpp"
#include "reference/numerics/bounded.hpp"
#include "tests/golden/fixture.hpp"

namespace loratory::reference {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& model : kModels) {
    cases.push_back({model, "base"});
    for (const std::string& adapter : Fixture(model).adapters()) cases.push_back({model, adapter});
  }
  return cases;
}

// DirectLora for an implementation that computes with W + s·B·A, made in float32 from weights in
// float32. Each number of it is a sum of 1 + r terms, rounded r + 3 times at most; the product
// with x follows. Beside what the product with W may lose (a rounding more is in its bound) that
// is
//   gamma_{K+r+4} · |s| · sum_j |B_nj| · sum_c |A_jc|·|x_c|
// in each output n on its own, not only through the h that the outputs share.
class MergedLora final : public LoraTerms<Traced> {
 public:
  MergedLora(const ModelConfig& config, const Adapter& adapter)
      : config_(config), adapter_(adapter), direct_(config, adapter) {}

  void add(const LinearRef& linear, std::span<const int64_t> tokens, const Matrix<Traced>& x,
           Matrix<Traced>& y) const override {
    direct_.add(linear, tokens, x, y);
    int64_t row = 0;
    for (const Projection projection : projections(linear.kind)) {
      const LoraModule* const module = adapter_.find({linear.layer, linear.expert, projection});
      for (int64_t t = 0; t < x.cols() && module != nullptr; ++t) {
        Vector<double> sizes(x.rows());
        for (int64_t c = 0; c < x.rows(); ++c) sizes(c) = std::abs(x(c, t).value);
        add_error(*module, dequantized_a(*module).cast<double>().cwiseAbs() * sizes, x.rows(), row,
                  y.col(t));
      }
      row += base_shape(base_model_shapes(config_), projection, linear.expert >= 0).rows;
    }
  }

  void add_embedding(std::span<const int32_t> ids, Matrix<Traced>& y) const override {
    direct_.add_embedding(ids, y);
    const LoraModule* const module = adapter_.find({-1, -1, Projection::embed_tokens});
    for (int64_t t = 0; t < y.cols() && module != nullptr; ++t) {
      const Vector<double> h = dequantized_a(*module).col(ids[size_t(t)]).cast<double>();
      add_error(*module, h.cwiseAbs(), 0, 0, y.col(t));
    }
  }

 private:
  static void add_error(const LoraModule& module, const Vector<double>& sum_xa, int64_t num_in,
                        int64_t row, Eigen::Ref<Vector<Traced>> y) {
    const Vector<double> sizes = dequantized_b(module).cast<double>().cwiseAbs() * sum_xa;
    const double factor = traced_gamma(num_in + module.rank + 4) * std::abs(double(module.scaling));
    for (int64_t n = 0; n < sizes.size(); ++n) {
      Traced& out = y(row + n);
      out = traced(out.value, factor * sizes(n), out, 1);
    }
  }

  const ModelConfig& config_;
  const Adapter& adapter_;
  DirectLora<Traced> direct_;
};

// Exact values and bounds of the logits of one sequence.
struct Truth {
  Matrix<double> value, bound;
};

Truth truth(const Model& model, const Adapter* adapter, const std::vector<int32_t>& tokens) {
  const Matrix<Bounded> logits = bounded_logits(model, adapter, tokens);
  Truth truth{Matrix<double>(logits.rows(), logits.cols()),
              Matrix<double>(logits.rows(), logits.cols())};
  for (Eigen::Index i = 0; i < logits.size(); ++i) {
    truth.value(i) = logits(i).value;
    truth.bound(i) = logits(i).error;
  }
  return truth;
}

// The same for implementations that merge. The bound of bounded_logits, its allowance for the
// second order included, grows by what merging adds.
Truth merged_truth(const Model& model, const Adapter& adapter, const std::vector<int32_t>& tokens) {
  Tape tape;
  const Tape::Scope scope(tape);
  TokenBatch batch{.ids = tokens, .positions = {}, .sequences = {}, .logits_of = {}};
  for (int64_t t = 0; t < int64_t(tokens.size()); ++t) {
    batch.positions.push_back(t);
    batch.sequences.push_back(0);
    batch.logits_of.push_back(t);
  }
  DenseKv<Traced> kv(model.config, 1, int64_t(tokens.size()));
  const MergedLora lora(model.config, adapter);
  const Matrix<Traced> logits = forward<Traced>(model, batch, kv, &lora);
  std::vector<int32_t> nodes;
  for (Eigen::Index i = 0; i < logits.size(); ++i) nodes.push_back(logits(i).node);
  const std::vector<double> errors = tape.errors(nodes);
  Truth truth{Matrix<double>(logits.rows(), logits.cols()),
              Matrix<double>(logits.rows(), logits.cols())};
  for (Eigen::Index i = 0; i < logits.size(); ++i) {
    truth.value(i) = logits(i).value;
    truth.bound(i) = (1 + 0x1p-4) * errors[size_t(i)];
  }
  return truth;
}

// How far `got` is from the truth.
struct Distance {
  double absolute = 0, over_bound = 0;
};

// NaN counts as infinitely far; so does a fixture of which nothing is known, because rounding
// could send a token to other experts.
Distance distance(const Matrix<float>& got, const Truth& truth) {
  Distance worst;
  for (Eigen::Index i = 0; i < got.size(); ++i) {
    const double error = std::abs(double(got(i)) - truth.value(i));
    if (!(error <= truth.bound(i)) || std::isinf(truth.bound(i))) {
      ADD_FAILURE() << "logit of token " << i % got.rows() << " at position " << i / got.rows()
                    << ": got " << got(i) << ", exact " << truth.value(i) << ", bound "
                    << truth.bound(i);
      return {INFINITY, INFINITY};
    }
    worst.absolute = std::max(worst.absolute, error);
    worst.over_bound = std::max(worst.over_bound, error / truth.bound(i));
  }
  return worst;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  const std::string& name() const { return GetParam().adapter; }
  const Adapter* adapter() const { return adapter_ ? &*adapter_ : nullptr; }

  // PEFT adds s·B·A to fused experts before they are used; all else it does as we do.
  Truth truth_for_them() const {
    const bool merges = adapter_ && !adapter_->config.target_parameters.empty();
    return merges ? merged_truth(model_, *adapter_, tokens_) : truth(model_, adapter(), tokens_);
  }

  const Fixture fixture_{GetParam().model};
  const Model model_ = load_model(fixture_.directory());
  const std::optional<Adapter> adapter_ =
      name() == "base"
          ? std::nullopt
          : std::optional(load_adapter(fixture_.adapter_directory(name()),
                                       base_model_shapes(model_.config), adapter_options(model_)));
  const std::vector<int32_t> tokens_ = fixture_.integers(name() + ".tokens");
};

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(all_cases()), test_name);

// [1.1] [1.10] [1.16] [1.18] [1.23] [1.24] [1.28] [1.30] [1.32] [1.34] [1.38] [1.53] [4.7] P18 P20
// P22
TEST_P(Golden, LogitsAreThoseOfTransformers) {
  const Truth exact = truth(model_, adapter(), tokens_);
  const Matrix<float> theirs = fixture_.logits(name() + ".logits");
  const Matrix<float> ours = sequence_logits<float>(model_, adapter(), tokens_);
  ASSERT_EQ(theirs.rows(), ours.rows());
  ASSERT_EQ(theirs.cols(), ours.cols());
  const Distance us = distance(ours, exact);
  const Distance them = distance(theirs, truth_for_them());
  const double apart = (ours.cast<double>() - theirs.cast<double>()).cwiseAbs().maxCoeff();
  fmt::print(
      "GOLDEN logits {}/{} ours_over_bound={:.3g} theirs_over_bound={:.3g} ours_abs={:.3g} "
      "theirs_abs={:.3g} apart={:.3g} largest_bound={:.3g}\n",
      GetParam().model, name(), us.over_bound, them.over_bound, us.absolute, them.absolute, apart,
      exact.bound.maxCoeff());
}

// The largest number of a column less the second largest.
double gap(const Matrix<float>& logits, int64_t column) {
  std::vector<float> sorted(logits.col(column).begin(), logits.col(column).end());
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return double(sorted[0]) - double(sorted[1]);
}

// [1.30] [1.31] [1.32] P22 P23: the tokens of transformers' own greedy loop, which keeps a KV
// cache, and the log probabilities of the prompt, which change no token. A gap between the two
// largest logits that float32 could close would be a bad fixture, and fails. log softmax moves by
// at most twice what the logits move by; the float64 sums in it lose less than 2^-40.
TEST_P(Golden, GreedyTokensAreThoseOfTransformers) {
  const auto num_prompt = int64_t(fixture_.integers("num_prompt").at(0));
  const std::span<const int32_t> all(tokens_);
  GenerateParams params;
  params.max_new_tokens = int64_t(all.size()) - num_prompt;
  params.prompt_logprobs = true;
  const Generation ours = generate(model_, adapter(), all.first(size_t(num_prompt)), params);
  const auto expected = all.subspan(size_t(num_prompt));
  EXPECT_EQ(ours.tokens, std::vector<int32_t>(expected.begin(), expected.end()));

  const Matrix<float> theirs = fixture_.logits(name() + ".logits");
  const Truth exact = truth_for_them();
  double smallest_gap = INFINITY;
  for (int64_t t = 0; t + 1 < theirs.cols(); ++t) {
    const double apart = 2 * exact.bound.col(t).maxCoeff();
    if (t + 1 < num_prompt) {
      const double log_p = log_probability(Vector<float>(theirs.col(t)), tokens_[size_t(t) + 1]);
      EXPECT_NEAR(ours.prompt_logprobs[size_t(t)], log_p, 2 * apart + 0x1p-40) << t;
    } else {
      EXPECT_GT(gap(theirs, t), 2 * apart) << "position " << t;
      smallest_gap = std::min(smallest_gap, gap(theirs, t));
    }
  }
  fmt::print("GOLDEN greedy {}/{} tokens={} smallest_gap={:.3g}\n", GetParam().model, name(),
             ours.tokens.size(), smallest_gap);
}

// [1.32] P18 P22: W + s·B·A in the place of W gives the same logits, ours and PEFT's.
TEST_P(Golden, MergedWeightsGiveTheSameLogits) {
  if (adapter() == nullptr) return;
  const Model merged = merge(model_, *adapter_);
  const Truth exact = merged_truth(model_, *adapter_, tokens_);
  const Distance ours = distance(sequence_logits<float>(merged, nullptr, tokens_), exact);
  const Distance theirs = distance(fixture_.logits(name() + ".merged_logits"), exact);
  fmt::print(
      "GOLDEN merged {}/{} ours_over_bound={:.3g} theirs_over_bound={:.3g} ours_abs={:.3g} "
      "theirs_abs={:.3g} largest_bound={:.3g}\n",
      GetParam().model, name(), ours.over_bound, theirs.over_bound, ours.absolute, theirs.absolute,
      exact.bound.maxCoeff());
}

}  // namespace
}  // namespace loratory::reference
