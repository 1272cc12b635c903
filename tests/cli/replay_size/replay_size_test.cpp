// `loratory replay` and `loratory size` from outside, on the bundled trace.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

using nlohmann::json;

class ReplayAndSize : public ProgramTest {
 protected:
  const std::string sample_ =
      std::string("--trace ") + LORATORY_SOURCE_DIR + "/traces/sample.jsonl.gz ";

  json replay(const std::string& flags) const {
    const Outcome run = loratory("replay " + sample_ + "--json r.json " + flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(content("r.json"))["configs"][0];
  }
  void expect_bad_input(const std::string& arguments, const std::string& line) const {
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_EQ(run.err, "loratory: " + line + "\n") << arguments;
  }
};

TEST_F(ReplayAndSize, ReplayCompletesTheBundledTrace) {
  const json config = replay("--max-loras 16");
  EXPECT_EQ(config["num_requests"], 3588);
  EXPECT_EQ(config["completed"], config["num_requests"]);
}

TEST_F(ReplayAndSize, SameSeedSameLogSteppedOrNot) {
  const json fast = replay("--max-loras 8 --event-log fast.txt");
  const json stepwise = replay("--max-loras 8 --event-log slow.txt --stepwise");
  EXPECT_EQ(fast, stepwise);
  EXPECT_EQ(content("fast.txt"), content("slow.txt"));
  EXPECT_GT(content("fast.txt").size(), 100'000u);
}

TEST_F(ReplayAndSize, PoliciesOfTheTiersReachTheReplay) {
  const std::string small = "--max-loras 4 --max-cpu-loras 6 ";
  const json plain = replay(small);
  for (const char* flags : {"--no-prefetch", "--cpu-eviction gpu-last", "--cpu-eviction lru",
                            "--pin adapter-028,adapter-041"}) {
    const json other = replay(small + flags);
    EXPECT_NE(other["event_log_hash"], plain["event_log_hash"]) << flags;
    EXPECT_EQ(other["completed"], plain["completed"]) << flags;
  }
  // The order of admission shows where seats are few.
  const json few = replay(small + "--max-num-seqs 4");
  const json packed = replay(small + "--max-num-seqs 4 --pack");
  EXPECT_NE(packed["event_log_hash"], few["event_log_hash"]);
  EXPECT_EQ(packed["completed"], few["completed"]);
}

TEST_F(ReplayAndSize, SizesWithoutASlotBesideThePinsAreRowsThatDoNotFit) {
  const Outcome run =
      loratory("size " + sample_ + "--max-loras 2,8 --pin adapter-028 --pin adapter-041 " +
               "--no-headroom --json size.json");
  ASSERT_EQ(run.exit_code, 3) << run.err;
  const json configs = json::parse(content("size.json"))["configs"];
  EXPECT_EQ(configs[0]["feasible"], false);
  EXPECT_EQ(configs[0]["verdict"], "2 pinned adapters fill every slot");
  EXPECT_EQ(configs[1]["feasible"], true);
}

TEST_F(ReplayAndSize, SizeIsTheSameOnOneThreadAndTwo) {
  const std::string flags =
      "--max-loras 8,24,64 --gpu L40S --rate-scale 0.35 --no-headroom --json ";
  ASSERT_EQ(loratory("size " + sample_ + flags + "one.json --threads 1").exit_code, 3);
  ASSERT_EQ(loratory("size " + sample_ + flags + "two.json --threads 2").exit_code, 3);
  EXPECT_EQ(json::parse(content("one.json"))["configs"],
            json::parse(content("two.json"))["configs"]);
}

// Too few slots thrash, too many starve the KV cache: the recommendation lies between.
TEST_F(ReplayAndSize, SizeFindsTheMiddle) {
  const Outcome run =
      loratory("size " + sample_ + "--gpu L40S --rate-scale 0.3 --slo-ttft-ms 1000 " +
               "--slo-tpot-ms 70 --no-headroom --json size.json --html report.html --csv r.csv " +
               "--requests-csv q.csv.gz --perfetto p.json --prom m.prom");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = json::parse(content("size.json"));
  const json& configs = result["configs"];
  const size_t recommended = result["recommended"];
  EXPECT_GT(recommended, 0u);
  EXPECT_LT(recommended + 1, configs.size());
  const double best = configs[recommended]["request_goodput"];
  EXPECT_LT(configs.front()["request_goodput"], 0.5 * best);
  EXPECT_LT(configs.back()["request_goodput"], 0.5 * best);
  EXPECT_LT(configs.back()["kv_blocks"], configs.front()["kv_blocks"]);
  EXPECT_FALSE(std::string(result["reason"]).empty());
  EXPECT_NE(run.out.find("Set --max-loras"), std::string::npos);
  for (const char* file : {"report.html", "r.csv", "q.csv.gz", "p.json", "m.prom"}) {
    EXPECT_GT(content(file).size(), 100u) << file;
  }
  const std::string metrics = content("m.prom");
  const size_t gaps = metrics.find("vllm:inter_token_latency_seconds_count{");
  ASSERT_NE(gaps, std::string::npos);
  const std::string line = metrics.substr(gaps, metrics.find('\n', gaps) - gaps);
  EXPECT_FALSE(line.ends_with("} 0")) << line;
}

// Every seed numbers its adapters anew. A row is that of one seed, pins and ranks are looked for in
// all.
TEST_F(ReplayAndSize, ARowOfSeveralSeedsIsTheReplayOfItsSeed) {
  std::string rows;
  for (int i = 0; i < 300; ++i) {
    rows += "{\"arrival_ms\":" + std::to_string(200 * i) +
            ",\"prompt_tokens\":500,\"output_tokens\":" + std::to_string(50 + i % 7 * 40) + "}\n";
  }
  write("t.jsonl", rows);
  const std::string flags =
      " --trace t.jsonl --adapters 16 --popularity zipf:1 --ranks 8,16,32 --max-cpu-loras 16 "
      "--pin adapter-000 --gpu L40S --slo-ttft-ms 60000 --slo-tpot-ms 400 ";
  const Outcome size = loratory("size" + flags +
                                "--seed 5 --max-loras 2,3,4,6 --no-headroom --json s.json "
                                "--requests-csv s.csv --perfetto p.json");
  ASSERT_EQ(size.exit_code, 0) << size.err;
  const json result = json::parse(content("s.json"));
  bool is_another = false;
  for (size_t i = 0; i < result["configs"].size(); ++i) {
    const json& row = result["configs"][i];
    const auto seed = row["seed"].get<uint64_t>();
    is_another = is_another || seed != 5;
    const Outcome replay = loratory("replay" + flags + "--seed " + std::to_string(seed) +
                                    " --max-loras " + std::to_string(row["max_loras"].get<int>()) +
                                    " --json r.json --requests-csv r.csv");
    ASSERT_EQ(replay.exit_code, 0) << replay.err;
    EXPECT_EQ(json::parse(content("r.json"))["configs"][0]["event_log_hash"], row["event_log_hash"])
        << "row " << i << ", seed " << seed;
    if (i == result["recommended"].get<size_t>()) {
      EXPECT_EQ(content("r.csv"), content("s.csv"));
    }
  }
  EXPECT_TRUE(is_another);
  EXPECT_GE(result["yardsticks"]["base"]["seed"], 5);
}

// Blocking loads show nobody what a request waits for.
TEST_F(ReplayAndSize, WhatIsNotKnownOfWaitsIsNotSaid) {
  const std::string engine = sample_ + "--engine vllm --gpu H100-80 --rate-scale 0.6 ";
  const Outcome replay = loratory("replay " + engine + "--max-loras 8 --json r.json");
  EXPECT_EQ(replay.out.find("late requests wait"), std::string::npos) << replay.out;
  EXPECT_EQ(json::parse(content("r.json"))["configs"][0]["wait_batch_requests"], 0);
  const Outcome size = loratory("size " + engine + "--max-loras 8 --no-headroom --json s.json");
  ASSERT_EQ(size.exit_code, 3) << size.err;
  const json cause = json::parse(content("s.json"))["configs"][0]["cause"];
  EXPECT_EQ(cause["kind"], "slots");
  EXPECT_TRUE(cause["figure"].is_null());
  EXPECT_NE(size.out.find("requests wait for a slot; with one for every adapter"),
            std::string::npos)
      << size.out;
}

TEST_F(ReplayAndSize, RequestsThatAreTooLongNeedNoOtherGpu) {
  const Outcome run =
      loratory("size " + sample_ + "--gpu L40S --max-loras 8 --max-model-len 2000 --no-headroom");
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_NE(run.out.find("--max-model-len 7669 takes the longest request"), std::string::npos)
      << run.out;
  EXPECT_EQ(run.out.find("--gpu H200"), std::string::npos) << run.out;
}

// A slice of a trace keeps the times of the whole.
TEST_F(ReplayAndSize, ALateTraceCountsFromItsFirstArrival) {
  std::string early, late;
  for (int i = 0; i < 50; ++i) {
    const std::string rest = ",\"prompt_tokens\":500,\"output_tokens\":100,\"cancel_ms\":";
    const int at = 100 * i;
    early += "{\"arrival_ms\":" + std::to_string(at) + rest + std::to_string(at + 9000) + "}\n";
    late += "{\"arrival_ms\":" + std::to_string(at + 3'600'000) + rest +
            std::to_string(at + 3'609'000) + "}\n";
  }
  write("early.jsonl", early);
  write("late.jsonl", late);
  ASSERT_EQ(loratory("replay --trace early.jsonl --json e.json").exit_code, 0);
  ASSERT_EQ(loratory("replay --trace late.jsonl --json l.json").exit_code, 0);
  const json a = json::parse(content("e.json")), b = json::parse(content("l.json"));
  EXPECT_EQ(a["configs"], b["configs"]);
  EXPECT_EQ(a["workload"]["request_rate"], b["workload"]["request_rate"]);
  EXPECT_NE(b["workload"]["notes"].dump().find("times count from the first arrival, 1 h"),
            std::string::npos)
      << b["workload"]["notes"];
}

// A file of weights has ranks of its own.
TEST_F(ReplayAndSize, RanksAreThoseThatAdaptersHave) {
  write("t.jsonl",
        "{\"arrival_ms\":0,\"prompt_tokens\":5,\"output_tokens\":2}\n"
        "{\"arrival_ms\":9,\"prompt_tokens\":5,\"output_tokens\":2}\n");
  write("w.txt", "sql 1 64\n");
  ASSERT_EQ(loratory("replay --trace t.jsonl --popularity weights:w.txt --json r.json").exit_code,
            0);
  EXPECT_EQ(json::parse(content("r.json"))["workload"]["adapters"],
            "1 adapter, weights:w.txt, rank 64");
}

TEST_F(ReplayAndSize, SettingsHaveWhatZeroCameTo) {
  ASSERT_EQ(loratory("replay " + sample_ + "--json r.json").exit_code, 0);
  const json result = json::parse(content("r.json"));
  const auto setting = [&](const std::string& name) -> std::string {
    for (const json& s : result["settings"]) {
      if (s["name"] == name) return s["value"];
    }
    return "no setting";
  };
  EXPECT_EQ(setting("max-cpu-loras"), "32");
  EXPECT_EQ(setting("kv-blocks"), std::to_string(result["configs"][0]["kv_blocks"].get<int64_t>()));
  EXPECT_GT(std::stod(setting("reserve-gib")), 0.5);
}

// A request takes seconds, and its client leaves after 400 ms.
TEST_F(ReplayAndSize, WhereNothingCompletesNothingMeets) {
  std::string rows;
  for (int i = 0; i < 200; ++i) {
    rows += "{\"arrival_ms\":" + std::to_string(5 * i) +
            ",\"prompt_tokens\":2000,\"output_tokens\":2000,\"adapter\":\"a" +
            std::to_string(i % 40) + "\",\"cancel_ms\":" + std::to_string(5 * i + 400) + "}\n";
  }
  write("t.jsonl", rows);
  const Outcome size = loratory("size --trace t.jsonl --max-loras 2,40 --json s.json");
  EXPECT_EQ(size.exit_code, 3) << size.out;
  const json config = json::parse(content("s.json"))["configs"][1];
  EXPECT_EQ(config["completed"], 0);
  EXPECT_EQ(config["meets_slo"], false);
  EXPECT_EQ(config["verdict"], "no request completes");
  EXPECT_EQ(config["cause"]["kind"], "none_completes");
  EXPECT_EQ(config["cause"]["figure"], 200);
  const Outcome replay = loratory("replay --trace t.jsonl --max-loras 2");
  EXPECT_EQ(replay.exit_code, 0) << replay.err;
  EXPECT_NE(replay.out.find("no request completes"), std::string::npos) << replay.out;
}

TEST_F(ReplayAndSize, WhatDoesNotFitIsARow) {
  const Outcome run = loratory("size " + sample_ + "--gpu A10G --max-loras 1,64 " +
                               "--no-headroom --json size.json");
  ASSERT_EQ(run.exit_code, 3) << run.err;
  const json configs = json::parse(content("size.json"))["configs"];
  EXPECT_EQ(configs[1]["feasible"], false);
  EXPECT_EQ(configs[1]["completed"], 0);
}

TEST_F(ReplayAndSize, BadInputIsOneLine) {
  write("cut.jsonl", R"({"arrival_ms":0,"prompt_tokens":4,"output_tokens":2})"
                     "\n"
                     R"({"arrival_ms":1,"prom)");
  const Outcome cut = loratory("replay --trace cut.jsonl --json r.json");
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_EQ(cut.err.rfind("loratory: cut.jsonl:2:", 0), 0u) << cut.err;
  EXPECT_FALSE(std::filesystem::exists(path("r.json")));
  expect_bad_input(
      "size " + sample_ + "--max-loras 4,x",
      "--max-loras: 'x' is not a number from 1 to 4096; list sizes, for example 4,8,16 "
      "or 4:64:4");
  expect_bad_input("replay " + sample_ + "--max-loras 8 --max-cpu-loras 4",
                   "--max-cpu-loras: must be at least --max-loras; an adapter on the GPU is on the "
                   "CPU too");
  expect_bad_input("replay " + sample_ + "--ranks 8",
                   "--ranks: every adapter of the trace has a rank; leave it out, or assign other "
                   "adapters with --adapters N --replace-adapters");
  expect_bad_input("replay " + sample_ + "--block-size 48",
                   "--block-size: 48 does not divide the trace's blocks of 64 tokens; use 64 or a "
                   "divisor of it");
}

// Of a model as large as a config.json may say, at the largest rank.
TEST_F(ReplayAndSize, AnAdapterThatIsTooLargeToMoveIsOneLine) {
  write("config.json", R"({"model_type": "llama", "hidden_size": 65536, "num_hidden_layers": 400,
    "num_attention_heads": 512, "intermediate_size": 262144, "vocab_size": 32000})");
  write("t.jsonl",
        R"({"arrival_ms":0,"prompt_tokens":3,"output_tokens":4,"adapter":"a","rank":65536})"
        "\n");
  expect_bad_input("replay --trace t.jsonl --kv-blocks 10000 --model config.json",
                   "the adapters: one of rank 65536 has 71.9 TiB, and a transfer 16 TiB at most; "
                   "give smaller ranks, or fewer --target-modules");
}

// Copies reach 0.8 of the link to the host, and have 1 MB/s or more.
TEST_F(ReplayAndSize, ASlowHostLinkIsOneLine) {
  expect_bad_input("replay " + sample_ + "--max-loras 8 --gpu H200,host=1.24MB/s",
                   "--gpu: a bandwidth of 1.24MB/s is not from 1.25MB/s to 16TB/s");
  EXPECT_EQ(replay("--gpu H200,host=1.25MB/s --max-loras 64 --rate-scale 0.001")["failed"], 0);
}

TEST_F(ReplayAndSize, ALimitOfNearlyNothingIsOneLine) {
  const std::string size = "size " + sample_ + "--max-loras 64 --no-headroom ";
  for (const std::string flag : {"--slo-ttft-ms", "--slo-tpot-ms"}) {
    const std::string remedy = "; give 0.001 or more, or 0 for no limit";
    expect_bad_input(size + flag + " 1e-306",
                     flag + ": 1e-306 ms is less than a microsecond" + remedy);
    expect_bad_input(size + flag + " 0.0009",
                     flag + ": 0.0009 ms is less than a microsecond" + remedy);
    EXPECT_EQ(loratory(size + flag + " 0.001").exit_code, 3);
    EXPECT_EQ(loratory(size + flag + " 0").exit_code, 0);
  }
}

// Prompts of two billion tokens, whose steps take as long as a step can.
TEST_F(ReplayAndSize, AReplayOfCenturiesIsOneLine) {
  std::string rows;
  for (int i = 0; i < 10'000; ++i) {
    rows += "{\"arrival_ms\":1,\"prompt_tokens\":2147483646,\"output_tokens\":1}\n";
  }
  write("t.jsonl", rows);
  expect_bad_input(
      "replay --trace t.jsonl --kv-blocks 16777216 --block-size 65536 --model Llama-2-7B "
      "--gpu A10G --max-num-batched-tokens 2147483647",
      "the replay: its requests take more than 200 years; give shorter or fewer ones, or a faster "
      "GPU");
}

TEST_F(ReplayAndSize, BadPinsAreOneLine) {
  expect_bad_input("replay " + sample_ + "--pin nobody",
                   "--pin: the workload has no adapter 'nobody'; name one of its adapters");
  expect_bad_input("size " + sample_ + "--pin adapter-028,adapter-028",
                   "--pin: 'adapter-028' is named twice; name it once");
  for (const char* sizes : {"replay ", "size "}) {
    expect_bad_input(
        sizes + sample_ + "--max-loras 2 --pin adapter-028,adapter-041",
        "--pin: 2 pinned adapters fill 2 slots; one slot must stay free for the others: "
        "raise --max-loras");
  }
}

const std::string kCommas =
    R"({"arrival_ms":0,"prompt_tokens":4,"output_tokens":2,"adapter":"sql,v2"}
{"arrival_ms":0,"prompt_tokens":4,"output_tokens":2,"adapter":"b"}
)";

TEST_F(ReplayAndSize, AdaptersWithACommaCanBePinned) {
  write("t.jsonl", kCommas);
  expect_bad_input("replay --trace t.jsonl --pin sql,v2",
                   "--pin: the workload has no adapter 'sql'; quote a name with a comma: --pin "
                   "'\"sql,v2\"'");
  write("c.toml", "pin = ['\"sql,v2\"', 'b']\n");
  for (const char* flags :
       {"--pin '\"sql,v2\",b'", "--pin b --pin '\"sql,v2\"'", "--config c.toml"}) {
    const Outcome run =
        loratory(std::string("replay --trace t.jsonl --max-loras 3 --json r.json ") + flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

TEST_F(ReplayAndSize, ARankAboveTheLargestSaysWhereItComesFrom) {
  write("t.jsonl", kCommas);
  write("r.jsonl", R"({"arrival_ms":0,"prompt_tokens":4,"output_tokens":2,"adapter":"a","rank":16})"
                   "\n");
  write("names.txt", "a 1\n");
  write("ranks.txt", "a 1 32\n");
  const std::string of_default =
      "--max-lora-rank: 8 is below 16, the default of --ranks; give --ranks 8, or raise it";
  for (const std::string command : {"replay ", "size "}) {
    const auto refuses = [&](const std::string& flags, const std::string& line) {
      expect_bad_input(command + "--max-lora-rank 8 " + flags, line);
    };
    refuses("--trace t.jsonl", of_default);
    refuses("--trace t.jsonl --adapters 4 --replace-adapters", of_default);
    refuses("--trace r.jsonl --popularity weights:names.txt --replace-adapters", of_default);
    refuses("--trace t.jsonl --ranks 8,32",
            "--max-lora-rank: 8 is below 32, a rank of --ranks; raise it, or give smaller --ranks");
    refuses("--trace r.jsonl",
            "--max-lora-rank: 8 is below the workload's largest rank 16; raise it");
    refuses("--trace r.jsonl --popularity weights:ranks.txt --replace-adapters",
            "--max-lora-rank: 8 is below the workload's largest rank 32; raise it");
    EXPECT_EQ(loratory(command + "--max-lora-rank 8 --ranks 8 --trace t.jsonl").exit_code, 0);
  }
}

TEST_F(ReplayAndSize, CompareReadsWhatJsonCompressed) {
  for (const char* name : {"r.json", "r.json.gz", "r.json.zst"}) {
    ASSERT_EQ(loratory("replay " + sample_ + "--json " + name).exit_code, 0);
  }
  const Outcome run = loratory("compare r.json.gz r.json.zst");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("no difference"), std::string::npos) << run.out;
  write("cut.json.gz", content("r.json.gz").substr(0, 500));
  expect_bad_input("compare r.json cut.json.gz",
                   "cut.json.gz: the compressed data stops in the middle; fetch or compress it "
                   "again");
}

TEST_F(ReplayAndSize, SkippedRowsAreInTheResult) {
  write("t.jsonl", R"({"arrival_ms":0,"prompt_tokens":4,"output_tokens":2})"
                   "\n"
                   R"({"arrival_ms":0,"prompt_tokens":-4,"output_tokens":2})"
                   "\n");
  const Outcome run = loratory("replay --trace t.jsonl --skip-bad-rows --json r.json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Bad rows skipped:                        1"), std::string::npos)
      << run.out;
  EXPECT_EQ(json::parse(content("r.json"))["workload"]["num_rows_skipped"], 1);
}

TEST_F(ReplayAndSize, WhatAReaderAssumedIsSaid) {
  write("server.log",
        "INFO 06-15 12:34:56 [logger.py:42] Received request r: params: SamplingParams(n=1), "
        "lora_request: None.\n");
  const std::string note = "1 of 1 output lengths are --default-output 5";
  const std::string flags = " --trace server.log --default-prompt 7 --default-output 5 --json r";
  EXPECT_NE(loratory("replay" + flags).out.find(note + "\n"), std::string::npos);
  EXPECT_EQ(json::parse(content("r"))["workload"]["notes"][1], note);
  EXPECT_NE(loratory("size --max-loras 1" + flags).out.find(note + "\n"), std::string::npos);
}

TEST_F(ReplayAndSize, FlagsComeFromAFileToo) {
  write("run.toml", "max-loras = 16\nmax-num-seqs = 64\ngpu = \"L40S\"\n");
  const Outcome file = loratory("replay " + sample_ + "--config run.toml --json a.json");
  ASSERT_EQ(file.exit_code, 0) << file.err;
  ASSERT_EQ(
      loratory("replay " + sample_ + "--max-loras 16 --max-num-seqs 64 --gpu L40S --json b.json")
          .exit_code,
      0);
  EXPECT_EQ(json::parse(content("a.json"))["configs"], json::parse(content("b.json"))["configs"]);
}

TEST_F(ReplayAndSize, AnOutputThatCanNotBeWrittenLeavesNothing) {
  const Outcome run = loratory("replay " + sample_ + "--json missing/r.json");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("missing")));
}

}  // namespace
}  // namespace loratory
