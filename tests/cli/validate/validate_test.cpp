#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/cli/program.hpp"
#include "tests/scheduler_sim/measured_data.hpp"

namespace loratory {
namespace {

class Validate : public ProgramTest {
 protected:
  static std::string sample() {
    return (fs::path(LORATORY_SOURCE_DIR) / "traces/measured_sample.csv").string();
  }
  void expect_error(const std::string& arguments, const std::string& line) const {
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_EQ(run.err, "loratory: " + line + "\n") << arguments;
  }
};

TEST_F(Validate, TheSampleOfThreeRuns) {
  const Outcome run = loratory("validate --measured '" + sample() + "' --json v.json --csv v.csv");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("3 runs, 3 simulated"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("best max_loras of 1 sweep"), std::string::npos) << run.out;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;

  const auto json = nlohmann::json::parse(content("v.json"));
  EXPECT_EQ(json.at("schema"), "loratory.validation/1");
  EXPECT_EQ(json.at("runs").size(), 3u);
  EXPECT_EQ(json.at("inputs").at(0).at("format"), "native");
  // Few requests on many slots: what comes in goes out, and luck is all there is.
  EXPECT_LT(json.at("all").at("errors").at("completed").at("mean").get<double>(), 0.05);
  EXPECT_EQ(json.at("all").at("num_starts_known"), 3);
  EXPECT_TRUE(json.at("all").at("wrong_starts").empty());
  const std::string csv = content("v.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
}

TEST_F(Validate, TheSameSeedGivesTheSameFileOnAnyNumberOfThreads) {
  const std::string flags = "validate --measured '" + sample() + "' --rows :2 --csv ";
  ASSERT_EQ(loratory(flags + "a.csv --threads 1").exit_code, 0);
  ASSERT_EQ(loratory(flags + "b.csv --threads 3").exit_code, 0);
  ASSERT_EQ(loratory(flags + "c.csv --seed 2").exit_code, 0);
  EXPECT_EQ(content("a.csv"), content("b.csv"));
  EXPECT_NE(content("a.csv"), content("c.csv"));
}

// A quiet part of the public sweep. What comes in goes out, so completed requests differ by luck
// alone: 6,900 Poisson arrivals against the mean of three such draws are 1.4 % apart (one sigma).
TEST_F(Validate, SixRunsOfThePublicSweep) {
  const fs::path table =
      sim::reference_folder() / "agullo_vllm085_multilora_sweep_measured_vs_dt.csv";
  if (!fs::exists(table)) GTEST_SKIP() << "no measured servers";
  const Outcome run = loratory("validate --measured '" + table.string() +
                               "' --rows '0.025, 32 adapters' --json v.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::fputs(run.out.c_str(), stdout);
  const auto json = nlohmann::json::parse(content("v.json"));
  EXPECT_EQ(json.at("runs").size(), 6u);
  EXPECT_EQ(json.at("sweeps").size(), 2u);
  const auto completed = json.at("all").at("errors").at("completed").at("worst").get<double>();
  EXPECT_LT(std::fabs(completed), 4 * 0.014);
  EXPECT_TRUE(json.at("all").at("wrong_starts").empty());
}

// Nothing but starts: memory alone decides, and vLLM 0.8.5's is known to the byte.
TEST_F(Validate, StartsOfThePublicTable) {
  const fs::path table = sim::reference_folder() / "vllm_kv_tokens_by_max_loras_rank.csv";
  if (!fs::exists(table)) GTEST_SKIP() << "no measured servers";
  const Outcome run = loratory("validate --measured '" + table.string() + "' --json v.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::fputs(run.out.c_str(), stdout);
  const auto json = nlohmann::json::parse(content("v.json"));
  EXPECT_EQ(json.at("all").at("num_starts_known"), 84);
  EXPECT_LT(json.at("all").at("errors").at("weights").at("mean").get<double>(), 0.01);
  EXPECT_TRUE(json.at("all").at("wrong_starts").empty());
}

// Two results of one server and one of another, which has a log of its own.
TEST_F(Validate, ResultsOfALoadGeneratorWithTheirServersLogs) {
  const auto result = [](int rate) {
    return fmt::format(
        R"({{"backend": "openai", "model_id": "m/Llama-3.1-8B", "num_prompts": 40,)"
        R"( "rate_counts": 8, "request_rate": {}, "duration": 12, "completed": 40,)"
        R"( "total_input_tokens": 4000, "total_output_tokens": 2000, "mean_ttft_ms": 30,)"
        R"( "mean_itl_ms": 9}})",
        rate);
  };
  const auto log = [](int max_loras) {
    return fmt::format(
        "INFO [a.py:1] vLLM API server version 0.8.5\nINFO [a.py:2] args: Namespace(enable_lora="
        "True, max_loras={}, max_cpu_loras=8)\n",
        max_loras);
  };
  write("a.json", result(4));
  write("b.json", result(2));
  write("b.server.log", log(2));
  write("s.log", log(4));
  const std::string flags = "validate --measured a.json --measured b.json --server-log s.log ";
  const Outcome run = loratory(flags + "--describe gpu=H100-80 --json v.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(content("v.json"));
  ASSERT_EQ(json.at("runs").size(), 2u);
  EXPECT_EQ(json.at("inputs").size(), 2u);
  EXPECT_EQ(json.at("runs").at(0).at("max_loras"), 4);
  EXPECT_EQ(json.at("runs").at(1).at("max_loras"), 2);
  EXPECT_EQ(json.at("runs").at(1).at("engine"), "vllm-0.8");
  EXPECT_EQ(json.at("runs").at(0).at("num_adapters"), 8);
  EXPECT_EQ(json.at("runs").at(0).at("predicted").at("completed"), 40);
  expect_error(flags + "--describe gpu", "--describe: gpu has no value; write gpu=VALUE");
  expect_error(flags + "--json b.server.log",
               "--json: 'b.server.log' is the server's log; it would be overwritten: name another "
               "file");
}

TEST_F(Validate, ThePageHoldsEveryRunAndFetchesNothing) {
  ASSERT_EQ(loratory("validate --measured '" + sample() + "' --html v.html").exit_code, 0);
  const std::string html = content("v.html");
  EXPECT_EQ(html.find("http://"), std::string::npos);
  EXPECT_EQ(html.find("https://"), std::string::npos);
  EXPECT_NE(html.find("Throughput is <em>"), std::string::npos);
  for (const char* run :
       {"16 slots, 32 adapters", "32 slots, 32 adapters", "8 slots, 32 adapters"}) {
    EXPECT_NE(html.find(run), std::string::npos) << run;
  }
  for (const char* id : {"throughput", "completed", "itl", "tpot", "ttft"}) {
    EXPECT_NE(html.find("<figure id=\"" + std::string(id) + "\">"), std::string::npos) << id;
  }
}

TEST_F(Validate, BadInputIsOneLine) {
  expect_error("validate --measured '" + sample() + "' --rows nobody",
               "--rows: no run has 'nobody' in its place, group or sweep; name a group as validate "
               "prints it, or leave --rows out");
  write("m.csv", "model,engine,gpu,kv_tokens\nLlama-9,vllm,H200,1\n");
  EXPECT_NE(loratory("validate --measured m.csv").err.find("m.csv:2: "), std::string::npos);
  write("m.csv", "model,engine,gpu,kv_tokens\nLlama-3.1-8B,vllm,H200,x\n");
  expect_error("validate --measured m.csv",
               "m.csv:2:24: 'x' is not a number from 0; write a decimal number, or leave the cell "
               "empty");
  expect_error("validate --measured m.csv --json m.csv",
               "--json: 'm.csv' is the measured runs; it would be overwritten: name another file");
}

}  // namespace
}  // namespace loratory
