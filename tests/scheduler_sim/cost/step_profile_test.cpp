#include "scheduler_sim/cost/step_profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

constexpr const char* kText = R"({"schema": "loratory.step_profile/1",
  "provenance": {"model": "M", "gpu": "G", "engine": "E", "source": "S"},
  "constant_ns": 1000.5, "ns_per": {"num_seqs": 10, "lora_step": 500, "sum_rank": 0.25}})";

std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    parse_step_profile(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(StepProfile, IsLinearInItsTerms) {
  const ProfileModel model(parse_step_profile(kText, "p.json"));
  BatchShape shape;
  EXPECT_EQ(model.step_ns(shape), 1001);
  shape.num_seqs = 7;
  EXPECT_EQ(model.step_ns(shape), 1071);
  shape.num_adapters = 3;
  shape.sum_rank = 48;
  EXPECT_EQ(model.step_ns(shape), 1583);
}

TEST(StepProfile, NeverBelowOneNanosecond) {
  StepProfile profile;
  profile.constant_ns = -1e6;
  EXPECT_EQ(ProfileModel(profile).step_ns({}), 1);
}

TEST(StepProfile, RoundTripsBitForBit) {
  StepProfile profile = parse_step_profile(kText, "p.json");
  profile.engine = "a \"quoted\" name\n";
  for (size_t i = 0; i < profile.ns_per.size(); ++i) {
    profile.ns_per[i] = 1.0 / (3.0 + double(i));
  }
  EXPECT_EQ(parse_step_profile(format_step_profile(profile), "p.json"), profile);
}

TEST(StepProfile, EveryTermReachesItsField) {
  BatchShape shape{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const int64_t expected[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 1};
  for (size_t i = 0; i < kStepTerms.size(); ++i) {
    EXPECT_EQ(kStepTerms[i].value(shape), expected[i]) << kStepTerms[i].name;
  }
}

TEST(StepProfile, ErrorsNameFileAndKey) {
  EXPECT_THAT(error_of("{"), HasSubstr("p.json: is not JSON"));
  EXPECT_THAT(error_of("{\"a\": 1e400}"), HasSubstr("p.json: has a number outside"));
  EXPECT_THAT(error_of("3"), HasSubstr("p.json: must be a JSON object"));
  EXPECT_THAT(error_of(with(kText, "profile/1", "profile/2")), HasSubstr("p.json: schema"));
  EXPECT_THAT(error_of(with(kText, "num_seqs", "num_rows")), HasSubstr("ns_per.num_rows"));
  EXPECT_THAT(error_of(with(kText, "constant_ns", "constant")), HasSubstr("constant"));
  EXPECT_THAT(error_of(with(kText, "1000.5", "\"x\"")), HasSubstr("constant_ns: must be a number"));
  EXPECT_THAT(error_of(with(kText, "1000.5", "1e200")), HasSubstr("constant_ns: must be within"));
  EXPECT_THAT(error_of(with(kText, "\"gpu\": \"G\", ", "")), HasSubstr("gpu: is missing"));
  EXPECT_THAT(error_of(with(kText, "\"G\"", "4")), HasSubstr("gpu: must be a string"));
  EXPECT_THROW(read_step_profile("/no/such/file"), InputError);
}

}  // namespace
}  // namespace loratory::sim
