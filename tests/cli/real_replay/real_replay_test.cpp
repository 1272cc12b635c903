// `loratory replay --executor reference`: a trace on an engine that computes, in real time.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.hpp"
#include "tests/golden/fixture.hpp"

namespace loratory {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = reference::kFixtures + "llama_gqa";

class RealReplay : public ProgramTest {
 protected:
  // 12 requests for the base model and 3 adapters in 12 ms; every other one begins as the first.
  void write_trace() const {
    std::string rows;
    for (int i = 0; i < 12; ++i) {
      const std::string adapter =
          i % 4 == 0 ? "" : fmt::format(R"(,"adapter":"a{}","rank":{})", i % 4, 2 * (i % 4));
      rows += fmt::format(R"({{"arrival_ms":{},"prompt_tokens":12,"output_tokens":{},)"
                          R"("block_tokens":4,"block_ids":[{},{},{}]{}}})"
                          "\n",
                          i, 3 + i % 3, i % 2, 2 + i % 2, 4 + i, adapter);
    }
    write("t.jsonl", rows);
  }
  Outcome replay(const std::string& more) const {
    write_trace();
    return loratory("replay --trace t.jsonl --executor reference --weights " + kModel +
                    " --max-loras 2 --max-num-batched-tokens 256 " + more);
  }
};

TEST_F(RealReplay, GivesTheFilesOfAReplay) {
  const Outcome run = replay(
      "--json r.json --perfetto p.json --html r.html --requests-csv q.csv --event-log log.txt "
      "--adapter-dir kept");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json config = json::parse(content("r.json"))["configs"][0];
  EXPECT_EQ(config["num_requests"], 12);
  EXPECT_EQ(config["completed"], 12);
  EXPECT_EQ(config["total_output_tokens"], 48);  // as the trace says, whatever they are
  EXPECT_GT(config["mean_ttft_ms"], 0);
  EXPECT_GT(config["prefix_hit_ratio_tokens"], 0);  // blocks that are equal have equal tokens
  EXPECT_EQ(config["adapter_loads"], 3);
  EXPECT_GT(json::parse(content("p.json"))["traceEvents"].size(), 40u);
  EXPECT_THAT(content("log.txt"), HasSubstr("first_token"));
  EXPECT_THAT(content("r.html"), HasSubstr("loratory on the CPU"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("kept")), fs::directory_iterator()), 3);
}

// One request at a time, so that the others wait: for what, a blocking engine does not show.
TEST_F(RealReplay, WhatIsNotKnownOfWaitsIsNotSaid) {
  const Outcome run = replay("--max-num-seqs 1 --load-mode blocking --json r.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json config = json::parse(content("r.json"))["configs"][0];
  for (const char* what : {"wait_load", "wait_slot", "wait_copy", "wait_batch"}) {
    EXPECT_EQ(config[std::string(what) + "_requests"], 0) << what;
  }
}

TEST_F(RealReplay, AStepAheadDoesTheSameWork) {
  const Outcome run = replay("--json r.json --async-scheduling on --rate-scale 0.5");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json config = json::parse(content("r.json"))["configs"][0];
  EXPECT_EQ(config["completed"], 12);
  EXPECT_EQ(config["total_output_tokens"], 48);
}

// Both are drawn over each other, and the simulator's error is told.
TEST_F(RealReplay, LaysTheSimulationBesideIt) {
  const Outcome run = replay("--with-simulation --perfetto p.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("simulated"));
  EXPECT_THAT(run.out, HasSubstr("TPOT mean, ms"));
  std::map<std::string, int> pids;
  std::map<int, int> requests;  // begun, by process
  const json file = json::parse(content("p.json"));
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "process_name") pids[event["args"]["name"]] = event["pid"];
    const bool begins = event["ph"] == "b";
    if (begins && std::string(event["name"]).starts_with("request ")) ++requests[event["pid"]];
  }
  EXPECT_EQ(pids.size(), 6u);
  EXPECT_NE(pids["requests (real)"], pids["requests (simulated)"]);
  EXPECT_EQ(requests[pids["requests (real)"]], 12);
  EXPECT_EQ(requests[pids["requests (simulated)"]], 12);
}

TEST_F(RealReplay, BadInputIsOneLine) {
  write_trace();
  const auto expect = [&](const std::string& flags, const std::string& line) {
    const Outcome run = loratory("replay --trace t.jsonl " + flags);
    EXPECT_EQ(run.exit_code, 2) << flags;
    EXPECT_EQ(run.out, "") << flags;
    EXPECT_THAT(run.err, HasSubstr(line)) << flags;
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
  };
  const std::string real = "--executor reference ";
  expect(real, "--executor: reference needs a model");
  expect(real + "--weights random", "random weights are made on a GPU");
  expect(real + "--weights nowhere", "nowhere");
  expect(real + "--weights " + kModel + " --model Llama-3.1-8B", "--model");
  expect(real + "--weights " + kModel + " --stepwise", "--stepwise");
  expect("--with-simulation", "the simulator computes nothing");
  expect("--async-scheduling on --replicas 2",
         "--replicas: changes nothing: --async-scheduling on is of one engine");
  write("long.jsonl", R"({"arrival_ms":0,"prompt_tokens":99999,"output_tokens":4})"
                      "\n");
  const Outcome run = loratory("replay --trace long.jsonl " + real + "--weights " + kModel);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("positions"));
}

}  // namespace
}  // namespace loratory
