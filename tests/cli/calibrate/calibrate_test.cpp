#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

class Calibrate : public ProgramTest {
 protected:
  static std::string sample() {
    return (fs::path(LORATORY_SOURCE_DIR) / "traces/measured_sample.csv").string();
  }
  // Two sweeps of four runs, half a minute each.
  void write_runs() const {
    std::string rows =
        "sweep,group,model,engine,gpu,max_loras,ranks,max_num_seqs,rates_rps,rate_counts,lengths,"
        "mean_prompt_tokens,mean_output_tokens,duration_s,completed,input_tps,output_tps,"
        "mean_ttft_ms,mean_tpot_ms,mean_itl_ms\n";
    const auto add = [&](const char* sweep, int max_loras, const char* rates, const char* done) {
      rows +=
          fmt::format("{},{},Llama-3.1-8B,vllm-0.8,H100-80,{},16,256,{},sharegpt,220,200,30,{}\n",
                      sweep, sweep, max_loras, rates, done);
    };
    for (const int max_loras : {8, 16, 32, 64})
      add("few", max_loras, "0.1,8", "24,176,160,40,12,12");
    for (const int max_loras : {16, 32, 48, 64})
      add("many", max_loras, "0.2,16", "95,697,633,50,16,17");
    write("runs.csv", rows);
  }
  void expect_error(const std::string& arguments, const std::string& line) const {
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_EQ(run.err, "loratory: " + line + "\n") << arguments;
    EXPECT_FALSE(fs::exists(path("p.json"))) << arguments;
  }
};

TEST_F(Calibrate, AProfileWithItsErrorOnOtherSweeps) {
  write_runs();
  const Outcome run =
      loratory("calibrate --measured runs.csv --out p.json --folds 2 --rounds 1 --csv p.csv");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("ns_per.num_adapters"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("profiles of 2 folds"), std::string::npos) << run.out;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;

  const auto profile = nlohmann::json::parse(content("p.json"));
  EXPECT_EQ(profile.at("schema"), "loratory.step_profile/2");
  EXPECT_EQ(profile.at("provenance").at("source"), "loratory calibrate, 8 runs of runs.csv");
  EXPECT_EQ(profile.at("provenance").at("model"), "Llama-3.1-8B");
  for (const char* key : {"weight_bits", "kv_bits", "adapter_bits", "max_rank"}) {
    EXPECT_EQ(profile.at("provenance").at(key), 16) << key;
  }
  EXPECT_EQ(profile.at("expected_error").at("num_runs"), 8);
  EXPECT_EQ(profile.at("expected_error").at("how"), "2 folds of whole sweeps");
  const std::string csv = content("p.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 9);
  // What reads profiles reads this one.
  EXPECT_EQ(loratory("validate --measured runs.csv --rows few --profile p.json").exit_code, 0);
}

TEST_F(Calibrate, FromColumnsWithoutFolds) {
  write_runs();
  const std::string flags = "calibrate --measured runs.csv --from-columns --folds 0 --out ";
  const Outcome run = loratory(flags + "a.json --threads 1");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.find("folds"), std::string::npos) << run.out;
  ASSERT_EQ(loratory(flags + "b.json --threads 3").exit_code, 0);
  EXPECT_EQ(content("a.json"), content("b.json"));
  const auto profile = nlohmann::json::parse(content("a.json"));
  EXPECT_FALSE(profile.contains("expected_error"));
  EXPECT_EQ(profile.at("provenance").at("source"),
            "loratory calibrate, 8 runs of runs.csv, from its columns alone");
}

TEST_F(Calibrate, BadInputIsOneLineAndNoFile) {
  expect_error("calibrate --measured '" + sample() + "' --out p.json --folds 0",
               "3 runs with a measured TPOT, too few to fit; give at least 4, of different loads "
               "and max_loras");
  expect_error("calibrate --measured '" + sample() + "' --out p.json --folds 1",
               "--folds: 1 fold leaves no runs to fit; give 2 or more, or 0 for none");
  write("r.json", R"({"duration": 1, "completed": 1, "num_prompts": 2, "total_input_tokens": 1,
                      "total_output_tokens": 1})");
  expect_error("calibrate --measured r.json --out p.json", "r.json:1: some of its requests failed");
  write_runs();
  expect_error("calibrate --measured runs.csv --out p.json --from-columns --folds 3",
               "--folds: 3 folds, but the runs are of 2 sweeps; lower it; runs of one sweep differ "
               "in max_loras alone");
  expect_error(
      "calibrate --measured runs.csv --out runs.csv",
      "--out: 'runs.csv' is the measured runs; it would be overwritten: name another file");
  EXPECT_EQ(loratory("calibrate --measured runs.csv").exit_code, 2);
}

// --- from the steps of our own engine -----------------------------------------------------------

const std::string kProfiled =
    "calibrate --executor reference --weights " +
    (fs::path(LORATORY_SOURCE_DIR) / "tests/golden/fixtures/llama_gqa").string() +
    " --max-num-seqs 8 --max-loras 2 "
    "--max-lora-rank 4 --max-num-batched-tokens 64 ";

TEST_F(Calibrate, ProfilesAnEngineThatComputes) {
  const Outcome run = loratory(kProfiled + "--out p.json --steps-out s.csv");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("held traces"), std::string::npos) << run.out;
  const auto profile = nlohmann::json::parse(content("p.json"));
  EXPECT_EQ(profile.at("provenance").at("engine"), "loratory on the CPU");
  EXPECT_EQ(profile.at("provenance").at("gpu"), "CPU");
  const std::string source = profile.at("provenance").at("source");
  EXPECT_NE(source.find("steps of --executor reference"), std::string::npos) << source;

  // The recorded steps give the same terms again.
  const Outcome again = loratory("calibrate --steps s.csv --gpu CPU --model x --out q.json");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto fitted = nlohmann::json::parse(content("q.json"));
  EXPECT_EQ(fitted.at("constant_ns"), profile.at("constant_ns"));
  EXPECT_EQ(fitted.at("ns_per"), profile.at("ns_per"));
  // Which types they are of, steps do not say.
  for (const auto& its : {profile, fitted}) EXPECT_EQ(its.at("provenance").at("max_rank"), 4);
  EXPECT_TRUE(profile.at("provenance").contains("adapter_bits"));
  EXPECT_FALSE(fitted.at("provenance").contains("adapter_bits"));

  // And `replay` takes them.
  write("t.jsonl", R"({"arrival_ms":0,"prompt_tokens":12,"output_tokens":4})"
                   "\n");
  const Outcome replay = loratory("replay --trace t.jsonl --profile p.json --max-loras 2");
  EXPECT_EQ(replay.exit_code, 0) << replay.err;
}

// What is run is decided by the limits alone; only the times differ.
TEST_F(Calibrate, TheProfiledStepsRepeat) {
  const auto shapes = [&](const std::string& file) {
    EXPECT_EQ(loratory(kProfiled + "--out p.json --steps-out " + file).exit_code, 0);
    std::istringstream lines(content(file));
    std::string all;
    for (std::string line; std::getline(lines, line);) {
      all += line.substr(0, line.rfind(',')) + "\n";
    }
    return all;
  };
  EXPECT_EQ(shapes("a.csv"), shapes("b.csv"));
}

TEST_F(Calibrate, StepsAndRunsAreTwoThings) {
  write("s.csv", "held\n");
  expect_error("calibrate --out p.json",
               "calibrate: nothing to fit to; give --measured, --executor or --steps");
  expect_error("calibrate --steps s.csv --executor reference --out p.json",
               "calibrate: two things to fit to; give --measured, --executor or --steps");
  expect_error("calibrate --measured runs.csv --max-loras 4 --out p.json",
               "--max-loras: changes nothing: the runs were measured; leave it out");
  expect_error("calibrate --steps s.csv --folds 2 --out p.json",
               "--folds: changes nothing: steps are fitted, not runs; leave it out");
  expect_error("calibrate --steps s.csv --weights random --out p.json",
               "--weights: changes nothing: the steps were recorded; leave it out");
  expect_error("calibrate --executor reference --out p.json",
               "--executor: reference needs a model; add --weights DIR, or --weights random");
  expect_error("calibrate --steps s.csv --out p.json",
               "s.csv:1:1: column num_seqs is missing; traces/SCHEMA.md has the columns");
}

}  // namespace
}  // namespace loratory
