#include "scheduler_sim/workload/length_law.hpp"

#include "scheduler_sim/workload/random.hpp"
#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

TEST(LengthLaw, ConstantIsConstant) {
  const LengthLaw law = parse_length_law("constant:128", "--prompt-tokens");
  for (const double u : {1e-12, 0.3, 1 - 1e-12}) EXPECT_EQ(law.quantile(u), 128u);
  EXPECT_EQ(LengthLaw().quantile(0.5), 1u);
}

TEST(LengthLaw, LognormalHasTheMeanAndMedianAskedFor) {
  const LengthLaw law = parse_length_law("lognormal:211:129", "--output-tokens");
  EXPECT_EQ(law.quantile(0.5), 129u);
  double sum = 0;
  constexpr int kSteps = 200'000;
  for (int i = 0; i < kSteps; ++i) sum += law.quantile((i + 0.5) / kSteps);
  EXPECT_NEAR(sum / kSteps, 211, 0.5);
}

TEST(LengthLaw, LognormalIsHeldBelowItsMaximum) {
  const LengthLaw law = parse_length_law("lognormal:1155:1020:4096", "--prompt-tokens");
  EXPECT_EQ(law.quantile(1 - 1e-9), 4096u);
  EXPECT_EQ(parse_length_law("lognormal:2:1", "--x").quantile(1e-9), 1u);
}

TEST(LengthLaw, HistogramSpreadsAWeightEvenlyOverItsBin) {
  const TempFile file("le,count\n10 0\n20 30\n40 10\n");
  EXPECT_NE(error_of([&] { (void)parse_length_law("histogram:" + file.path(), "--x"); }), "");
  const TempFile good("10 0\n20 30\n40 10\n");
  const LengthLaw law = parse_length_law("histogram:" + good.path(), "--x");
  EXPECT_EQ(law.quantile(1e-9), 11u);
  EXPECT_EQ(law.quantile(0.75 - 1e-9), 20u);
  EXPECT_EQ(law.quantile(0.75 + 1e-9), 21u);
  EXPECT_EQ(law.quantile(1 - 1e-9), 40u);
  std::vector<uint64_t> counts(30, 0);
  std::vector<double> shares(30, 0.075);
  for (size_t i = 10; i < 30; ++i) shares[i] = 0.25 / 20;
  const RandomStream stream(5, Purpose::prompt_tokens);
  for (uint64_t i = 0; i < 60'000; ++i) ++counts.at(law.quantile(stream.unit(i)) - 11);
  EXPECT_LT(std::abs(chi_square_z(counts, shares)), 4);
}

TEST(LengthLaw, ErrorsNameTheFlag) {
  const auto error = [](const char* text) {
    return error_of([&] { (void)parse_length_law(text, "--prompt-tokens"); });
  };
  constexpr const char* kForms = "give constant:N, lognormal:MEAN:P50[:MAX] or histogram:FILE";
  EXPECT_EQ(error("128"), std::string("--prompt-tokens: unknown law of lengths '128'; ") + kForms);
  EXPECT_EQ(error("lognormal:5"),
            std::string("--prompt-tokens: lognormal:5 lacks a value; ") + kForms);
  EXPECT_EQ(error("lognormal:100:200"),
            "--prompt-tokens: no lognormal law has mean 100 and p50 200; "
            "its mean is above its median; swap them?");
  EXPECT_EQ(error("lognormal:1e9:1"),
            "--prompt-tokens: a mean of 1000000000 tokens is too long; give at most 16777216");
  EXPECT_EQ(error("constant:0"),
            "--prompt-tokens: length '0' is not a number of tokens; it must lie in 1 .. 16777216");
  EXPECT_EQ(error("constant:1.5"),
            "--prompt-tokens: length '1.5' is not a number of tokens; it "
            "must lie in 1 .. 16777216");
}

TEST(LengthLaw, HistogramErrorsNameLineAndColumn) {
  const auto error = [](const std::string& text) {
    const TempFile file(text);
    std::string line = error_of([&] { (void)parse_length_law("histogram:" + file.path(), "--x"); });
    return line.replace(line.find(file.path()), file.path().size(), "F");
  };
  EXPECT_EQ(error("10 1\n10 2"),
            "F:2:1: length '10' is not an integer; it must lie in 11 .. 16777216");
  EXPECT_EQ(error("10 1\n20"), "F:2:1: a row of 1 fields; write `up_to_tokens weight`");
  EXPECT_EQ(error("10 x"), "F:1:4: weight 'x' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("0 1\n2 1"), "F:1:3: a length of 0 has weight; lengths begin at 1 token");
  EXPECT_EQ(error("# nothing\n"), "F: no weight is above 0; write `up_to_tokens weight`");
}

}  // namespace
}  // namespace loratory::sim
