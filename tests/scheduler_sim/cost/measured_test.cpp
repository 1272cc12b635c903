// The cost model against public measurements. The figures quoted in docs/cost_model.md are the ones
// printed here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/cost/operator_model.hpp"
#include "tests/scheduler_sim/measured_data.hpp"

namespace loratory::sim {
namespace {

using Row = MeasuredRow;

// The card of both vLLM 0.8.5 data sets: an H100 with 64 GB of HBM2e.
GpuSpec h100_64() { return parse_gpu_spec("mem=63.4GiB,bw=1.63TB/s,flops=989T,host=64GB/s"); }

ModelSpec model_of(const Row& row) {
  return load_model_spec(row.at("model").starts_with("llama") ? "Llama-3.1-8B" : "Qwen2.5-7B");
}

// What vLLM 0.8.5 keeps per slot: on Llama also embeddings, lm_head and extra vocabulary.
MemoryOptions vllm_085(const ModelSpec& model) {
  MemoryOptions options;
  options.max_num_seqs = 2048;
  if (model.name == "Llama-3.1-8B") {
    options.targets = LoraTargets("all-linear,embed_tokens,lm_head");
    options.slot_overhead_bytes = 6 << 20;
  }
  return options;
}

TEST(Measured, KvTokensOfVllm085) {
  const std::vector<Row> all = read_measured("vllm_kv_tokens_by_max_loras_rank.csv");
  if (all.empty()) GTEST_SKIP() << "no measured memory table";
  std::map<std::string, Errors> kv, weights;
  std::map<std::string, int> unexplained;
  for (const Row& row : all) {
    if (!row.at("vllm").starts_with("0.8.5")) continue;
    const ModelSpec model = model_of(row);
    MemoryOptions options = vllm_085(model);
    options.max_lora_rank = int64_t(number(row, "max_lora_rank"));
    const auto max_loras = int64_t(number(row, "max_loras"));
    const MemorySplit split = plan_memory(model, h100_64(), options, max_loras, max_loras).split;
    const double gib = double(split.weights_bytes + split.slot_bytes) / (1 << 30);
    const double measured_gib = number(row, "weights_plus_lora_gib");
    if (!std::isnan(measured_gib)) weights[model.name].add(gib, measured_gib);
    if (row.at("status") != "ok") {
      unexplained[model.name] += split.kv_blocks > 0 ? 1 : 0;
      continue;
    }
    kv[model.name].add(double(split.kv_blocks * 16), number(row, "kv_cache_tokens"));
  }
  for (const auto& [name, errors] : kv) {
    fmt::print("{}: KV tokens, {} starts, |error| median {:.2f} % worst {:.2f} %; ", name,
               errors.size(), 100 * errors.median_size(), 100 * errors.worst_size());
    fmt::print("weights + slots, {} starts, median {:.2f} % worst {:.2f} %; ", weights[name].size(),
               100 * weights[name].median_size(), 100 * weights[name].worst_size());
    fmt::print("{} starts failed that fit by the law\n", unexplained[name]);
    EXPECT_LT(errors.median_size(), 0.02) << name;
    EXPECT_LT(weights[name].worst_size(), 0.03) << name;
  }
}

// A start of vLLM 0.8.5 with 2,048 sequences on that card; `kv_tokens` 0 = it failed.
struct Start {
  std::string model;
  int64_t max_loras, max_lora_rank, kv_tokens;
};

MemoryPlan plan_of(const Start& start) {
  MemoryOptions options;
  options.law = MemoryLaw::vllm_08;
  options.max_num_seqs = 2048;
  options.max_lora_rank = start.max_lora_rank;
  const ModelSpec model =
      load_model_spec(start.model.starts_with("llama") ? "Llama-3.1-8B" : "Qwen2.5-7B");
  return plan_memory(model, h100_64(), options, start.max_loras, start.max_loras);
}

// All measured starts, or a few of them where the table is missing: the smallest and the largest
// slots, the worst fragmentation (1,024 slots x ranks), and one that failed.
std::vector<Start> vllm_08_starts(const std::vector<Row>& table) {
  if (table.empty()) {
    return {{"llama-3.1-8b", 8, 8, 305104},
            {"llama-3.1-8b", 64, 16, 256640},
            {"qwen-2.5-7b", 128, 8, 601664},
            {"qwen-2.5-7b", 224, 32, 67136},
            {"llama-3.1-8b", 256, 16, 0}};
  }
  std::vector<Start> starts;
  for (const Row& row : table) {
    if (!row.at("vllm").starts_with("0.8.5")) continue;
    const bool ok = row.at("status") == "ok";
    starts.push_back({row.at("model"), int64_t(number(row, "max_loras")),
                      int64_t(number(row, "max_lora_rank")),
                      ok ? int64_t(number(row, "kv_cache_tokens")) : 0});
  }
  return starts;
}

TEST(Measured, KvLawOfVllm08IsNeverOptimistic) {
  std::map<std::string, Errors> kv;
  int num_failed = 0;
  for (const Start& start : vllm_08_starts(read_measured("vllm_kv_tokens_by_max_loras_rank.csv"))) {
    const MemoryPlan plan = plan_of(start);
    const std::string what =
        fmt::format("{} {} slots rank {}", start.model, start.max_loras, start.max_lora_rank);
    EXPECT_LE(plan.split.kv_blocks * 16, start.kv_tokens) << what;
    num_failed += start.kv_tokens == 0 ? 1 : 0;
    if (start.kv_tokens == 0) continue;
    kv[start.model].add(double(plan.split.kv_blocks * 16), double(start.kv_tokens));
    EXPECT_GT(double(plan.split.kv_blocks * 16), 0.98 * double(start.kv_tokens)) << what;
  }
  for (const auto& [name, errors] : kv) {
    fmt::print("vllm-0.8, {}: KV tokens, {} starts, MAPE {:.2f} %, worst {:.2f} %\n", name,
               errors.size(), 100 * errors.mean_size(), 100 * errors.worst_size());
  }
  fmt::print("vllm-0.8: {} failed starts, none predicted to fit\n", num_failed);
}

TEST(Measured, KvTokensOfVllm019OnRtx4090) {
  // LLMServingSim's run: utilization .9, 256 sequences, 2,048 tokens, 41,408 KV tokens.
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  const MemorySplit split = plan_memory(model, parse_gpu_spec("RTX-4090"), {}, 0, 0).split;
  const double error = double(split.kv_blocks) / 2588 - 1;
  fmt::print("RTX 4090: KV blocks {} against 2588, error {:.1f} %\n", split.kv_blocks, 100 * error);
  EXPECT_LT(std::fabs(error), 0.1);
}

// The average step of a server run: Little's law gives the rows, throughput the prefill tokens.
BatchShape average_step(const Row& row) {
  const double step_s = number(row, "real_mean_tpot_ms") / 1e3;
  const double seqs = std::max(1.0, number(row, "real_out_tps") * step_s);
  const double prompt = number(row, "avail_in_tok") / number(row, "prompts_available");
  const double output = number(row, "avail_out_tok") / number(row, "prompts_available");
  const double prefill = number(row, "real_in_tps") * step_s;
  const double slots = std::min(number(row, "max_loras"), number(row, "n_adapters"));
  const double adapters = slots * (1 - std::pow(1 - 1 / slots, seqs));
  const double rank = number(row, "max_lora_rank");
  BatchShape shape;
  shape.num_seqs = shape.num_sampled = std::llround(seqs);
  shape.num_tokens = shape.num_lora_tokens = std::llround(seqs + prefill);
  shape.num_prefill_tokens = shape.prefill_context_tokens = std::llround(prefill);
  shape.prefill_pairs = std::llround(prefill * prompt / 2);
  shape.decode_context_tokens = std::llround(seqs * (prompt + output / 2));
  shape.lora_rank_tokens = std::llround(double(shape.num_tokens) * rank);
  shape.num_adapters = std::max<int64_t>(1, std::llround(adapters));
  shape.sum_rank = std::llround(double(shape.num_adapters) * rank);
  shape.max_rank = std::llround(rank);
  return shape;
}

TEST(Measured, StepTimesOfVllm085AreOfTheRightOrder) {
  const std::vector<Row> all = read_measured("agullo_vllm085_multilora_sweep_measured_vs_dt.csv");
  if (all.empty()) GTEST_SKIP() << "no measured server runs";
  Errors with_grid, without_grid;
  for (const Row& row : all) {
    if (std::isnan(number(row, "real_mean_tpot_ms"))) continue;
    RooflineOptions options;
    options.lora_padded_rank = int64_t(number(row, "max_lora_rank"));
    const BatchShape step = average_step(row);
    const double measured_ns = number(row, "real_mean_tpot_ms") * 1e6;
    const RooflineModel active_only(model_of(row), h100_64(), options);
    without_grid.add(double(active_only.step_ns(step)), measured_ns);
    options.lora_grid_max_loras = int64_t(number(row, "max_loras"));
    const RooflineModel grid(model_of(row), h100_64(), options);
    with_grid.add(double(grid.step_ns(step)), measured_ns);
  }
  fmt::print(
      "step time, {} server runs: |error| with grid median {:.0f} % (bias {:+.0f} %) worst "
      "{:.0f} %; without grid median {:.0f} % (bias {:+.0f} %) worst {:.0f} %\n",
      with_grid.size(), 100 * with_grid.median_size(), 100 * with_grid.median(),
      100 * with_grid.worst_size(), 100 * without_grid.median_size(), 100 * without_grid.median(),
      100 * without_grid.worst_size());
  EXPECT_LT(with_grid.median_size(), 0.4);
}

// One decoding request of Qwen3-8B on an H100 with rank-64 adapters (TokenSpeed): tokens per
// second.
TEST(MeasuredDecode, OneRequestOfQwen3OnH100) {
  struct Case {
    const char* modules;
    double tokens_per_s;
  };
  BatchShape step;
  step.num_seqs = step.num_tokens = step.num_sampled = 1;
  step.decode_context_tokens = 1000;  // the source does not say; 1,000 tokens are 0.05 ms
  for (const Case& c : {Case{"", 142.0}, {"q,k,v,o", 119.1}, {"gate,up,down", 97.5}}) {
    RooflineOptions options;
    const bool has_adapter = *c.modules != '\0';
    if (has_adapter) {
      options.targets = LoraTargets(c.modules);
      step.num_adapters = step.num_lora_tokens = 1;
      step.sum_rank = step.max_rank = step.lora_rank_tokens = 64;
    }
    const RooflineModel model(load_model_spec("Qwen3-8B"), parse_gpu_spec("H100-80"), options);
    const double error = double(model.step_ns(step)) * c.tokens_per_s / 1e9 - 1;
    fmt::print("Qwen3-8B, H100, adapters on '{}': step error {:+.0f} %\n", c.modules, 100 * error);
    EXPECT_LT(std::fabs(error), 0.3);
    // TokenSpeed's kernels are not in the model; SGLang's are the slowest of those that are.
    options.lora_kernels = LoraKernels::sglang;
    const OperatorModel operators(load_model_spec("Qwen3-8B"), parse_gpu_spec("H100-80"),
                                  operator_table("h100_sxm"), options, {});
    const double operators_error = double(operators.step_ns(step)) * c.tokens_per_s / 1e9 - 1;
    fmt::print("the same from measured operators: {:+.0f} %\n", 100 * operators_error);
    EXPECT_LT(std::fabs(operators_error), 0.3);
  }
}

// Microseconds of the four matrices of one Llama-3.1-8B layer, by number of tokens.
std::map<int64_t, double> layer_us(const std::vector<Row>& rows) {
  std::map<int64_t, double> us;
  std::map<int64_t, int> found;
  for (const Row& row : rows) {
    const std::string& layer = row.at("layer");
    if (!layer.ends_with("_proj")) continue;
    const auto tokens = int64_t(number(row, "tokens"));
    us[tokens] += number(row, "time_us");
    ++found[tokens];
  }
  std::erase_if(us, [&found](const auto& entry) { return found[entry.first] != 4; });
  return us;
}

TEST(Measured, DenseLayersOfTwoCards) {
  const std::vector<std::pair<std::string, std::string>> cards{{"RTX4090", "RTX-4090"},
                                                               {"RTXPRO6000", "RTX-PRO-6000"}};
  for (const auto& [folder, preset] : cards) {
    const std::vector<Row> all = read_measured("llmservingsim/" + folder + "/profile_dense.csv");
    if (all.empty()) GTEST_SKIP() << "no measured layers";
    const RooflineModel model(load_model_spec("Llama-3.1-8B"), parse_gpu_spec(preset), {});
    const double activation_ns = 2048 * 32 * (4 * 4096.0 + 3 * 14336.0) * 2 /
                                 (parse_gpu_spec(preset).bandwidth_bytes_per_s * 0.9) * 1e9 / 2048;
    Errors errors;
    for (const auto& [tokens, us] : layer_us(all)) {
      BatchShape shape;
      shape.num_tokens = tokens;
      const double dense = model.parts(shape).dense - double(tokens) * activation_ns;
      errors.add(dense / 32 / 1e3, us);
    }
    fmt::print(
        "{}: layer matrices, {} token counts, |error| median {:.0f} % (bias {:+.0f} %) "
        "worst {:.0f} %\n",
        folder, errors.size(), 100 * errors.median_size(), 100 * errors.median(),
        100 * errors.worst_size());
    EXPECT_LT(errors.median_size(), 0.3);
  }
}

// The operators of one card's table against another measurement of the same card, and of a
// relative.
TEST(Measured, OperatorsOfTwoCards) {
  const std::vector<std::pair<std::string, std::string>> cards{{"RTX4090", "RTX-4090"},
                                                               {"RTXPRO6000", "RTX-PRO-6000"}};
  for (const auto& [folder, preset] : cards) {
    const std::vector<Row> layers = read_measured("llmservingsim/" + folder + "/profile_dense.csv");
    const std::vector<Row> attention =
        read_measured("llmservingsim/" + folder + "/profile_attention.csv");
    if (layers.empty() || attention.empty()) GTEST_SKIP() << "no measured layers";
    const GpuSpec gpu = parse_gpu_spec(preset);
    const OperatorTimes times(operator_table(operator_table_of(gpu)), gpu);
    const std::vector<std::pair<int64_t, int64_t>> shapes{
        {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
    std::vector<Curve> gemms;
    for (const auto& [n, k] : shapes) gemms.push_back(*times.gemm(n, k, false));
    Errors dense, decode, prefill;
    for (const auto& [tokens, us] : layer_us(layers)) {
      double ns = 0;
      for (const Curve& gemm : gemms) ns += gemm(double(tokens));
      dense.add(ns / 1e3, us);
    }
    const Surface decode_ns = *times.decode_attention({32, 8, 128, false});
    const PrefillTimes prefill_ns = *times.prefill_attention({32, 8, 128, false});
    for (const Row& row : attention) {
      const double chunk = number(row, "prefill_chunk"), count = number(row, "n_decode");
      const double context = number(row, "kv_decode"), us = number(row, "time_us");
      if (chunk == 0 && context >= 256) decode.add(decode_ns(count, context) / 1e3, us);
      if (count == 0 && number(row, "kv_prefill") == 0) prefill.add(prefill_ns(1, chunk) / 1e3, us);
    }
    for (const auto& [name, errors] :
         {std::pair{"layer matrices", &dense}, {"decode", &decode}, {"prefill", &prefill}}) {
      fmt::print(
          "{}: {} from operators, {} cases, |error| median {:.0f} % (bias {:+.0f} %) worst "
          "{:.0f} %\n",
          folder, name, errors->size(), 100 * errors->median_size(), 100 * errors->median(),
          100 * errors->worst_size());
      EXPECT_LT(errors->median_size(), 0.3);
    }
  }
}

}  // namespace
}  // namespace loratory::sim
