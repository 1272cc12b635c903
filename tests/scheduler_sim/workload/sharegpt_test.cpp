#include "scheduler_sim/workload/sharegpt.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace loratory::sim {
namespace {

struct Sample {
  double mean_prompt = 0, mean_output = 0, covariance = 0;
  uint32_t max_prompt = 0, max_output = 0, min_any = UINT32_MAX;
};

Sample sample(const ShareGptLengths& law, int count) {
  Sample s;
  const RandomStream stream(7, Purpose::prompt_tokens);
  for (int i = 0; i < count; ++i) {
    const RequestLength l = law.draw(stream, uint64_t(i));
    s.mean_prompt += l.prompt_tokens;
    s.mean_output += l.output_tokens;
    s.covariance += double(l.prompt_tokens) * l.output_tokens;
    s.max_prompt = std::max(s.max_prompt, l.prompt_tokens);
    s.max_output = std::max(s.max_output, l.output_tokens);
    s.min_any = std::min({s.min_any, l.prompt_tokens, l.output_tokens});
  }
  s.mean_prompt /= count, s.mean_output /= count;
  s.covariance = s.covariance / count - s.mean_prompt * s.mean_output;
  return s;
}

// Standard deviations of both are about 240 tokens: 200,000 draws are within 2 of the mean with a
// probability of 0.9998, and the scales come from 20,000 draws of another stream (5).
TEST(ShareGptLengths, HaveTheMeansAskedForAndTheLimitsOfTheBenchmark) {
  for (const auto& [prompt, output] : {std::pair{222.7, 196.1}, std::pair{250.9, 231.5}}) {
    const Sample s = sample(ShareGptLengths(prompt, output), 200'000);
    EXPECT_NEAR(s.mean_prompt, prompt, 7);
    EXPECT_NEAR(s.mean_output, output, 7);
    EXPECT_LE(s.max_prompt, 1024u);
    EXPECT_LE(s.max_output, 1024u);
    EXPECT_GE(s.min_any, 4u);
  }
}

// Prompts end at 1,024 tokens, and answers do.
TEST(ShareGptLengths, SayWhatMeansTheyCannotHave) {
  EXPECT_TRUE(ShareGptLengths(222.7, 196.1).have_means());
  EXPECT_FALSE(ShareGptLengths(900, 200).have_means());
  EXPECT_FALSE(ShareGptLengths(3000, 200).have_means());
  EXPECT_FALSE(ShareGptLengths(200, 1e9).have_means());
}

TEST(ShareGptLengths, ALongPromptHasAShortAnswer) {
  EXPECT_LT(sample(ShareGptLengths(222.7, 196.1), 50'000).covariance, -5'000);
}

}  // namespace
}  // namespace loratory::sim
