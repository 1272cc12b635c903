// `--replicas` and its companions from outside, on the bundled trace.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

using nlohmann::json;

class FleetFlags : public ProgramTest {
 protected:
  const std::string sample_ =
      std::string("--trace ") + LORATORY_SOURCE_DIR + "/traces/sample.jsonl.gz ";

  json replay(const std::string& flags) const {
    const Outcome run = loratory("replay " + sample_ + "--json r.json " + flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(content("r.json"))["configs"][0];
  }
  void expect_bad_input(const std::string& flags, const std::string& line) const {
    const Outcome run = loratory("replay " + sample_ + flags);
    EXPECT_EQ(run.exit_code, 2) << flags;
    EXPECT_EQ(run.out, "") << flags;
    EXPECT_EQ(run.err, "loratory: " + line + "\n") << flags;
  }
};

TEST_F(FleetFlags, OneReplicaIsTheEngineAlone) {
  const json alone = replay("--max-loras 8");
  const json fleet = replay("--max-loras 8 --replicas 1 --router llm-d");
  EXPECT_EQ(fleet["event_log_hash"], alone["event_log_hash"]);
  EXPECT_EQ(fleet["p99_ttft_ms"], alone["p99_ttft_ms"]);
  EXPECT_EQ(fleet["replicas"].size(), 1u);
  EXPECT_FALSE(alone.contains("replicas"));
  EXPECT_EQ(alone["num_replicas"], 1);
}

TEST_F(FleetFlags, RoutersReachTheReplay) {
  for (const char* router : {"round-robin", "least-loaded", "power-of-two", "prefix-affinity",
                             "lora-affinity", "llm-d"}) {
    const json config = replay(std::string("--max-loras 8 --tp 2 --replicas 3 --router ") + router);
    EXPECT_EQ(config["router"], router);
    EXPECT_EQ(config["completed"], 3588);
    EXPECT_EQ(config["num_gpus"], 6);
    int64_t sum = 0;
    for (const json& replica : config["replicas"]) sum += int64_t(replica["num_requests"]);
    EXPECT_EQ(sum, 3588);
  }
}

// The seed draws for the router, the age of the metrics changes what it sees.
TEST_F(FleetFlags, SeedAndScrapesReachTheRouter) {
  const std::string flags = "--max-loras 8 --replicas 4 --router lora-affinity ";
  const json plain = replay(flags);
  EXPECT_NE(replay(flags + "--seed 1")["event_log_hash"], plain["event_log_hash"]);
  EXPECT_NE(replay(flags + "--scrape-ms 2000")["event_log_hash"], plain["event_log_hash"]);
  EXPECT_EQ(replay(flags + "--scrape-ms 50 --stepwise")["event_log_hash"], plain["event_log_hash"]);
}

TEST_F(FleetFlags, CostIsGpuHoursTimesThePrice) {
  const Outcome run = loratory("replay " + sample_ +
                               "--max-loras 8 --tp 2 --gpu-hour-usd 2.5 --json r.json "
                               "--html r.html");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json config = json::parse(content("r.json"))["configs"][0];
  const double hours = config["gpu_hours_per_million_tokens"];
  const double tokens_per_s = config["total_token_throughput"];
  EXPECT_DOUBLE_EQ(hours, 2 / (tokens_per_s * 3600) * 1e6);
  EXPECT_DOUBLE_EQ(config["usd_per_million_tokens"], 2.5 * hours);
  EXPECT_NE(run.out.find("USD/M tokens"), std::string::npos);
  EXPECT_NE(content("r.html").find("USD/M tokens"), std::string::npos);
}

TEST_F(FleetFlags, EventLogNamesTheReplica) {
  ASSERT_EQ(loratory("replay " + sample_ + "--replicas 2 --event-log log.txt").exit_code, 0);
  const std::string log = content("log.txt");
  EXPECT_EQ(log.rfind("0 ", 0), 0u);
  EXPECT_NE(log.find("\n1 "), std::string::npos);
  EXPECT_NE(log.find(" finish 3587 "), std::string::npos);  // the trace's number of the last one
}

TEST_F(FleetFlags, AutoFindsTheFewestWithMargin) {
  const std::string flags = "--max-loras 16 --gpu L40S --slo-ttft-ms 2000 --slo-tpot-ms 80 ";
  const json found = replay(flags + "--replicas auto --margin 1.3");
  const int num_replicas = found["num_replicas"];
  ASSERT_GT(num_replicas, 1);
  EXPECT_EQ(found["meets_slo"], true);
  const std::string at_margin = flags + "--rate-scale 1.3 --replicas ";
  EXPECT_EQ(replay(at_margin + std::to_string(num_replicas))["meets_slo"], true);
  EXPECT_EQ(replay(at_margin + std::to_string(num_replicas - 1))["meets_slo"], false);
}

TEST_F(FleetFlags, SizeComparesReplicasWithSlots) {
  const Outcome run =
      loratory("size " + sample_ +
               "--max-loras 8,32 --gpu L40S --slo-ttft-ms 2000 --slo-tpot-ms 80 "
               "--replicas auto --router lora-affinity --no-headroom --json size.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = json::parse(content("size.json"));
  ASSERT_EQ(result["fleets"].size(), 2u);
  int fewest = 1000;
  for (const json& fleet : result["fleets"]) {
    EXPECT_EQ(fleet["meets_slo"], true);
    fewest = std::min(fewest, int(fleet["num_replicas"]));
  }
  for (const json& config : result["configs"]) EXPECT_EQ(config["num_replicas"], fewest);
  EXPECT_NE(run.out.find("Fewest replicas for each max_loras"), std::string::npos);
}

TEST_F(FleetFlags, AdviceNamesTheReplicasThatAutoFinds) {
  const std::string flags =
      "size " + sample_ + "--max-loras 16 --gpu L40S --slo-ttft-ms 2000 --slo-tpot-ms 80 ";
  ASSERT_EQ(loratory(flags + "--json one.json").exit_code, 3);
  const json one = json::parse(content("one.json"));
  ASSERT_EQ(loratory(flags + "--no-headroom --replicas auto --json auto.json").exit_code, 0);
  const int found = json::parse(content("auto.json"))["fleets"][0]["num_replicas"];
  const std::string advice = "--replicas " + std::to_string(found);
  EXPECT_EQ(one["remedies"][0]["flags"], advice);
  EXPECT_NE(std::string(one["next_limit"]).find("; " + advice + " (TTFT p99 "), std::string::npos);
}

TEST_F(FleetFlags, BadInputIsOneLine) {
  for (const char* bad : {"0", "nan", "-1", "1001", "2.5", "Auto"}) {
    const Outcome run = loratory("replay " + sample_ + "--replicas " + bad);
    EXPECT_EQ(run.exit_code, 2) << bad;
    EXPECT_EQ(run.err.rfind("loratory: --replicas: ", 0), 0u) << run.err;
    EXPECT_NE(run.err.find("give the number of engines, or auto\n"), std::string::npos) << run.err;
  }
  expect_bad_input("--router llm-d",
                   "--router: changes nothing: one engine alone has no router; add --replicas N or "
                   "auto");
  expect_bad_input(
      "--replicas 2 --scrape-ms 10",
      "--scrape-ms: changes nothing: the router round-robin reads no metrics; leave it "
      "out, or choose lora-affinity or llm-d");
  expect_bad_input("--replicas 2 --margin 1.5",
                   "--margin: changes nothing: the number of replicas is given; leave it out, or "
                   "use --replicas auto");
  for (const char* bad : {"--router lora", "--scrape-ms nan", "--margin 0.5", "--gpu-hour-usd nan",
                          "--gpu-hour-usd -1"}) {
    EXPECT_EQ(loratory("replay " + sample_ + "--replicas 2 " + bad).exit_code, 2) << bad;
  }
}

}  // namespace
}  // namespace loratory
