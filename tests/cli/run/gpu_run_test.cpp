// `loratory run --executor gpu` on the models and adapters that transformers and PEFT wrote.
// Skipped where there is no GPU. On a machine that did not build it, LORATORY_CLI names the program
// and LORATORY_SOURCE_DIR the repository.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "reference/model/adapter_options.hpp"
#include "reference/model/oracle.hpp"
#include "tests/cli/program.hpp"
#include "tests/golden/fixture.hpp"

namespace loratory {
namespace {

using nlohmann::json;
using reference::Adapter;
using reference::Bounded;
using reference::ConstTensorView;
using reference::Dtype;
using reference::Fixture;
using reference::LoraModule;
using reference::Matrix;
using reference::Model;

// Do all numbers of an adapter fit in the slots of an engine of that dtype?
bool fits(const Adapter& adapter, Dtype dtype) {
  const auto all_fit = [dtype](const ConstTensorView& matrix) {
    for (int64_t i = 0; i < matrix.size(0); ++i) {
      for (int64_t j = 0; j < matrix.size(1); ++j) {
        if (round_to(dtype, matrix.get(i, j)) != matrix.get(i, j)) return false;
      }
    }
    return true;
  };
  return std::ranges::all_of(adapter.modules, [&](const LoraModule& module) {
    return all_fit(module.a) && all_fit(module.b);
  });
}

// A prompt, what greedy decoding makes of it, and the oracle's logits of all of it.
struct Expected {
  std::string name;  // of the adapter, "base"
  std::vector<int32_t> tokens;
  Matrix<Bounded> logits;
};

Eigen::Index largest(const Matrix<Bounded>& logits, Eigen::Index column) {
  Eigen::Index best = 0;
  for (Eigen::Index v = 1; v < logits.rows(); ++v) {
    if (logits(v, column).value > logits(best, column).value) best = v;
  }
  return best;
}

// Is the largest logit that of every implementation within the bound?
bool is_sure(const Matrix<Bounded>& logits, Eigen::Index column) {
  const Bounded& best = logits(largest(logits, column), column);
  int num_open = 0;
  for (Eigen::Index v = 0; v < logits.rows(); ++v) {
    num_open += !(best.value - logits(v, column).value > best.error + logits(v, column).error);
  }
  return num_open == 1;
}

double log_probability(const Matrix<Bounded>& logits, Eigen::Index column, Eigen::Index token) {
  const double most = logits(largest(logits, column), column).value;
  double sum = 0;
  for (Eigen::Index v = 0; v < logits.rows(); ++v) sum += std::exp(logits(v, column).value - most);
  return logits(token, column).value - most - std::log(sum);
}

class GoldenGpuRunTest : public ProgramTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (IsSkipped()) return;
    static const bool kHasGpu = has_gpu();
    if (!kHasGpu) GTEST_SKIP() << "no GPU, or built without CUDA";
  }

  // The fixture's requests that an engine of `dtype` computes with the fixture's own numbers.
  std::vector<Expected> expected(Dtype dtype) const {
    std::vector<Expected> out;
    std::vector<std::string> names = fixture_.adapters();
    names.emplace_back("base");
    for (const std::string& name : names) {
      std::optional<Adapter> adapter;
      if (name != "base") {
        adapter = load_adapter(fixture_.adapter_directory(name), base_model_shapes(model_.config),
                               adapter_options(model_));
        if (!fits(*adapter, dtype)) continue;
      }
      const std::vector<int32_t> tokens = fixture_.integers(name + ".tokens");
      out.push_back(
          {name, tokens, bounded_logits(model_, adapter ? &*adapter : nullptr, tokens, dtype)});
    }
    return out;
  }

  // All of them in one run, with half as many slots as adapters.
  std::vector<json> run(const std::vector<Expected>& all, const std::string& dtype) const {
    std::string requests,
        flags = fmt::format("--dtype {} --max-loras {}", dtype, 1 + all.size() / 2);
    for (const Expected& e : all) {
      const bool is_base = e.name == "base";
      if (!is_base)
        flags += fmt::format(" --adapter {}={}", e.name, fixture_.adapter_directory(e.name));
      requests += fmt::format(
          R"({{"prompt": [{}], "max_tokens": {}, "temperature": 0, "ignore_eos": true, )"
          R"("logprobs": 5{}}})"
          "\n",
          fmt::join(std::span(e.tokens).first(num_prompt_), ", "), e.tokens.size() - num_prompt_,
          is_base ? "" : fmt::format(R"(, "model": "{}")", e.name));
    }
    write("r.jsonl", requests);
    const Outcome outcome =
        loratory(fmt::format("run --executor gpu --model {} --requests r.jsonl --out out.jsonl {}",
                             fixture_.directory(), flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<json> lines;
    std::istringstream in(content("out.jsonl"));
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  // log softmax moves by at most twice what the logits move by.
  static void expect_logprobs(const Expected& e, const json& logprobs, size_t i,
                              Eigen::Index column, int32_t token) {
    double most = 0;
    for (Eigen::Index v = 0; v < e.logits.rows(); ++v) {
      most = std::max(most, e.logits(v, column).error);
    }
    const double bound = 2 * most + 0x1p-40;
    EXPECT_NEAR(logprobs["token_logprobs"][i].get<double>(),
                log_probability(e.logits, column, token), bound);
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 5u);
    for (const auto& [id, logprob] : logprobs["top_logprobs"][i].items()) {
      EXPECT_NEAR(logprob.get<double>(), log_probability(e.logits, column, std::stoi(id)), bound);
    }
  }

  // Tokens and log probabilities, up to the first token that rounding changed and might change.
  void compare(const std::vector<Expected>& all, const std::string& dtype) const {
    const std::vector<json> lines = run(all, dtype);
    ASSERT_EQ(lines.size(), all.size());
    size_t num_equal = 0, num_tokens = 0;
    for (size_t r = 0; r < all.size(); ++r) {
      const Expected& e = all[r];
      SCOPED_TRACE(e.name);
      const auto got = lines[r]["token_ids"].get<std::vector<int32_t>>();
      ASSERT_EQ(got.size(), e.tokens.size() - num_prompt_);
      EXPECT_EQ(lines[r]["finish_reason"], "length");
      num_tokens += got.size();
      for (size_t i = 0; i < got.size(); ++i) {
        const auto column = Eigen::Index(num_prompt_ + i) - 1;
        expect_logprobs(e, lines[r]["logprobs"], i, column, got[i]);
        if (got[i] != e.tokens[num_prompt_ + i]) {
          EXPECT_FALSE(is_sure(e.logits, column)) << "token " << i;
          break;
        }
        ++num_equal;
      }
    }
    fmt::print("GOLDEN gpu {} {}: {} requests, {} of {} tokens equal\n", GetParam(), dtype,
               all.size(), num_equal, num_tokens);
  }

  bool has_experts() const { return model_.config.num_experts > 0; }
  bool has_shared_experts() const { return model_.config.shared_expert_intermediate > 0; }

  const Fixture fixture_{GetParam()};
  const Model model_ = reference::load_model(fixture_.directory());
  const size_t num_prompt_ = size_t(fixture_.integers("num_prompt").at(0));

 private:
  // Other failures than "this machine has no GPU" are for the tests to show.
  bool has_gpu() const {
    write("r.jsonl", "{\"prompt\": [1], \"max_tokens\": 1}\n");
    const Outcome outcome =
        loratory("run --executor gpu --requests r.jsonl --out out.jsonl --model " +
                 reference::kFixtures + "qwen2_linear");
    return outcome.err.find("--executor: this") == std::string::npos;
  }
};

// [1.30] [2.10]: in float32 no token is open, whatever the weights' dtype.
TEST_P(GoldenGpuRunTest, Float32GivesTheTokensOfTransformers) {
  if (has_shared_experts()) GTEST_SKIP() << "the engine has no shared experts";
  const std::vector<Expected> all = expected(Dtype::f32);
  ASSERT_EQ(all.size(), fixture_.adapters().size() + 1);
  for (const Expected& e : all) {
    for (auto t = Eigen::Index(num_prompt_) - 1; t + 1 < e.logits.cols(); ++t) {
      ASSERT_TRUE(is_sure(e.logits, t)) << e.name << " position " << t;
    }
  }
  compare(all, "float32");
}

// [1.18] [1.30]: in the model's own dtype.
TEST_P(GoldenGpuRunTest, TheModelsDtypeGivesTheTokensOfTransformers) {
  if (has_experts()) GTEST_SKIP() << "of 16-bit experts the oracle does not know where they round";
  compare(expected(model_.config.dtype), "auto");
}

INSTANTIATE_TEST_SUITE_P(All, GoldenGpuRunTest, testing::ValuesIn(reference::kModels));

}  // namespace
}  // namespace loratory
