// Views of one hand-made result against files in golden/. After a change that is meant to show:
//   LORATORY_UPDATE_GOLDEN=1 ./tests/report_test && git diff tests/scheduler_sim/report/golden
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include <sys/wait.h>

#include "fixture.hpp"
#include "scheduler_sim/measured/measure_fields.hpp"
#include "scheduler_sim/report/advice.hpp"
#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/report/csv.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html.hpp"
#include "scheduler_sim/report/json.hpp"
#include "scheduler_sim/report/perfetto.hpp"
#include "scheduler_sim/report/prometheus.hpp"
#include "scheduler_sim/report/validation_report.hpp"
#include "scheduler_sim/sizing/headroom.hpp"

namespace loratory::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = LORATORY_SOURCE_DIR "/tests/scheduler_sim/report/golden/" + name;
  if (std::getenv("LORATORY_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string expected(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(actual, expected) << "differs from golden/" << name;
}

template <class Writer>
std::string written(Writer writer) {
  std::ostringstream out;
  writer(out);
  return std::move(out).str();
}

SizeResult replay_result() {
  SizeResult result = test::small_result();
  result.is_replay = true;
  result.configs = {test::kept_config()};
  return result;
}

// One gap on a bound of vLLM's, two above its last.
ConfigResult kept_with_gaps() {
  ConfigResult config = test::kept_config();
  config.itl_counts = {{10e6, 3}, {90e9, 2}};
  return config;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Golden, SizeConsole) { expect_golden("size.txt", size_console(test::small_result(), false)); }

TEST(Golden, ReplayConsole) { expect_golden("replay.txt", replay_console(replay_result())); }

TEST(Golden, SizeJson) {
  expect_golden("size.json",
                written([](auto& out) { write_results_json(out, test::small_result()); }));
}

TEST(Golden, ReplayJson) {
  expect_golden("replay.json",
                written([](auto& out) { write_results_json(out, replay_result()); }));
}

TEST(Golden, ResultsCsv) {
  expect_golden("results.csv", written([](auto& out) {
                  write_results_csv(out, test::small_result().configs, "vLLM 0.8.5");
                }));
}

TEST(Golden, RequestsCsv) {
  expect_golden("requests.csv", written([](auto& out) {
                  write_requests_csv(out, test::small_requests(), test::small_trace());
                }));
}

TEST(Golden, Perfetto) {
  expect_golden("perfetto.json", written([](auto& out) {
                  write_perfetto(out, test::kept_config(), test::small_result().provenance,
                                 test::small_adapters());
                }));
}

TEST(Golden, Prometheus) {
  expect_golden("metrics.prom", written([](auto& out) {
                  write_prometheus(out, kept_with_gaps(), test::small_result().workload,
                                   test::small_result().provenance);
                }));
}

TEST(Console, FitsAHundredColumns) {
  SizeResult result = test::big_result();
  result.configs[2].cause.kind = CauseKind::too_large;
  result.configs[2].failed = 54'000;
  result.configs[2].meets_slo = false;
  for (const int32_t host : {256, 512}) {
    result.configs[0].max_cpu_loras = host;
    for (const std::string& line : lines_of(size_console(result, false))) {
      EXPECT_LE(line.size(), 100U) << line;
    }
  }
}

TEST(Console, MarksOnlyTheRecommendedRow) {
  const auto lines = lines_of(size_console(test::small_result(), false));
  const auto marked = [](const std::string& line) { return line.starts_with("> "); };
  ASSERT_EQ(std::count_if(lines.begin(), lines.end(), marked), 1);
  EXPECT_THAT(*std::find_if(lines.begin(), lines.end(), marked), HasSubstr("16"));
}

TEST(Console, ColourOnlyWhenAskedFor) {
  EXPECT_THAT(size_console(test::small_result(), false), Not(HasSubstr("\x1b[")));
  EXPECT_THAT(size_console(test::small_result(), true), HasSubstr("\x1b["));
}

TEST(Console, SaysWhenNothingMeetsTheSlos) {
  SizeResult result = test::small_result();
  result.recommended = -1;
  EXPECT_THAT(size_console(result, false), HasSubstr("No configuration meets the SLOs."));
}

TEST(Console, LeavesOutHeadroomThatIsNotKnown) {
  SizeResult result = test::small_result();
  EXPECT_THAT(size_console(result, false), HasSubstr("head-"));
  for (ConfigResult& c : result.configs) c.headroom = -1;
  EXPECT_THAT(size_console(result, false), Not(HasSubstr("head-")));
}

// --- words -----------------------------------------------------------------------------------

TEST(Advice, AProfileSaysHowFarItIsOff) {
  SizeResult result;
  result.workload.cost_model = "profile p.json";
  result.workload.profile_of = "M, G, vLLM 0.8.5";
  EXPECT_THAT(report::caveat(result), HasSubstr("does not say how far it is off"));
  result.workload.expected_error = {
      .num_runs = 74, .throughput = 0.0221, .itl = 0.041, .how = "5 folds of whole sweeps"};
  result.workload.not_of_profile = "model, GPU";
  EXPECT_EQ(report::caveat(result),
            "treat the sizes as a ranking: 74 measured runs of M, G, vLLM 0.8.5, none of this "
            "model, GPU");
  result.workload.not_of_profile = "";
  EXPECT_EQ(
      report::caveat(result),
      "throughput +-2.2 %, ITL +-4.1 %: 74 measured runs of M, G, vLLM 0.8.5, 5 folds of whole "
      "sweeps");
}

TEST(Advice, FactorsAndSharesNeverRoundToNonsense) {
  using report::factor_text, report::share_text, report::headroom_text;
  EXPECT_EQ(factor_text(60303), "over 100x");
  EXPECT_EQ(factor_text(47.4), "47x");
  EXPECT_EQ(factor_text(2.04), "2.0x");
  EXPECT_EQ(factor_text(1), "1.00x");
  EXPECT_EQ(factor_text(1.004), "1.004x");  // a miss
  EXPECT_EQ(factor_text(1.00004), "1.00004x");
  EXPECT_EQ(factor_text(0.99996), "0.99996x");
  EXPECT_EQ(factor_text(1.006), "1.01x");
  EXPECT_EQ(factor_text(1 + 1e-9), "just over 1x");
  EXPECT_EQ(factor_text(0.61), "0.61x");
  EXPECT_EQ(factor_text(0.01), "under 0.1x");
  EXPECT_EQ(headroom_text(rate_factor(kMostStep)), "15x or more");
  EXPECT_EQ(share_text(0.004), "under 1 %");
  EXPECT_EQ(share_text(0.9951), "over 99 %");
  EXPECT_EQ(share_text(0.41), "41 %");
  EXPECT_EQ(share_text(0), "none");
}

TEST(Advice, VerdictsNameTheLimitThatRules) {
  ConfigResult c = test::small_config(4);
  EXPECT_EQ(report::verdict_text(c), "meets the SLO");
  c.meets_slo = false, c.failed = 0;
  c.cause = {CauseKind::kv_cache, false, 1.3, 0.5, 0.4, 0};
  c.num_seeds_met = 2;
  EXPECT_EQ(report::verdict_text(c), "TPOT 1.30x in 1 of 3 seeds: KV cache");
  c.num_seeds_met = 0;
  EXPECT_EQ(report::verdict_text(c), "TPOT 1.30x: KV cache");
  c.cause.kind = CauseKind::none;  // a replay by itself
  EXPECT_EQ(report::verdict_text(c), "TPOT 1.30x");
  c.cause.is_ttft = true;
  EXPECT_EQ(report::verdict_text(c),
            "TTFT 1.30x: late requests wait for a slot (50 % of their wait)");
  c.failed = 1, c.cause.kind = CauseKind::too_large;
  EXPECT_EQ(report::verdict_text(c), "1 request larger than the KV cache");
  EXPECT_EQ(report::verdict_text(test::infeasible_config()),
            "does not fit: slots need 94.0 GiB, 54.0 GiB are left");
}

TEST(Advice, ReasonComparesTheChosenWithTheSmallest) {
  SizeResult result = test::big_result();  // 24 would do, 32 are chosen
  EXPECT_THAT(report::reason(result),
              HasSubstr("24 slots meet TTFT p99 <= 500 ms and TPOT p99 <= 50 ms with all 3 seeds "
                        "and hold to "));
  EXPECT_THAT(report::reason(result), HasSubstr("of this traffic, 32 to "));
  EXPECT_THAT(report::reason(result), HasSubstr("of the KV blocks"));
  result.smallest = result.recommended;
  EXPECT_THAT(report::reason(result), HasSubstr("32 slots are the fewest tried that meet"));
  EXPECT_THAT(report::reason(result), Not(HasSubstr("of the best goodput")));
  std::ranges::find(result.configs, 24, &ConfigResult::max_loras)->num_seeds_met = 3;
  EXPECT_THAT(report::reason(result), HasSubstr("and lose less than 1 % of the best goodput"));
  EXPECT_THAT(
      report::next_limit(result),
      HasSubstr("at 1.49x of this traffic TTFT p99 is 1.10x the limit: 41 % of the requests "
                "wait while their adapter is loaded"));
  result.num_seeds = 1;
  result.recommended = result.smallest = 0;
  result.configs[0].max_loras = 1;
  EXPECT_THAT(report::reason(result), HasSubstr("1 slot is the fewest tried that meets"));
  EXPECT_THAT(report::reason(result), HasSubstr("no smaller size was tried"));
}

TEST(Advice, SaysWhatWouldDoWhereNothingDoes) {
  SizeResult result = test::small_result();
  result.recommended = result.smallest = -1;
  result.configs[1].meets_slo = false;
  result.configs[1].failed = 0;
  result.configs[1].slo_ttft_ms = 640, result.configs[1].slo_tpot_ms = 33;
  result.configs[1].headroom = 0.41;
  result.configs[1].cause = {CauseKind::load_peaks, true, 18, 0.46, 18, 16};
  result.ttft_max_ms[1] = 700;
  result.remedies.resize(3);
  result.remedies[0].flags = "--replicas 3";
  result.remedies[1].flags = "--tp 2";
  result.remedies[2].flags = "--gpu H200";
  result.remedies[0].result = result.remedies[2].result = test::small_config(16);
  result.remedies[2].result.slo_ttft_ms = 412;
  EXPECT_THAT(report::reason(result),
              HasSubstr("the base model alone misses by 18x, and the busiest moments have 16x the "
                        "mean rate; with Poisson arrivals it would be 0.46x"));
  EXPECT_EQ(report::next_limit(result),
            "what would do: 16 slots meet TTFT p99 <= 700 ms; --replicas 3 (TTFT p99 413 ms); "
            "--gpu H200 (TTFT p99 412 ms); not --tp 2 (does not fit)");
}

// A limit that the worst seed keeps when it is typed as it is shown.
TEST(Advice, RelaxedLimitsHoldForEverySeed) {
  SizeResult result = test::small_result();
  result.recommended = result.smallest = -1;
  result.slo = {.tpot_ms = 20};
  ConfigResult& closest = result.configs[1];
  closest.meets_slo = false, closest.failed = 0;
  closest.cause = {CauseKind::gpu_speed, false, 1.04, 0.6, 1.04, 0};
  closest.slo_tpot_ms = 19.5;  // of the median seed
  result.tpot_max_ms = {0, 20.84, 0};
  EXPECT_EQ(report::next_limit(result), "what would do: 16 slots meet TPOT p99 <= 20.9 ms");
  result.tpot_max_ms = {0, 19.9, 0};  // nothing to relax: a request was refused
  EXPECT_EQ(report::next_limit(result), "");
  result.remedies.resize(1);
  result.remedies[0] = {.flags = "--tp 2", .fits = true, .result = test::small_config(16)};
  EXPECT_EQ(report::next_limit(result), "what would do: --tp 2 (TTFT p99 413 ms)");
}

TEST(Advice, ARemedyThatRefusesRequestsSaysSo) {
  SizeResult result = test::small_result();
  result.recommended = result.smallest = -1;
  result.configs[1].meets_slo = false, result.configs[1].failed = 0;
  result.configs[1].slo_ttft_ms = 640, result.ttft_max_ms[1] = 640;
  result.remedies.resize(1);
  result.remedies[0] = {.flags = "--tp 2", .fits = true, .result = test::small_config(16)};
  result.remedies[0].result.meets_slo = false, result.remedies[0].result.failed = 3;
  EXPECT_EQ(report::next_limit(result),
            "what would do: 16 slots meet TTFT p99 <= 640 ms; not --tp 2 (3 requests failed)");
  result.remedies[0].result.failed = result.remedies[0].result.completed = 0;
  EXPECT_EQ(report::next_limit(result),
            "what would do: 16 slots meet TTFT p99 <= 640 ms; not --tp 2 (no request completes)");
}

TEST(Advice, WithoutALimitItIsEnoughToServeEveryRequest) {
  SizeResult result = test::small_result();
  result.slo = {};
  result.configs = {test::small_config(1)};
  result.recommended = result.smallest = 0;
  EXPECT_THAT(report::reason(result),
              HasSubstr("1 slot is the fewest tried that serves every request with all 3 seeds"));
  result.recommended = -1;
  result.configs[0].meets_slo = false;
  EXPECT_THAT(report::reason(result),
              HasSubstr("no configuration serves every request; the best goodput is 7.9 requests/s "
                        "with 1 slot, where 99.1 % of the requests complete"));
}

TEST(Advice, LimitsAreRoundedUpAsTheyAreShown) {
  const std::pair<double, const char*> shown[] = {
      {0.0421, "0.043 ms"}, {0.9997, "1 ms"},         {1, "1 ms"},
      {3.141, "3.15 ms"},   {20.8, "20.8 ms"},        {20.8001, "20.9 ms"},
      {99.97, "100 ms"},    {640, "640 ms"},          {640.2, "641 ms"},
      {999.7, "1 s"},       {3211, "3.22 s"},         {59'010, "59.1 s"},
      {599'900, "10 min"},  {852'300, "14 min 13 s"}, {3'600'001, "1 h 1 min"}};
  for (const auto& [value, text] : shown) EXPECT_EQ(report::limit_ms(value), text) << value;
}

TEST(Advice, RoomInMemoryStandsBesideWhatWasReplayed) {
  SizeResult result = test::small_result();
  result.recommended = result.smallest = -1;
  result.configs = {test::infeasible_config()};
  result.remedies.resize(1);
  result.remedies[0] = {.flags = "--gpu H200", .fits = true, .result = test::small_config(16)};
  result.more_room = MoreRoom{1024, {"--max-lora-rank 8 has room for 9 KV tokens", "--tp 4 has"}};
  EXPECT_EQ(report::next_limit(result),
            "--gpu H200 (TTFT p99 413 ms); not replayed, with 1,024 slots: --max-lora-rank 8 has "
            "room for 9 KV tokens, --tp 4 has");
  result.remedies.clear();
  EXPECT_TRUE(report::next_limit(result).starts_with("not replayed, with 1,024 slots: --max-lora"));
}

TEST(Advice, ARankThatIsRoundedUpHasItsCost) {
  SizeResult result = test::small_result();
  EXPECT_THAT(report::reason(result), Not(HasSubstr("max_lora_rank")));
  result.rank_cost = RankCost{"vLLM 0.8.5", "8, 16, 32, ...", 32, 24, kGiB * 6 / 5};
  const std::string words =
      ". max_lora_rank is 32, because vLLM 0.8.5 allows 8, 16, 32, ...: 1.20 GiB more per GPU than "
      "the trace's rank 24 needs";
  EXPECT_TRUE(report::reason(result).ends_with(words)) << report::reason(result);
  result.recommended = -1;
  EXPECT_TRUE(report::reason(result).ends_with(words)) << report::reason(result);
}

TEST(Advice, LoadsAreMadeFewerOrFaster) {
  SizeResult result = test::small_result();
  result.recommended = result.smallest = -1;
  result.configs = {test::thrashing_config()};
  ConfigResult& c = result.configs[0];
  c.cause = {CauseKind::loads, true, 1.3, 0.6, 0.5, 0.41};
  c.max_cpu_loras = 2;  // of 3 adapters, read 61 times
  c.memory.host_bytes = 2 * kGiB;
  EXPECT_THAT(report::next_limit(result),
              HasSubstr("; host memory for all 3 adapters (3 GiB), which are now read 61 times: "
                        "TTFT p99 of 0.60x the limit at best"));
  c.max_cpu_loras = 3;
  c.waits.load.of_late_time = 0.5, c.waits.copy.of_late_time = 0.1;
  EXPECT_THAT(report::next_limit(result),
              HasSubstr("; a faster disk (--disk-gbps): TTFT p99 of 0.60x the limit at best"));
  c.waits.copy.of_late_time = 0.6;
  EXPECT_THAT(report::next_limit(result), HasSubstr("; a faster link to the GPU (--h2d-gbps): "));
  c.cause.kind = CauseKind::slots;
  EXPECT_THAT(report::next_limit(result), Not(HasSubstr("faster")));
}

TEST(Advice, ATraceWithoutAdaptersGetsTheFlagsThatAddSome) {
  SizeResult result = test::small_result();
  EXPECT_EQ(report::about_adapters(result), "");
  result.workload.num_adapters = 0;
  EXPECT_THAT(report::about_adapters(result), HasSubstr("--adapters 64 --popularity zipf:1"));
}

TEST(Json, HasEveryKeyOfTheSchema) {
  const auto json = nlohmann::json::parse(
      written([](auto& out) { write_results_json(out, test::small_result()); }));
  const auto& config = json["configs"][1];
  for (const char* name : {"ttft", "tpot", "itl", "e2el", "queue"}) {
    for (const char* statistic : {"mean", "std", "p50", "p90", "p95", "p99", "pslo"}) {
      EXPECT_TRUE(config.contains(std::string(statistic) + "_" + name + "_ms"));
    }
  }
  for (const char* key : {"max_loras",
                          "max_cpu_loras",
                          "num_requests",
                          "completed",
                          "duration_s",
                          "request_throughput",
                          "total_token_throughput",
                          "output_throughput",
                          "request_goodput",
                          "adapter_gpu_hit_ratio",
                          "adapter_cpu_hit_ratio",
                          "adapter_loads",
                          "adapter_load_bytes",
                          "prefix_hit_ratio_tokens",
                          "prefix_hit_ratio_blocks",
                          "num_preemptions",
                          "kv_blocks",
                          "slot_bytes",
                          "weights_bytes",
                          "event_log_hash",
                          "feasible",
                          "headroom",
                          "cause",
                          "slo_miss",
                          "wait_slot_requests",
                          "host_bytes",
                          "verdict"}) {
    EXPECT_TRUE(config.contains(key)) << key;
  }
  for (const char* key : {"schema", "command", "commit", "seed", "inputs", "recommended", "reason",
                          "choice", "smallest", "limit", "yardsticks", "remedies"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

// As vllm/benchmarks/serve.py names them; a percentile that is not whole keeps its point.
TEST(Json, HasWhatVllmsToolingReads) {
  SizeResult result = replay_result();
  result.slo.percentile = 97.5;
  result.configs[0].ttft.pslo_ms = 400;
  result.configs[0].fleet.num_replicas = 3;
  result.configs[0].fleet.num_gpus = 12;
  const auto json =
      nlohmann::json::parse(written([&](auto& out) { write_results_json(out, result); }));
  const auto& vllm = json["configs"][0]["vllm"];
  for (const char* name : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* statistic : {"mean", "median", "std", "p50", "p90", "p95", "p99", "p97.5"}) {
      EXPECT_TRUE(vllm.contains(std::string(statistic) + "_" + name + "_ms")) << statistic << name;
    }
  }
  EXPECT_EQ(vllm["p97.5_ttft_ms"], 400);
  EXPECT_EQ(vllm["failed"], 2);  // neither the cancelled nor the failed one
  EXPECT_EQ(vllm["total_input_tokens"], 217'321);
  EXPECT_TRUE(vllm["max_concurrency"].is_null());
  EXPECT_EQ(vllm["request_goodput"], 7.9);
  EXPECT_EQ(vllm["max_loras"], result.configs[0].max_loras);
  EXPECT_EQ(vllm["tensor_parallel_size"], 4);
  EXPECT_EQ(vllm["data_parallel_size"], 3);
  result.slo = {0, 0, 99};
  const auto without =
      nlohmann::json::parse(written([&](auto& out) { write_results_json(out, result); }));
  EXPECT_TRUE(without["configs"][0]["vllm"]["request_goodput"].is_null());
}

TEST(Json, ValuesThatAreNotFiniteAreNull) {
  SizeResult result = test::small_result();
  result.configs[0].ttft.p99_ms = INFINITY;
  result.configs[0].tpot.mean_ms = NAN;
  const auto json =
      nlohmann::json::parse(written([&](auto& out) { write_results_json(out, result); }));
  EXPECT_TRUE(json["configs"][0]["p99_ttft_ms"].is_null());
  EXPECT_TRUE(json["configs"][0]["mean_tpot_ms"].is_null());
}

TEST(Json, DoublesReadBackToTheSameValue) {
  SizeResult result = test::small_result();
  result.configs[0].duration_s = 0.1 + 0.2;
  const auto json =
      nlohmann::json::parse(written([&](auto& out) { write_results_json(out, result); }));
  EXPECT_EQ(json["configs"][0]["duration_s"].get<double>(), 0.1 + 0.2);
}

TEST(Json, BytesThatAreNotUtf8DoNotThrow) {
  SizeResult result = test::small_result();
  result.provenance.inputs[0].path = "caf\xe9.jsonl";
  EXPECT_NO_THROW(written([&](auto& out) { write_results_json(out, result); }));
}

// Names that would harm a terminal, a spreadsheet or a page; each medium parses as it should.
TEST(Names, AreHarmlessInEveryOutput) {
  const std::string name = "=\x1b[2J\xe2\x80\xae<b>,\"\n";
  const std::string shown = "=\\x1b[2J\\u202e<b>,\"\\n";
  SizeResult result = test::small_result();
  result.configs[1] = test::kept_config();
  result.workload.model = name;
  Trace trace = test::small_trace();
  trace.adapters[0].name = name;
  EXPECT_THAT(size_console(result, false), HasSubstr(shown));
  EXPECT_THAT(written([&](auto& out) {
                write_prometheus(out, result.configs[1], result.workload, result.provenance);
              }),
              HasSubstr("model_name=\"=\\\\x1b[2J\\\\u202e<b>,\\\"\\n\""));
  EXPECT_THAT(written([&](auto& out) { write_requests_csv(out, test::small_requests(), trace); }),
              HasSubstr("\n0,chat-9,\"'=\\x1b[2J\\u202e<b>,\"\"\\n\",8,"));
  const auto perfetto = nlohmann::json::parse(written([&](auto& out) {
    write_perfetto(out, result.configs[1], result.provenance, trace.adapters);
  }));
  EXPECT_THAT(perfetto.dump(), HasSubstr("request 0: ="));
  const std::string page = written([&](auto& out) { write_html(out, result, trace.adapters); });
  EXPECT_THAT(page, HasSubstr("<bdi>=\\x1b[2J\\u202e&lt;b&gt;,&quot;&#10;</bdi>"));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
}

// Names in the first column of the tables of docs/results.md, and those in backquotes beside them;
// a star stands for any latency.
// The names in tables of docs/results.md, from one heading to the next.
std::set<std::string> documented_names(const std::string& from, const std::string& to) {
  std::ifstream file(LORATORY_SOURCE_DIR "/docs/results.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t begin = text.find("\n" + from), end = text.find("\n" + to);
  EXPECT_LT(begin, end);
  std::set<std::string> names;
  for (const std::string& line : lines_of(text.substr(begin, end - begin))) {
    if (!line.starts_with("| `")) continue;
    for (size_t at = line.find('`'); at != std::string::npos; at = line.find('`', at + 1)) {
      const size_t close = line.find('`', at + 1);
      names.insert(line.substr(at + 1, close - at - 1));
      at = close;
    }
  }
  return names;
}

bool is_documented(const std::set<std::string>& names, std::string key) {
  for (const std::string latency : {"_ttft_", "_tpot_", "_itl_", "_e2el_", "_queue_"}) {
    const size_t at = key.find(latency);
    if (at != std::string::npos && !names.contains(key)) key.replace(at, latency.size(), "_*_");
  }
  return names.contains(key);
}

template <class Visit>
void visit_keys(const nlohmann::json& json, Visit visit) {
  for (const auto& [key, value] : json.items()) {
    if (json.is_object()) visit(key);
    if (json.is_structured() && key != "replicas") visit_keys(value, visit);
  }
}

// docs/fleet.md has the fields of a replica.
TEST(Json, EveryFieldIsInTheDocsAndTheOtherWayRound) {
  const std::set<std::string> names = documented_names("## results.json", "## Two results");
  EXPECT_GT(names.size(), 100U);
  std::set<std::string> written_keys;
  SizeResult sweep = test::small_result();
  sweep.fleets = {test::small_config(8)};
  for (const SizeResult& result : {sweep, replay_result()}) {
    const auto json =
        nlohmann::json::parse(written([&](auto& out) { write_results_json(out, result); }));
    visit_keys(json, [&](const std::string& key) {
      written_keys.insert(key);
      EXPECT_TRUE(is_documented(names, key)) << key << " is not in docs/results.md";
    });
  }
  for (const char* key : {"recommended", "settings", "given", "pslo_ttft_ms", "median_itl_ms"}) {
    EXPECT_TRUE(written_keys.contains(key)) << key;
  }
  // Values, and what this result has not.
  const std::set<std::string> others = {
      "robust", "ttft",    "tpot",   "itl",         "e2el",     "queue",         "loratory",
      "model",  "profile", "std",    "config file", "replicas", "p97.5_ttft_ms", "--replicas auto",
      "replay", "size",    "engine", "notes",       "--engine", "flags",         "feasible"};
  for (const std::string& name : names) {
    if (others.contains(name)) continue;
    const size_t star = name.find('*');
    const std::string key =
        star == std::string::npos ? name : name.substr(0, star) + "ttft" + name.substr(star + 1);
    EXPECT_TRUE(written_keys.contains(key)) << name << " is in no file";
  }
}

std::set<std::string> columns_of(const std::string& csv) {
  std::set<std::string> columns;
  std::istringstream in(csv.substr(0, csv.find('\n')));
  for (std::string column; std::getline(in, column, ',');) columns.insert(column);
  return columns;
}

TEST(RequestsCsv, EveryColumnIsInTheDocs) {
  const std::set<std::string> names = documented_names("## requests.csv", "## Names in");
  const std::string csv = written([](auto& out) { write_requests_csv(out, {}, Trace{}); });
  EXPECT_EQ(columns_of(csv).size(), 18U);
  for (const std::string& column : columns_of(csv)) EXPECT_TRUE(names.contains(column)) << column;
}

// Two runs of a sweep, of which all figures are known, and two that were not simulated.
ValidationReport small_validation() {
  ValidationReport report;
  report.predicted.resize(3);
  RunMeasures slow;
  for (const MeasureField& field : kMeasureFields) slow.*field.value = 300;
  RunMeasures fast = slow;
  fast.mean_ttft_ms = 100;
  report.table.runs.resize(3);
  for (MeasuredRun& run : report.table.runs) {
    run.sweep = "s", run.measured = run.other = &run == &report.table.runs[0] ? slow : fast;
  }
  for (PredictedRun& run : report.predicted) run.measures = slow;
  report.predicted[2].skip = "no preset";
  report.table.skipped = {{"runs.csv:9", "no model"}};
  report.provenance.inputs = {{.path = "runs.csv", .checksum = "1", .format = "native"}};
  report.errors = validate(report.table.runs, report.predicted);
  return report;
}

TEST(Validation, EveryFieldIsInTheDocs) {
  const std::set<std::string> names =
      documented_names("### What `validate` writes", "## A profile fitted");
  const ValidationReport report = small_validation();
  const auto json =
      nlohmann::json::parse(written([&](auto& out) { write_validation_json(out, report); }));
  std::set<std::string> keys;
  visit_keys(json, [&](const std::string& key) { keys.insert(key); });
  for (const char* key : {"all_slow_ttft", "weights", "worst_run", "regret", "skipped", "reason",
                          "utilisation", "kv_tokens", "checksum"}) {
    EXPECT_TRUE(keys.contains(key)) << key;
  }
  for (const std::string& key : keys) EXPECT_TRUE(names.contains(key)) << key;
  for (const std::string& name : names) {
    const bool is_value = name == "fraction" || name == "ms";
    EXPECT_TRUE(is_value || keys.contains(name)) << name << " is in no file";
  }
  for (std::string column :
       columns_of(written([&](auto& out) { write_validation_csv(out, report); }))) {
    for (const std::string_view whose : {"measured_", "predicted_", "other_"}) {
      if (column.starts_with(whose)) column.erase(0, whose.size());
    }
    EXPECT_TRUE(names.contains(column)) << column;
  }
}

// Begins and ends of async events pair up per id, and slices of a slot do not overlap.
TEST(Perfetto, EventsPairUp) {
  const auto json = nlohmann::json::parse(written([](auto& out) {
    write_perfetto(out, test::kept_config(), test::small_result().provenance,
                   test::small_adapters());
  }));
  std::multiset<std::pair<int, std::string>> open;
  for (const auto& event : json["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase != "b" && phase != "e") continue;
    const std::pair<int, std::string> key{event["id"].get<int>(), event["name"]};
    if (phase == "b") {
      open.insert(key);
    } else {
      ASSERT_TRUE(open.contains(key)) << key.second;
      open.erase(open.find(key));
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Prometheus, HelpAndTypeOnceBeforeTheSamples) {
  SizeResult result = test::small_result();
  result.workload.model = "a\"b\\c\nd";
  result.workload.engine = "vLLM \"0.8.5\"";
  const std::string text = written([&](auto& out) {
    write_prometheus(out, result.configs[1], result.workload, result.provenance);
  });
  EXPECT_THAT(text, HasSubstr("model_name=\"a\\\"b\\\\c\\nd\""));
  EXPECT_THAT(text, HasSubstr(",engine_name=\"vLLM \\\"0.8.5\\\"\","));
  std::set<std::string> declared;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(declared.insert(line.substr(7, line.rfind(' ') - 7)).second) << line;
    } else if (!line.starts_with("#")) {
      std::string name = line.substr(0, line.find('{'));
      for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
        if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
      }
      EXPECT_TRUE(declared.contains(name)) << line;
    }
  }
}

// A bound belongs to its bucket; the last bucket has all; the sum is in seconds.
TEST(Prometheus, HistogramsCountUpToTheirBounds) {
  const std::string text = written([](auto& out) {
    const SizeResult result = test::small_result();
    write_prometheus(out, kept_with_gaps(), result.workload, result.provenance);
  });
  const std::string labels = "{model_name=\"Llama-3.1-8B\",engine=\"0\"";
  const auto has = [&](const std::string& name, const std::string& rest) {
    EXPECT_THAT(text, HasSubstr("\nvllm:" + name + labels + rest + "\n"));
  };
  has("inter_token_latency_seconds_bucket", ",le=\"0.01\"} 3");
  has("inter_token_latency_seconds_bucket", ",le=\"80\"} 3");
  has("inter_token_latency_seconds_bucket", ",le=\"+Inf\"} 5");
  has("inter_token_latency_seconds_sum", "} 180.03");
  has("inter_token_latency_seconds_count", "} 5");
  has("time_to_first_token_seconds_bucket", ",le=\"0.04\"} 1");  // 40 ms and 85 ms
  has("time_to_first_token_seconds_bucket", ",le=\"0.08\"} 1");
  has("time_to_first_token_seconds_bucket", ",le=\"0.1\"} 2");
  has("num_requests_running", "} 1");  // the unfinished one
  has("prompt_tokens_total", "} 217321");
}

// Debian's package prometheus has both programs.
TEST(Prometheus, TheRealOneReadsIt) {
  if (std::system("command -v promtool >/dev/null && command -v prometheus >/dev/null") != 0) {
    GTEST_SKIP() << "promtool and prometheus are not installed: apt-get install prometheus";
  }
  SizeResult result = test::small_result();
  result.workload.model = "a\"b\\c\nd";
  const std::string path = testing::TempDir() + "metrics.prom";
  std::ofstream(path) << written([&](auto& out) {
    write_prometheus(out, kept_with_gaps(), result.workload, result.provenance);
  });
  // It warns of every ':' in a name, vLLM's own included, and ends with 3 then; 1 is a syntax
  // error.
  const std::string check = "promtool check metrics < " + path + " > " + path + ".out 2>&1";
  EXPECT_NE(WEXITSTATUS(std::system(check.c_str())), 1);
  std::ifstream warnings(path + ".out");
  for (std::string line; std::getline(warnings, line);) {
    EXPECT_TRUE(line.starts_with("vllm:") && line.ends_with("names should not contain ':'"))
        << line;
  }
  const std::string load = std::string(LORATORY_SOURCE_DIR) +
                           "/tests/scheduler_sim/report/load_in_prometheus.py " + path;
  EXPECT_EQ(std::system(("python3 " + load).c_str()), 0);
  for (const char* suffix : {"", ".out"}) std::remove((path + suffix).c_str());
}

TEST(Perfetto, StopsAtItsLimitAndSaysSo) {
  PerfettoExtent extent;
  const auto json = nlohmann::json::parse(written([&](auto& out) {
    extent = write_perfetto(out, test::kept_config(), test::small_result().provenance,
                            test::small_adapters(), {.requests = 2, .slot_spans = 1});
  }));
  std::set<int> requests;
  int num_spans = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "b") requests.insert(event["id"].get<int>());
    num_spans += event["ph"] == "X";
  }
  EXPECT_EQ(requests, (std::set{0, 1}));
  EXPECT_EQ(num_spans, 1);
  EXPECT_FALSE(extent.is_complete());
  const auto& other = json["otherData"];
  EXPECT_EQ(other["complete"], false);
  EXPECT_EQ(other["requests_drawn"], 2);
  EXPECT_EQ(other["requests"], 4);
  EXPECT_EQ(other["slot_spans_drawn"], 1);
  EXPECT_EQ(other["slot_spans"], 3);
}

TEST(Settings, EveryOneIsInTheJsonAndThoseGivenAreShown) {
  const SizeResult result = test::small_result();
  const auto json =
      nlohmann::json::parse(written([&](auto& out) { write_results_json(out, result); }));
  EXPECT_EQ(json["settings"].size(), 3U);
  EXPECT_EQ(json["settings"][1],
            (nlohmann::json{{"name", "max-num-seqs"}, {"value", "64"}, {"given", true}}));
  EXPECT_THAT(size_console(result, false), HasSubstr("flags     --max-num-seqs 64 --pin a,<b>"));
  EXPECT_THAT(size_console(result, false), HasSubstr("\ndefaults  --tp 1\n"));
  EXPECT_THAT(replay_console(replay_result()),
              HasSubstr("--max-num-seqs:                          64"));
}

TEST(Percentiles, OfEveryLatencyAreOnThePage) {
  SizeResult result = test::small_result();
  result.slo.percentile = 97.5;
  result.configs[1].queue.pslo_ms = 123;
  const std::string page =
      written([&](auto& out) { write_html(out, result, test::small_adapters()); });
  EXPECT_THAT(page, HasSubstr("<th>SLO's p97.5</th>"));
  EXPECT_THAT(page, HasSubstr("<tr><td>16</td><td>64</td><td>queue</td><td>31.5</td><td>128</td>"
                              "<td>4.25</td><td>90</td><td>175</td><td>260</td><td>123</td></tr>"));
  const std::string console = size_console(result, false);
  EXPECT_THAT(console, HasSubstr("TTFT    TTFT"));
  EXPECT_THAT(console, HasSubstr(" p97.5 ms  p99 ms"));
  EXPECT_THAT(console, HasSubstr("p99 413 ms, p97.5 413 ms\n"));
  for (const std::string& line : lines_of(console)) EXPECT_LE(line.size(), 100U) << line;
  const std::string banner = replay_console([&] {
    SizeResult replay = replay_result();
    replay.slo.percentile = 97.5;
    return replay;
  }());
  EXPECT_THAT(banner, HasSubstr("P97.5 TTFT (ms):                         412.75"));
}

TEST(Format, PercentilesAndClippedText) {
  EXPECT_EQ(report::format_percentile(99), "p99");
  EXPECT_EQ(report::clip("abcdef", 4), "ab..");
}

}  // namespace
}  // namespace loratory::sim
