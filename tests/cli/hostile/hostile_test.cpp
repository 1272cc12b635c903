// Bad command lines over all flags of every subcommand. Whatever a user types: one line that says
// what is wrong, exit code 2, no file, and soon. No assertion, no bad_alloc, no silence.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>
#include <string>
#include <vector>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

class Hostile : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (IsSkipped()) return;
    write("a.jsonl",
          R"({"arrival_ms":0,"prompt_tokens":4,"output_tokens":2,"adapter":"a","rank":8})"
          "\n"
          R"({"arrival_ms":5,"prompt_tokens":4,"output_tokens":2,"adapter":"b","rank":8})"
          "\n");
    write("base.jsonl", R"({"arrival_ms":0,"prompt_tokens":4,"output_tokens":2})"
                        "\n");
    write("blocks.jsonl",
          R"({"arrival_ms":0,"prompt_tokens":40,"output_tokens":2,"block_tokens":16,)"
          R"("block_ids":[0,1,2]})"
          "\n");
    write("run.toml", "tp = 1\n");
    write("typo.toml", "max-lora = 1\n");
    write("nan.toml", "drain-factor = nan\n");
    write("open.toml", "pin = [\"a\"\n");
    write("weights.safetensors", std::string(4096, '\0'));
    ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    ASSERT_EQ(::symlink("loop", path("loop").c_str()), 0);
    ASSERT_EQ(::symlink("none/x", path("far").c_str()), 0);
    ASSERT_EQ(::symlink("here", path("dangling").c_str()), 0);
    write("nul.toml", "profile = \"a\\u0000b\"\n");
    for (const char* name : {"out.txt", "err.txt"}) write(name, "");
    before_ = files();
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  void expect_one_line(const std::string& arguments) const {
    constexpr size_t kLongestLine = 400;
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments << "\n" << run.err;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_TRUE(run.err.starts_with("loratory: ")) << arguments << "\n" << run.err;
    EXPECT_EQ(run.err.find('\n'), run.err.size() - 1) << arguments << "\n" << run.err;
    EXPECT_LT(run.err.size(), kLongestLine) << arguments << "\n" << run.err;
    EXPECT_EQ(files(), before_) << arguments;
    for (const std::string& name : files()) {
      if (!before_.contains(name)) fs::remove(path(name));
    }
  }

  void expect_one_line_each(const std::string& start, const std::vector<std::string>& ends) const {
    for (const std::string& end : ends) expect_one_line(start + end);
  }

  std::set<std::string> before_;
};

const std::vector<std::string>& not_numbers() {
  static const std::vector<std::string> texts = {
      "nan", "-inf", "infinity", "0x10", "+5",   "' 5'",
      "5x",  "''",   "1e400",    "-1",   "1..2", std::string(309, '9')};
  return texts;
}

// Each flag meets one of them; flags_test.cpp has the full product for the one parser of all.
TEST_F(Hostile, WhatIsNoNumber) {
  const std::vector<std::pair<std::string, std::string>> flags = {
      {"replay --json r --trace a.jsonl",
       "--tp --max-lora-rank --gpu-memory-utilization --reserve-gib --host-memory-gib "
       "--slot-overhead-mib --block-size --max-model-len --max-num-seqs --max-num-batched-tokens "
       "--long-prefill-threshold --t-starve-ms --n-starve --drain-factor --disk-workers "
       "--disk-gbps --h2d-gbps --adapters --ranks --seed --rate-scale --block-tokens "
       "--slo-ttft-ms --slo-tpot-ms --slo-percentile --max-loras --max-cpu-loras --kv-blocks"},
      {"size --json r --trace a.jsonl", "--max-loras --max-cpu-loras --seeds --threads"},
      {"trace generate --out r --requests 5 --arrivals poisson:1",
       "--duration --rate-scale --seed --turns --turn-gap --block-tokens --system-prompts "
       "--max-prompt-tokens --adapters --ranks --prompt-tokens --output-tokens --system-tokens "
       "--popularity --adapter-rates"},
      {"trace info a.jsonl --json r", "--reuse --block-tokens"}};
  size_t next = 0;
  for (const auto& [command, names] : flags) {
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = std::min(names.find(' ', begin), names.size());
      expect_one_line(fmt::format("{} {} {}", command, names.substr(begin, end - begin),
                                  not_numbers()[next++ % not_numbers().size()]));
      begin = end + 1;
    }
  }
}

const std::vector<std::string> kBadReplays = {
    // clang-format off
    "--tp 0", "--tp 65", "--tp 3", "--max-lora-rank 4", "--max-loras 0", "--max-loras 4097",
    "--max-loras 8,16", "--max-loras 8 --max-cpu-loras 4", "--max-loras 8 --max-loras 8",
    "--max-loras", "--max-loras=", "--max-loras= 8", "--csv --html x",
    "--gpu-memory-utilization 0", "--gpu-memory-utilization 1.01", "--block-size 0",
    "--max-num-seqs 0", "--max-num-batched-tokens 8",
    "--no-chunked-prefill --long-prefill-threshold 64",
    "--no-chunked-prefill --max-model-len 4096",
    "--n-starve inf --t-starve-ms inf --drain-factor 2", "--disk-gbps 0",
    "--disk-workers 1 --disk-sharing own", "--rate-scale 0", "--rate-scale 1e-300",
    "--slo-percentile 101", "--slo-ttft-ms -0.5",
    "--slo-ttft-ms 0 --slo-tpot-ms 0 --slo-percentile 90", "--kv-blocks 9 --reserve-gib 1",
    "--kv-blocks 4294967296", "--kv-blocks 16777217", "--seed 18446744073709551616",
    "--pack=maybe", "--pin ''",
    "--pin a,", "--pin c", "--pin a,a", "--pin a --pin a", "--pin a,b --max-loras 2",
    "--load-mode later", "--policy sjf", "--prefix-cache on", "--lora-dtype int4",
    "--gpu-eviction mru", "--cpu-eviction fifo", "--lora-graphs none", "--disk-sharing both",
    "--model Llama-3.1-8", "--model ''", "--model /", "--model /dev/null", "--model a.jsonl",
    "--model ./weights.safetensors", "--model pipe", "--model ./pipe", "--model /dev/zero",
    "--model .", "--profile pipe", "--profile .", "--config pipe", "--config .",
    "--gpu H101", "--gpu ''", "--gpu ,", "--gpu mem", "--gpu mem=80GiB",
    "--gpu mem=nan,bw=1TB/s,flops=1T", "--gpu H100-80,mem=inf", "--gpu H100-80,mem=900TB",
    "--gpu H100-80,flops=1e-300", "--gpu H100-80,bw=0", "--gpu H100-80,x=1",
    "--target-modules ''", "--target-modules q_prj", "--target-modules qkv",
    "--profile none", "--profile a.jsonl",
    "--profile /dev/zero", "--format jsn", "--format mooncake", "--block-tokens 16",
    "--adapters 0", "--adapters 4", "--adapters 2000000", "--replace-adapters", "--ranks 8",
    "--ranks 8,,16", "--ranks 65537", "--popularity zipf:1", "--popularity zipf",
    "--popularity zipf:nan --adapters 4", "--popularity weights:none", "--config none",
    "--config /", "--config /dev/zero", "--config typo.toml", "--config nan.toml",
    "--config open.toml", "--config nul.toml", "--config run.toml --config run.toml",
    "--event-log none/x", "--csv r", "--csv ./r", "--csv a.jsonl", "--csv ''", "--csv /",
    "--html - --csv -", "--csv pipe", "--csv loop", "--csv far", "--csv dangling --html here",
    "--csv loop/x", "--profile loop", "--model loop/x", "--config loop", "stray",
    "--max-lora 8", "--Max-Loras 8", "-x", "--trace a.jsonl",
    "--stepwise=2x", "-- x",
    // clang-format on
};

TEST_F(Hostile, Replays) { expect_one_line_each("replay --json r --trace a.jsonl ", kBadReplays); }

TEST_F(Hostile, NamesThatAreTooLong) {
  constexpr size_t kLongestName = 255, kLongestPath = 4096;
  for (const size_t size : {kLongestName - 1, kLongestName + 1, kLongestPath + 1}) {
    const std::string name(size, 'x');
    const Outcome run = loratory("replay --trace a.jsonl --json " + name);
    EXPECT_EQ(run.exit_code, 2) << size;
    EXPECT_EQ(run.out, "") << size;
    EXPECT_EQ(run.err, "loratory: --json: " + name.substr(0, 60) +
                           ": cannot be created: File name too long; choose a shorter one\n");
  }
}

TEST_F(Hostile, Sizes) {
  expect_one_line_each("size --json r --trace a.jsonl ",
                       {"--max-loras ''",
                        "--max-loras ,",
                        "--max-loras 4,",
                        "--max-loras 4,,8",
                        "--max-loras 8:4",
                        "--max-loras 4:8:0",
                        "--max-loras 4:8:-1",
                        "--max-loras 4:8:2:1",
                        "--max-loras :",
                        "--max-loras 4:",
                        "--max-loras 4,4",
                        "--max-loras 1:8,4",
                        "--max-loras 4097",
                        "--max-loras auto,4",
                        "--max-loras AUTO",
                        "--max-loras 8 --max-cpu-loras 4",
                        "--max-loras 1:4096 --max-cpu-loras 1:4096",
                        "--max-cpu-loras ''",
                        "--max-cpu-loras 1:5000",
                        "--max-cpu-loras 2147483648",
                        "--choose ''",
                        "--choose best",
                        "--seeds 0",
                        "--seeds 101",
                        "--seeds 3",
                        "--threads -1",
                        "--threads 1025",
                        "--kv-blocks 4",
                        "--event-log x",
                        "--stepwise"});
}

TEST_F(Hostile, FlagsThatChangeNothingWithoutAdapters) {
  expect_one_line_each(
      "replay --json r --trace base.jsonl ",
      {"--ranks 8", "--lora-padded-ranks", "--lora-max-grid", "--gpu-eviction lru",
       "--cpu-eviction lru", "--no-prefetch", "--load-mode overlap", "--disk-workers 2",
       "--disk-sharing own", "--disk-gbps 1", "--h2d-gbps 1", "--pack", "--t-starve-ms 1",
       "--n-starve 1", "--drain-factor 1", "--pin a", "--seed -1"});
}

TEST_F(Hostile, Traces) {
  expect_one_line_each("trace ", {"",
                                  "inof a.jsonl",
                                  "info",
                                  "info a.jsonl a.jsonl",
                                  "info none",
                                  "info .",
                                  "info /dev/null",
                                  "info /dev/zero",
                                  "info /dev/zero --format native --skip-bad-rows",
                                  "convert /dev/zero x",
                                  "convert . x",
                                  "info a.jsonl --reuse 1,x",
                                  "info a.jsonl --reuse 5",
                                  "info blocks.jsonl --reuse ''",
                                  "info blocks.jsonl --reuse -1",
                                  "info a.jsonl --format ''",
                                  "info a.jsonl --block-tokens 16",
                                  "info blocks.jsonl --block-tokens 8",
                                  "info a.jsonl --json a.jsonl",
                                  "convert a.jsonl",
                                  "convert a.jsonl a.jsonl",
                                  "convert a.jsonl none/x",
                                  "convert none x",
                                  "convert a.jsonl ''"});
}

TEST_F(Hostile, TracesThatAreNoFiles) {
  expect_one_line_each("replay --json r --trace ", {"/dev/zero", ".", "pipe", "/dev/null"});
}

TEST_F(Hostile, Generators) {
  expect_one_line_each("trace generate --out r ", {"",
                                                   "--requests 5",
                                                   "--arrivals poisson:1",
                                                   "--arrivals poisson:1 --requests 0",
                                                   "--arrivals poisson:1 --requests 2000000000",
                                                   "--arrivals poisson:1 --duration 4e9",
                                                   "--requests 5 --arrivals poison:1",
                                                   "--requests 5 --arrivals poisson",
                                                   "--requests 5 --arrivals poisson:0",
                                                   "--requests 5 --arrivals poisson:nan",
                                                   "--requests 5 --arrivals poisson:-1",
                                                   "--requests 5 --arrivals poisson:1:2",
                                                   "--requests 5 --arrivals gamma:5:0",
                                                   "--requests 5 --arrivals gamma:5:inf",
                                                   "--requests 5 --arrivals trace:none",
                                                   "--arrivals poisson:1e6 --duration 1e6",
                                                   "--adapter-rates 1e6:3 --duration 1e6",
                                                   "--requests 5 --arrivals trace:loop",
                                                   "--requests 5 --arrivals trace:pipe",
                                                   "--requests 5 --arrivals poisson:1e-300"});
  expect_one_line_each("trace generate --out r --requests 5 --arrivals poisson:1 ",
                       {"--rate-scale 0",
                        "--turns 0.5",
                        "--turn-gap 60",
                        "--system-tokens constant:5",
                        "--prompt-tokens constant:0",
                        "--prompt-tokens constant:",
                        "--prompt-tokens constant:nan",
                        "--output-tokens lognormal:5",
                        "--output-tokens lognormal:nan:5",
                        "--output-tokens histogram:none",
                        "--lengths-in-order",
                        "--lengths-from none",
                        "--lengths-from base.jsonl --prompt-tokens constant:5",
                        "--per-adapter",
                        "--ranks 8",
                        "--adapters 5 --popularity zipff:1",
                        "--adapters 5 --popularity zipf:-1",
                        "--adapters 5 --popularity power:0",
                        "--adapter-rates 1:5",
                        "--popularity zipf:1",
                        "--request 5"});
  expect_one_line_each("trace generate --out r --requests 5 ",
                       {"--adapter-rates 1", "--adapter-rates 1:0", "--adapter-rates nan:3",
                        "--adapter-rates 1:1.5", "--adapter-rates 1:3,", "--adapter-rates 0:3",
                        "--adapter-rates 1:3 --per-adapter --adapters 3"});
}

TEST_F(Hostile, SlipsGetTheNearestName) {
  const std::string generate = "trace generate --out r --requests 5 --arrivals ";
  const std::vector<std::pair<std::string, std::string>> slips = {
      {generate + "poison:1", "did you mean 'poisson'?"},
      {generate + "gama:1:2", "did you mean 'gamma'?"},
      {generate + "trcae:x", "did you mean 'trace'?"},
      {generate + "gamma:1", "give poisson:RATE, gamma:RATE:CV or trace:FILE"},
      {generate + "poisson:1 --prompt-tokens lognorml:5:4", "did you mean 'lognormal'?"},
      {generate + "poisson:1 --output-tokens constnat:5", "did you mean 'constant'?"},
      {generate + "poisson:1 --output-tokens constant",
       "give constant:N, lognormal:MEAN:P50[:MAX] or histogram:FILE"},
      {"replay --trace a.jsonl --target-modules q_proj,v_prj", "did you mean 'v_proj'?"},
      {"replay --trace a.jsonl --target-modules all-liner", "did you mean 'all-linear'?"},
      {"replay --trace a.jsonl --gpu h20", "did you mean 'H200'?"},
      {"replay --trace a.jsonl --gpu h10", "did you mean H100-80 (SXM), H100-PCIe or H100-NVL?"},
      {"replay --trace a.jsonl --gpu mi30", "did you mean 'MI300X'?"},
      {"replay --trace a.jsonl --model lama-3.1-8b", "did you mean 'Llama-3.1-8B'?"},
      {"replay --trace a.jsonl --model mistral", "did you mean 'Mistral-7B'?"},
      {"replay --trace a.jsonl --model meta-llama/Llama-3.1-8B", "did you mean 'Llama-3.1-8B'?"},
      {"size --trace a.jsonl --choose smalest", "did you mean 'smallest'?"}};
  for (const auto& [arguments, end] : slips) {
    expect_one_line(arguments);
    EXPECT_TRUE(loratory(arguments).err.ends_with("; " + end + "\n")) << content("err.txt");
  }
}

TEST_F(Hostile, AGpuIsNoModel) {
  const std::string slip = "replay --trace a.jsonl --model H1";
  expect_one_line(slip);
  EXPECT_TRUE(loratory(slip).err.starts_with(
      "loratory: --model: unknown model 'H1'; H100-80 is a GPU, for --gpu; give the path of a "
      "config.json or one of "))
      << content("err.txt");
}

TEST_F(Hostile, Programs) {
  expect_one_line_each("", {"", "sise", "Size", "replay", "size", "--no-such-flag", "-", "--",
                            "replay size --trace a.jsonl", "--config run.toml", "--config"});
}

}  // namespace
}  // namespace loratory
