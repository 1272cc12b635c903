#include "cli/system_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "cli/config_file.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/step_profile.hpp"

namespace loratory::cli {
namespace {

using ::testing::HasSubstr;

// A program with two subcommands that share the system flags, as the real one.
class SystemFlags : public ::testing::Test {
 protected:
  SystemFlags() {
    for (const char* name : {"replay", "size"}) {
      CLI::App* subcommand = program_.add_subcommand(name);
      add_system_options(*subcommand, options_);
      subcommand->add_option("--slo-ttft-ms", slo_ttft_ms_);
    }
    program_.require_subcommand(1);
    add_config_file(program_);
  }

  void SetUp() override { path_ = testing::TempDir() + "options.toml"; }
  void TearDown() override { std::filesystem::remove(path_); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }
  void parse(const std::string& line) { program_.parse(line, false); }
  std::string config() const { return " --config " + path_; }

  CLI::App program_;
  SystemOptions options_;
  double slo_ttft_ms_ = 0;
  std::string path_;
};

TEST_F(SystemFlags, DefaultsAreTheDocumentedOnes) {
  parse("size");
  EXPECT_EQ(options_.max_num_seqs, 256);
  EXPECT_EQ(options_.max_num_batched_tokens, 2048);
  EXPECT_EQ(options_.block_size, 0);  // the trace's, else 16
  EXPECT_EQ(options_.n_starve, 64);
  EXPECT_EQ(options_.t_starve_ms, 3000);
  EXPECT_EQ(options_.drain_factor, 1.2);
  EXPECT_EQ(options_.disk_workers, 2);
  const System system = resolve_system(options_, 32);
  EXPECT_EQ(system.memory.block_size, 16);
  EXPECT_EQ(system.memory.max_lora_rank, 32);
  EXPECT_EQ(system.model.name, "Llama-3.1-8B");
}

TEST_F(SystemFlags, ReachTheirFields) {
  parse(
      "replay --model Qwen2.5-7B --gpu H200 --tp 2 --max-lora-rank 64 --target-modules q,v "
      "--reserve-gib 2 --host-memory-gib 8 --gpu-eviction fifo --load-mode blocking "
      "--disk-gbps 3.5 --h2d-gbps 12 --disk-sharing own --n-starve inf --t-starve-ms inf "
      "--no-chunked-prefill --lora-dtype fp8 --lora-graphs one "
      "--cpu-eviction gpu-last --no-prefetch --pin a,b --pin c");
  EXPECT_EQ(options_.cpu_eviction, "gpu-last");
  EXPECT_TRUE(options_.no_prefetch);
  EXPECT_THAT(options_.pins, ::testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(options_.n_starve, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(options_.t_starve_ms, std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(options_.no_chunked_prefill);
  const System system = resolve_system(options_, 16);
  EXPECT_EQ(system.memory.max_lora_rank, 64);
  EXPECT_EQ(system.memory.reserve_bytes, int64_t{2} << 30);
  EXPECT_EQ(system.memory.targets.to_string(), "q_proj,v_proj");
  EXPECT_EQ(system.loads.disk_bytes_per_s, 3'500'000'000);
  EXPECT_EQ(system.loads.h2d_bytes_per_s, 12'000'000'000);
  EXPECT_FALSE(system.loads.share_disk);
  EXPECT_EQ(system.memory.lora_dtype, sim::LoraDtype::fp8);
}

TEST_F(SystemFlags, ConfigFileFillsTheSubcommand) {
  write(
      "max-num-seqs = 77\nmodel = \"Qwen3-8B\"\nslo-ttft-ms = 250.5\n"
      "no-chunked-prefill = true\nn-starve = \"inf\"\n");
  parse("size" + config());
  EXPECT_EQ(options_.max_num_seqs, 77);
  EXPECT_EQ(options_.model, "Qwen3-8B");
  EXPECT_EQ(slo_ttft_ms_, 250.5);
  EXPECT_TRUE(options_.no_chunked_prefill);
  EXPECT_EQ(options_.n_starve, std::numeric_limits<int64_t>::max());
}

TEST_F(SystemFlags, CommandLineWinsOverConfigFile) {
  write("max-num-seqs = 77\nblock-size = 32\n");
  parse("replay --max-num-seqs 5" + config());
  EXPECT_EQ(options_.max_num_seqs, 5);
  EXPECT_EQ(options_.block_size, 32);
}

TEST_F(SystemFlags, ConfigFileMayComeBeforeTheSubcommand) {
  write("block-size = 32\n");
  parse(config().substr(1) + " replay");
  EXPECT_EQ(options_.block_size, 32);
}

TEST_F(SystemFlags, ConfigFileErrors) {
  const auto error = [&](const std::string& text) {
    write(text);
    try {
      parse("size" + config());
    } catch (const InputError& thrown) {
      return std::string(thrown.what());
    }
    return std::string("no error");
  };
  const std::string file = path_;
  EXPECT_EQ(error("# sizes\nmax-num-sequences = 77\n"),
            file + ":2: 'max-num-sequences' is no flag of size; did you mean 'max-num-seqs'?");
  EXPECT_EQ(error("tp = 1\ncolour = 77\n"), file + ":2: 'colour' is no flag of size; leave it out");
  EXPECT_EQ(
      error("[size]\ntp = 1\n"),
      file + ":1: 'size' is a table; write the flags of the command that runs, without a table");
  EXPECT_EQ(
      error("\nload-mode = \"sometimes\"\n"),
      file + ":2: --load-mode: 'sometimes' is not one of overlap, blocking; give one of them");
  EXPECT_EQ(error("drain-factor = nan\n"),
            file +
                ":1: --drain-factor: 'nan' is not a number from 0 to 1000000; give one, such as "
                "2 or 0.5");
  EXPECT_EQ(error("pack = 1\n"), file + ":1: --pack: is neither true nor false");
  EXPECT_EQ(error("tp = 2001-01-01\n"),
            file +
                ":1: --tp: has no value that a flag could have; write a string, a number or a "
                "list of them");
  EXPECT_THAT(error("tp = 1\ntp = 2\n"), HasSubstr(file + ":2:"));
  EXPECT_THAT(error("tp 1\n"), HasSubstr(file + ":1:"));
}

TEST_F(SystemFlags, ConfigFileHasListsAndSwitches) {
  write("pin = [\"a\", \"b\"]\npack = false\nno-prefetch = true\nn-starve = inf\n");
  parse("size" + config());
  EXPECT_THAT(options_.pins, ::testing::ElementsAre("a", "b"));
  EXPECT_FALSE(options_.pack);
  EXPECT_TRUE(options_.no_prefetch);
  EXPECT_EQ(options_.n_starve, std::numeric_limits<int64_t>::max());
}

TEST_F(SystemFlags, MissingConfigFile) {
  EXPECT_THROW(parse("size --config /no/such/run.toml"), CLI::ParseError);
}

TEST_F(SystemFlags, BadValuesAreInputErrors) {
  for (const char* flags :
       {"--tp 0", "--gpu-memory-utilization 1.5", "--block-size 0", "--load-mode later",
        "--n-starve -1", "--disk-workers 33", "--lora-dtype int4", "--lora-graphs none",
        "--max-lora-rank 513", "--drain-factor -1", "--n-starve soon", "--cpu-eviction fifo"}) {
    EXPECT_THROW(parse(std::string("size ") + flags), InputError) << flags;
  }
}

TEST_F(SystemFlags, ContradictionsAreInputErrors) {
  for (const char* flags :
       {"--max-num-batched-tokens 8", "--no-chunked-prefill --long-prefill-threshold 64",
        "--no-chunked-prefill --max-model-len 4096", "--max-lora-rank 8", "--model Llama-9",
        "--gpu H300", "--target-modules qkv", "--tp 3",
        "--t-starve-ms inf --n-starve inf --drain-factor 1.2"}) {
    options_ = {};
    parse(std::string("size ") + flags);
    EXPECT_THROW(resolve_system(options_, 16), InputError) << flags;
  }
}

// One limit is enough for somebody to reserve, and then to drain.
TEST_F(SystemFlags, ADrainFactorNeedsALimitOfStarvation) {
  for (const char* flags : {"--t-starve-ms inf --drain-factor 2", "--n-starve inf --drain-factor 2",
                            "--t-starve-ms inf --n-starve inf"}) {
    options_ = {};
    parse(std::string("size ") + flags);
    EXPECT_NO_THROW(resolve_system(options_, 16)) << flags;
  }
}

TEST_F(SystemFlags, StepModelIsTheProfileOrTheRoofline) {
  sim::BatchShape shape;
  shape.num_seqs = shape.num_tokens = shape.num_lora_tokens = 4;
  shape.num_adapters = 4;
  shape.sum_rank = shape.lora_rank_tokens = 32;
  parse("size");
  const System system = resolve_system(options_, 32);  // our kernels pad 8 to 16 anyway
  const int64_t plain = make_step_model(options_, system, {64, 64})->step_ns(shape);
  options_.lora_padded_ranks = true;
  const int64_t padded = make_step_model(options_, system, {64, 64})->step_ns(shape);
  EXPECT_GT(padded, plain);
  options_.lora_max_grid = true;
  EXPECT_GT(make_step_model(options_, system, {64, 64})->step_ns(shape), padded);
  sim::BatchShape base;
  base.num_seqs = base.num_tokens = 4;
  const int64_t no_lora = make_step_model(options_, system, {64, 64})->step_ns(base);
  options_.lora_graphs = "one";
  EXPECT_GT(make_step_model(options_, system, {64, 64})->step_ns(base), no_lora);
  sim::StepProfile profile;
  profile.constant_ns = 42;
  write(sim::format_step_profile(profile));
  options_.profile = path_;
  EXPECT_EQ(make_step_model(options_, system, {64, 64})->step_ns(shape), 42);
}

TEST_F(SystemFlags, EngineSetsWhatWasNotGiven) {
  program_.parse("replay --engine vllm-0.8 --max-num-seqs 64 --load-mode overlap --gpu l4");
  const SystemOptions set = with_engine_defaults(options_);
  EXPECT_EQ(set.max_num_seqs, 64);
  EXPECT_EQ(set.load_mode, "overlap");
  EXPECT_EQ(set.max_num_batched_tokens, 2048);
  EXPECT_EQ(set.lora_graphs, "one");
  EXPECT_TRUE(set.lora_padded_ranks && set.lora_max_grid && set.no_prefetch);
  EXPECT_EQ(set.t_starve_ms, std::numeric_limits<int64_t>::max());
  const System system = resolve_system(set, 17);
  EXPECT_EQ(system.memory.law, sim::MemoryLaw::vllm_08);
  EXPECT_EQ(system.memory.max_lora_rank, 32);
  EXPECT_TRUE(system.memory.host_copy_per_gpu);
}

TEST_F(SystemFlags, RanksThatAnEngineRefusesAreErrors) {
  program_.parse("replay --engine vllm --max-lora-rank 24");
  try {
    resolve_system(with_engine_defaults(options_), 8);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("--max-lora-rank: vLLM 0.33.0 does not allow 24; it allows "));
  }
}

TEST_F(SystemFlags, TypesOfWeightsAndKv) {
  program_.parse("size --dtype fp8 --kv-cache-dtype fp8 --target-modules q");
  const System fp8 = resolve_system(with_engine_defaults(options_), 8);
  EXPECT_EQ(fp8.model.quantization.bits, 8);
  EXPECT_TRUE(fp8.model.fp8_kv);
  options_.target_modules = "qkv_proj";
  EXPECT_THROW(resolve_system(options_, 8), InputError);  // Llama has q_proj, k_proj and v_proj
}

TEST_F(SystemFlags, PenaltiesCostWhatTheEnginesSamplerDoes) {
  const auto costs = [&](const char* engine) {
    options_.engine = engine;
    const sim::StepOverheads overheads = resolve_system(options_, 8).engine.overheads;
    return std::pair(overheads.penalty_bytes_per_logit, overheads.penalty_host_row_ns);
  };
  EXPECT_EQ(costs("vllm-0.8"), std::pair(0.0, 0.0));
  options_.has_penalties = true;
  EXPECT_EQ(costs("vllm-0.8"), std::pair(129.0, 2000.0));
  EXPECT_EQ(costs("vllm-0.12"), std::pair(129.0, 0.0));  // its host's part is not known
  EXPECT_EQ(costs("ideal"), std::pair(0.0, 0.0));
}

// A profile holds for the server that it was fitted to.
TEST(ShippedProfile, SaysInWhatTheSystemDiffersFromItsServer) {
  SystemOptions options;
  options.profile = "vllm-0.8/qwen2.5-7b";
  sim::WorkloadSummary workload;
  describe_step_times(workload, options, 16);
  EXPECT_EQ(workload.not_of_profile, "model, GPU, engine");
  options.model = "Qwen2.5-7B";
  options.engine = "vllm-0.8";
  options.gpu = "H100-80,mem=63.4GiB,bw=1.63TB/s,flops=743T,host=64GB/s";
  describe_step_times(workload, options, 16);
  EXPECT_EQ(workload.not_of_profile, "");
  EXPECT_EQ(workload.expected_error.num_runs, 86);
  options.tp = 2;
  describe_step_times(workload, options, 16);
  EXPECT_EQ(workload.not_of_profile, "tp");
  options.dtype = "fp8";
  describe_step_times(workload, options, 32);
  EXPECT_EQ(workload.not_of_profile, "tp, dtype, rank");
}

// What a profile leaves open, as older ones do, is no difference.
TEST_F(SystemFlags, AProfileKnowsItsTypesAndRanks) {
  sim::StepProfile profile;
  profile.model = "Llama-3.1-8B";
  profile.gpu = "H100-80";
  sim::WorkloadSummary workload;
  SystemOptions options;
  const std::string file = testing::TempDir() + "p.json";
  options.profile = file;
  const auto differs_in = [&](int64_t max_rank) {
    std::ofstream(file) << sim::format_step_profile(profile);
    describe_step_times(workload, options, max_rank);
    return workload.not_of_profile;
  };
  options.dtype = options.kv_cache_dtype = options.lora_dtype = "fp8";
  EXPECT_EQ(differs_in(64), "");
  profile.weight_bits = profile.kv_bits = profile.adapter_bits = profile.max_rank = 16;
  EXPECT_EQ(differs_in(64), "dtype, kv-cache-dtype, lora-dtype, rank");
  options.dtype = "float16";
  options.kv_cache_dtype = options.lora_dtype = "auto";
  EXPECT_EQ(differs_in(16), "");
  options.dtype = "float32";
  EXPECT_EQ(differs_in(8), "dtype, kv-cache-dtype, lora-dtype");
}

}  // namespace
}  // namespace loratory::cli
