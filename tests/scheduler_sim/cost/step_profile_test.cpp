#include "scheduler_sim/cost/step_profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/shipped_profiles.hpp"
#include "tests/scheduler_sim/cost/cost_testing.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProfile = R"({"schema": "loratory.step_profile/1",
  "provenance": {"model": "M", "gpu": "G", "engine": "E", "source": "S"},
  "constant_ns": 1000.5, "ns_per": {"num_seqs": 10, "lora_step": 500, "sum_rank": 0.25}})";

std::string profile_error(const std::string& text) {
  try {
    parse_step_profile(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(StepProfile, IsLinearInItsTerms) {
  const ProfileModel model(parse_step_profile(kProfile, "p.json"));
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
  StepProfile profile = parse_step_profile(kProfile, "p.json");
  profile.engine = "a \"quoted\" name\n";
  for (size_t i = 0; i < profile.ns_per.size(); ++i) {
    profile.ns_per[i] = 1.0 / (3.0 + double(i));
  }
  EXPECT_EQ(parse_step_profile(format_step_profile(profile), "p.json"), profile);
  profile.tp = 2;
  profile.weight_bits = 8, profile.kv_bits = 32, profile.adapter_bits = 16, profile.max_rank = 64;
  EXPECT_EQ(parse_step_profile(format_step_profile(profile), "p.json"), profile);
  EXPECT_EQ(profile_error(with(kProfile, "\"source\"", "\"tp\": 1.5, \"source\"")),
            "p.json: tp: must be an integer from 1 to 1024");
  EXPECT_EQ(profile_error(with(kProfile, "\"source\"", "\"kv_bits\": 0, \"source\"")),
            "p.json: kv_bits: must be an integer from 1 to 64");
}

constexpr const char* kServer = R"({"schema": "loratory.step_profile/2",
  "provenance": {"model": "M", "gpu": "G", "engine": "E", "source": "S"},
  "constant_ns": 1000, "ns_per": {"num_seqs": 10, "num_adapters": 100, "num_waiting_seen": 1},
  "host_ns": 50, "above": {"tokens": 16, "ns_per_token": 5},
  "launch": {"above_tokens": 24, "least_ns": 2000}, "load": {"copy_ns": 7},
  "server": {"frontend_ms": 6, "mean_tokens_to_stop": 9000},
  "expected_error": {"throughput": 0.025, "how": "by hand"}})";

// Up to 24 tokens there are graphs of 1, 2, 4, 8, 16 and 24 tokens. The host's part comes on top.
TEST(StepProfile, TheHostWaitsForTheGpuOrForTheLaunch) {
  const ProfileModel model(parse_step_profile(kServer, "p.json"));
  BatchShape shape{.num_seqs = 2, .num_tokens = 9, .num_adapters = 1, .num_waiting_seen = 30};
  EXPECT_EQ(model.step_ns(shape), 50 + 20 + 30 + 1100);
  shape.num_tokens = 17;  // padded to 24
  EXPECT_EQ(model.step_ns(shape), 50 + 20 + 30 + 1100 + 8 * 5);
  shape.num_tokens = 25;
  EXPECT_EQ(model.step_ns(shape), 50 + 20 + 30 + 2000);
  shape.num_adapters = 11;
  EXPECT_EQ(model.step_ns(shape), 50 + 20 + 30 + 2100 + 9 * 5);
}

TEST(StepProfile, HasTermsOfTheServer) {
  const StepProfile profile = parse_step_profile(kServer, "p.json");
  EXPECT_EQ(profile.copy_ns, 7);
  EXPECT_EQ(profile.server.frontend_ms, 6);
  EXPECT_EQ(profile.server.mean_tokens_to_stop, 9000);
  EXPECT_EQ(profile.expected_error.throughput, 0.025);
  EXPECT_EQ(profile.expected_error.how, "by hand");
  EXPECT_EQ(parse_step_profile(format_step_profile(profile), "p.json"), profile);
  EXPECT_THAT(profile_error(with(kServer, "least_ns", "most_ns")),
              HasSubstr("launch.most_ns: is not"));
  EXPECT_THAT(profile_error(with(kServer, "\"by hand\"", "1")), HasSubstr("how: must be a string"));
  EXPECT_THAT(profile_error(with(kServer, "profile/2", "profile/1")), HasSubstr("is not a key"));
}

// Two slices of 4,096 and 1,024 columns in one launch of one layer: counted by hand from the
// kernels.
TEST(LoraGrid, CountsTheBlocksOfTheKernels) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  const LoraGrid grid(model, LoraTargets("q,k"), 1, 16, 8);
  const double layers = 32, slots = 9, slices = 2;
  EXPECT_EQ(grid.shrink_blocks(1), layers * slots * slices * 64);
  EXPECT_EQ(grid.shrink_blocks(128), layers * slots * slices * 8 * 4);
  EXPECT_EQ(grid.expand_blocks(65), layers * slots * slices * (4096 / 128) * 2);
  EXPECT_EQ(LoraGrid().expand_blocks(65), 0);
  EXPECT_EQ(LoraGrid(model, LoraTargets("q"), 1, 17, 8).shrink_blocks(1), layers * slots * 64 * 2);
}

TEST(StepProfile, EveryTermReachesItsField) {
  BatchShape shape{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  const int64_t expected[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 1, 13};
  for (size_t i = 0; i < kStepTerms.size(); ++i) {
    EXPECT_EQ(kStepTerms[i].value(shape), expected[i]) << kStepTerms[i].name;
  }
}

// Made by the tool from published runs, judged on sweeps that it had not seen.
TEST(StepProfile, ShippedOnesHaveANameAndAnExpectedError) {
  const std::vector<std::string> names = shipped_profile_names();
  ASSERT_EQ(names, (std::vector<std::string>{"vllm-0.8/llama-3.1-8b", "vllm-0.8/qwen2.5-7b"}));
  for (const std::string& name : names) {
    const StepProfile profile = read_step_profile(name);
    EXPECT_EQ(format_step_profile(profile), shipped_profile(name)) << name;
    EXPECT_EQ(load_model_spec(profile.model).name, profile.model);
    EXPECT_EQ(profile.engine, "vLLM 0.8.5");
    EXPECT_THAT(profile.source, HasSubstr("loratory calibrate, "));
    EXPECT_THAT(profile.source, HasSubstr("arXiv:2508.08343"));
    EXPECT_GE(profile.expected_error.num_runs, 74);
    EXPECT_EQ(profile.expected_error.how, "5 folds of whole sweeps");
  }
  EXPECT_EQ(read_step_profile("vLLM-0.8/Llama-3.1-8B"), read_step_profile(names[0]));
  try {
    read_step_profile("vllm-0.8/llama-3.1-8");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'vllm-0.8/llama-3.1-8b'?"));
  }
}

TEST(StepProfile, ErrorsNameFileAndKey) {
  EXPECT_THAT(profile_error("{"), HasSubstr("p.json: is not JSON"));
  EXPECT_THAT(profile_error("{\"a\": 1e400}"), HasSubstr("p.json: has a number outside"));
  EXPECT_THAT(profile_error("3"), HasSubstr("p.json: must be a JSON object"));
  EXPECT_THAT(profile_error(with(kProfile, "profile/1", "profile/3")), HasSubstr("p.json: schema"));
  EXPECT_THAT(profile_error(with(kProfile, "num_seqs", "num_rows")), HasSubstr("ns_per.num_rows"));
  EXPECT_THAT(profile_error(with(kProfile, "constant_ns", "constant")), HasSubstr("constant"));
  EXPECT_THAT(profile_error(with(kProfile, "1000.5", "\"x\"")),
              HasSubstr("constant_ns: must be a number"));
  EXPECT_THAT(profile_error(with(kProfile, "1000.5", "1e200")),
              HasSubstr("constant_ns: must be within"));
  EXPECT_THAT(profile_error(with(kProfile, "\"gpu\": \"G\", ", "")), HasSubstr("gpu: is missing"));
  EXPECT_THAT(profile_error(with(kProfile, "\"G\"", "4")), HasSubstr("gpu: must be a string"));
  EXPECT_THROW(read_step_profile("/no/such/file"), InputError);
}

}  // namespace
}  // namespace loratory::sim
