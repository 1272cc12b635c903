#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.hpp"

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
