// Results of load generators and logs of servers, as measured runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measured_table.hpp"
#include "scheduler_sim/measured/server_log.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"
#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

const std::vector<DescribedCell> kServer{{"gpu", "H100-80", "--describe"},
                                         {"engine", "vllm-0.8", "--describe"}};

// vllm bench serve --save-result --save-detailed --metadata max_loras=2 rate_counts=4
constexpr const char* kVllm = R"({"date": "20251101-120000", "backend": "openai",
 "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "x", "num_prompts": 3,
 "max_loras": "2", "rate_counts": "4", "request_rate": 2.0, "burstiness": 1.0,
 "max_concurrency": null, "duration": 4.0, "completed": 3, "total_input_tokens": 300,
 "total_output_tokens": 120, "mean_ttft_ms": 30.5, "p99_tpot_ms": 13, "mean_itl_ms": 12.1,
 "input_lens": [90, 110, 100], "output_lens": [50, 40, 30], "start_times": [10.0, 10.5, 11.25],
 "generated_texts": ["Infinity \"NaN", "b", "c"], "errors": ["", "", ""]})";

// python -m sglang.bench_serving --output-file
constexpr const char* kSglang =
    R"({"backend": "sglang", "dataset_name": "random", "request_rate": Infinity,)"
    R"( "max_concurrency": 2, "duration": 5.0, "completed": 4, "total_input_tokens": 400,)"
    R"( "total_output_tokens": 200, "mean_ttft_ms": 30.0, "mean_tpot_ms": NaN, "concurrency": 1.9})"
    "\n";

constexpr const char* kLog =
    "INFO 04-30 12:00:00 [api_server.py:1043] vLLM API server version 0.8.5\n"
    "INFO 04-30 12:00:00 [api_server.py:1044] args: Namespace(subparser='serve', host=None, "
    "lora_modules=[LoRAModulePath(name='a', path='/l/a'), LoRAModulePath(name='b', path='/l,b')], "
    "model='meta-llama/Llama-3.1-8B', tensor_parallel_size=2, enable_lora=True, max_loras=8, "
    "max_lora_rank=32, max_cpu_loras=None, max_num_seqs=128, enable_prefix_caching=None)\n"
    "INFO 04-30 12:00:09 [config.py:2003] Chunked prefill is enabled with "
    "max_num_batched_tokens=4096.\n"
    "INFO 04-30 12:00:10 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: "
    "model='meta-llama/Llama-3.1-8B', max_seq_len=131072, enable_prefix_caching=False, x=Y(a=1)\n"
    "INFO 04-30 12:00:40 [gpu_model_runner.py:1347] Model loading took 8.2500 GiB and 4.1 seconds\n"
    "INFO 04-30 12:00:50 [kv_cache_utils.py:634] GPU KV cache size: 331,840 tokens\n";

MeasuredTable read(const std::string& text, const std::vector<DescribedCell>& also = kServer) {
  return read_measured_runs_from(text, "r.json", also);
}

std::string error_of(const std::string& text, const std::vector<DescribedCell>& also = kServer) {
  try {
    read(text, also);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(BenchResults, VllmWithTheVeryRequests) {
  const MeasuredTable table = read(kVllm);
  EXPECT_EQ(table.format, "bench-results");
  ASSERT_EQ(table.runs.size(), 1u);
  const MeasuredRun& run = table.runs[0];
  EXPECT_EQ(run.place, "r.json:1");
  EXPECT_EQ(run.model, "Llama-3.1-8B");
  EXPECT_EQ(run.engine, "vllm-0.8");
  EXPECT_EQ(run.gpu, "H100-80");
  EXPECT_EQ(run.max_loras, 2);
  EXPECT_EQ(run.max_cpu_loras, 4);
  ASSERT_EQ(run.adapters.size(), 1u);
  EXPECT_EQ(run.adapters[0].count, 4);
  EXPECT_DOUBLE_EQ(run.offered_rps(), 2);
  EXPECT_EQ(run.client.num_requests, 3);
  EXPECT_EQ(run.client.concurrency, 0);
  EXPECT_EQ(run.lengths, LengthKind::recorded);
  ASSERT_EQ(run.requests.size(), 3u);
  EXPECT_EQ(run.requests[1].prompt_tokens, 110u);
  EXPECT_EQ(run.requests[1].output_tokens, 40u);
  EXPECT_EQ(run.requests[2].sent_ns, 1'250'000'000);
  EXPECT_DOUBLE_EQ(run.mean_prompt_tokens, 100);
  EXPECT_DOUBLE_EQ(run.measured.completed, 3);
  EXPECT_DOUBLE_EQ(run.measured.input_tps, 75);
  EXPECT_DOUBLE_EQ(run.measured.output_tps, 30);
  EXPECT_DOUBLE_EQ(run.measured.mean_ttft_ms, 30.5);
  EXPECT_DOUBLE_EQ(run.measured.p99_tpot_ms, 13);
  EXPECT_EQ(run.sweep, "Llama-3.1-8B, 4 adapters, 2 requests/s, 100 prompt tokens");
}

TEST(BenchResults, SglangWithoutARateIsAClosedLoop) {
  std::vector<DescribedCell> also = kServer;
  also[1] = {"model", "Llama-3.1-8B", "--describe"};
  const MeasuredTable table = read(std::string(kSglang) + "\n" + kSglang, also);
  ASSERT_EQ(table.runs.size(), 2u);
  EXPECT_EQ(table.runs[1].place, "r.json:3");
  const MeasuredRun& run = table.runs[0];
  EXPECT_EQ(run.engine, "sglang");
  EXPECT_EQ(run.client.concurrency, 2);
  EXPECT_EQ(run.client.num_requests, 4);
  EXPECT_EQ(run.lengths, LengthKind::constant);
  EXPECT_DOUBLE_EQ(run.mean_output_tokens, 50);
  EXPECT_DOUBLE_EQ(run.measured.mean_ttft_ms, 30);
  EXPECT_TRUE(std::isnan(run.measured.mean_tpot_ms));
  EXPECT_EQ(run.num_adapters(), 0);
  EXPECT_TRUE(run.has_traffic());
}

TEST(BenchResults, ASweepIsAnArray) {
  const std::string two = std::string("[") + kVllm + ",\n" + with(kVllm, "\"2\"", "3") + "]";
  const MeasuredTable table = read(two);
  ASSERT_EQ(table.runs.size(), 2u);
  EXPECT_EQ(table.runs[1].max_loras, 3);
  EXPECT_EQ(table.runs[1].sweep, table.runs[0].sweep);
}

TEST(BenchResults, WhatCannotBeReplayedIsSkippedWithTheReason) {
  const auto reason = [](const std::string& from, const std::string& to) {
    const MeasuredTable table = read(with(kVllm, from, to));
    return table.skipped.empty() ? "" : table.skipped[0].reason;
  };
  EXPECT_EQ(reason("\"burstiness\": 1.0", "\"burstiness\": 0.5"), "its arrivals are not Poisson");
  EXPECT_EQ(reason("\"completed\": 3", "\"completed\": 2"), "some of its requests failed");
  EXPECT_EQ(reason("\"completed\": 3", "\"completed\": 0"), "no request was completed");
  EXPECT_THAT(reason("\"max_concurrency\": null", "\"max_concurrency\": 2"),
              HasSubstr("held requests back"));
  EXPECT_EQ(
      reason("\"max_concurrency\": null", "\"max_concurrency\": 4, \"max_concurrent_requests\": 3"),
      "");
  EXPECT_EQ(reason("\"rate_counts\": \"4\", ", ""),
            "it does not say how many adapters (rate_counts)");
  EXPECT_EQ(read(kVllm, {}).skipped.at(0).reason, "its engine is not known");
}

// Steps take 10 ms. Nobody waits; the last of ten tokens comes 20 ms after the last request.
TEST(BenchResults, TheVeryRequestsAreReplayedWhenTheyWereSent) {
  MeasuredRun run;
  run.adapters = {{0, 20}};
  run.mean_prompt_tokens = run.mean_output_tokens = 10;
  run.client.num_requests = 3;
  run.requests = {{0, 100, 3}, {50'000'000, 90, 5}, {100'000'000, 110, 2}};
  run.lengths = LengthKind::recorded;
  const RunMeasures measures = simulate_run(run, engine(), {}, 1).measures;
  EXPECT_DOUBLE_EQ(measures.completed, 3);
  EXPECT_DOUBLE_EQ(measures.mean_ttft_ms, 10);
  EXPECT_NEAR(measures.output_tps, 10 / 0.12, 1e-9);
  EXPECT_NEAR(measures.input_tps, 300 / 0.12, 1e-9);
}

TEST(BenchResults, HostileOnesAreOneLine) {
  EXPECT_THAT(error_of(with(kVllm, "\"duration\": 4.0, ", "")),
              HasSubstr("r.json:1:1: duration is missing, or no number; give the result of vllm"));
  EXPECT_THAT(error_of(with(kVllm, "\"duration\": 4.0", "\"duration\": 0")),
              HasSubstr("duration is 0 s"));
  EXPECT_THAT(error_of(with(kVllm, "\"duration\": 4.0", "\"duration\": -1")),
              HasSubstr("duration is -1; it can not be below 0"));
  EXPECT_THAT(error_of(with(kVllm, "50, 40, 30", "50, 40")),
              HasSubstr("3 input_lens and 2 output_lens"));
  EXPECT_THAT(error_of(with(kVllm, "50, 40, 30", "50, 40, -3")),
              HasSubstr("output_lens is no whole number in 0.."));
  EXPECT_THAT(error_of(with(kVllm, "10.5", "\"x\"")),
              HasSubstr("start_times holds what is no time"));
  EXPECT_THAT(error_of(with(kVllm, "\"max_loras\": \"2\"", "\"max_loras\": \"two\"")),
              HasSubstr("r.json:1:1: max_loras: 'two' is not a whole number"));
  EXPECT_THAT(error_of(with(kVllm, "\"max_loras\": \"2\"", "\"max_loras\": [2]")),
              HasSubstr("max_loras is neither a text nor a number"));
  EXPECT_THAT(error_of(with(kVllm, "\"openai\",", "\"openai\"")), HasSubstr("r.json:2:"));
  EXPECT_THAT(error_of("[{}, 3]"), HasSubstr("[0]: duration is missing"));
  EXPECT_THAT(error_of("[]"), HasSubstr("no rows"));
  EXPECT_THAT(error_of(kVllm, {{"tp", "x", "--describe"}}),
              HasSubstr("--describe: tp: 'x' is not"));
}

TEST(ServerLog, AStartSaysHowTheServerWasStarted) {
  const MeasuredTable table = read(kLog, {{"gpu", "H100-80", "--describe"}});
  EXPECT_EQ(table.format, "server-log");
  ASSERT_EQ(table.runs.size(), 1u);
  const MeasuredRun& run = table.runs[0];
  EXPECT_EQ(run.model, "Llama-3.1-8B");
  EXPECT_EQ(run.engine, "vllm-0.8");
  EXPECT_EQ(run.tp, 2);
  EXPECT_EQ(run.max_loras, 8);
  EXPECT_EQ(run.max_cpu_loras, 8);
  EXPECT_EQ(run.max_lora_rank, 32);
  EXPECT_EQ(run.max_num_seqs, 128);
  EXPECT_EQ(run.max_num_batched_tokens, 4096);
  EXPECT_EQ(run.max_model_len, 131'072);
  EXPECT_FALSE(run.prefix_cache);
  EXPECT_DOUBLE_EQ(run.measured.kv_tokens, 331'840);
  EXPECT_DOUBLE_EQ(run.measured.weights_gib, 8.25);
  EXPECT_FALSE(run.has_traffic());
}

// One adapter for each module of the log; what a result says itself counts first.
TEST(ServerLog, FillsWhatAResultLeavesOpen) {
  const std::unique_ptr<ByteSource> text = open_bytes(kLog);
  std::vector<DescribedCell> cells = read_server_log(*text, "s.log");
  cells.push_back({"gpu", "H100-80", "--describe"});
  const MeasuredRun own = read(kVllm, cells).runs.at(0);
  EXPECT_EQ(own.max_loras, 2);
  EXPECT_EQ(own.num_adapters(), 4);
  EXPECT_DOUBLE_EQ(own.measured.kv_tokens, 331'840);
  const std::string silent =
      with(with(kVllm, "\"max_loras\": \"2\",", ""), "\"rate_counts\": \"4\",", "");
  const MeasuredRun filled = read(silent, cells).runs.at(0);
  EXPECT_EQ(filled.max_loras, 8);
  EXPECT_EQ(filled.num_adapters(), 2);
}

TEST(ServerLog, NewerVersionsAndFailedStarts) {
  const std::string log =
      "(APIServer pid=1) INFO 09-23 15:01:02 [api_server.py:1805] vLLM API server version 0.12.0\n"
      "(APIServer pid=1) INFO 09-23 15:01:02 [utils.py:326] non-default args: {'model_tag': 'q', "
      "'model': 'Qwen/Qwen2.5-7B-Instruct', 'enable_lora': True}\n"
      "(EngineCore pid=2) ERROR ValueError: To serve at least one request with the models's max "
      "seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV "
      "cache "
      "memory (6.50 GiB).\n";
  const MeasuredRun run = read(log, {{"gpu", "L40S", "--describe"}}).runs.at(0);
  EXPECT_EQ(run.engine, "vllm-0.12");
  EXPECT_EQ(run.model, "Qwen2.5-7B");
  EXPECT_EQ(run.max_loras, 1);
  EXPECT_EQ(run.max_lora_rank, 16);
  EXPECT_DOUBLE_EQ(run.measured.kv_tokens, 0);
  const std::unique_ptr<ByteSource> nothing = open_bytes("INFO: started\n");
  EXPECT_THROW(read_server_log(*nothing, "s.log"), InputError);
}

TEST(Described, CellsOfATableCountFirst) {
  const std::string head = "model,gpu,max_loras,kv_tokens\nLlama-3.1-8B,,4,1000\n";
  const MeasuredRun run = read(head, kServer).runs.at(0);
  EXPECT_EQ(run.gpu, "H100-80");
  EXPECT_EQ(run.engine, "vllm-0.8");
  EXPECT_EQ(read(head, {{"max_loras", "9", "x"}, kServer[0], kServer[1]}).runs.at(0).max_loras, 4);
  EXPECT_THAT(error_of("model,gpu,engine,engine_version\n"), HasSubstr("leave out --describe"));
}

TEST(Described, AFlagNamesAColumn) {
  EXPECT_EQ(parse_description("gpu=mem=80GiB,bw=2TB/s", "--describe").text, "mem=80GiB,bw=2TB/s");
  const auto error = [](const char* text) -> std::string {
    try {
      parse_description(text, "--describe");
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error("max_lora=3"),
            "--describe: 'max_lora' describes no server; did you mean "
            "'max_loras'?");
  EXPECT_EQ(error("gpu"), "--describe: gpu has no value; write gpu=VALUE");
  EXPECT_THAT(error("completed=3"), HasSubstr("describes no server"));
}

}  // namespace
}  // namespace loratory::sim
