#include "scheduler_sim/measured/measured_table.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measure_fields.hpp"
#include "scheduler_sim/measured/table_formats.hpp"

namespace loratory::sim {
namespace {

MeasuredTable read_table(const std::string& text) {
  return read_measured_runs_from(text, "runs.csv");
}

std::string table_error(const std::string& text) {
  try {
    read_table(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MeasuredTable, EveryColumnOfOurOwn) {
  const MeasuredTable table = read_table(
      "sweep,group,model,engine,gpu,dtype,tp,max_loras,max_cpu_loras,max_lora_rank,ranks,"
      "max_num_seqs,max_num_batched_tokens,max_model_len,prefix_cache,rates_rps,rate_counts,"
      "lengths,mean_prompt_tokens,mean_output_tokens,duration_s,num_requests,concurrency,"
      "max_in_flight,poll_interval_s\n"
      "s1,g1,meta-llama/Llama-3.1-8B-Instruct,vllm,H200,fp8,2,4,8,32,8 32,128,4096,16384,off,"
      "0.5  0.25 ,3 2,sharegpt,222.5,196,1800,9,7,5000,2\n");
  EXPECT_EQ(table.format, "native");
  ASSERT_EQ(table.runs.size(), 1u);
  const MeasuredRun& run = table.runs.front();
  EXPECT_EQ(run.place, "runs.csv:2");
  EXPECT_EQ(run.sweep, "s1");
  EXPECT_EQ(run.group, "g1");
  EXPECT_EQ(run.model, "Llama-3.1-8B");
  EXPECT_EQ(run.engine, "vllm");
  EXPECT_EQ(run.gpu, "H200");
  EXPECT_EQ(run.dtype, "fp8");
  EXPECT_EQ(run.tp, 2);
  EXPECT_EQ(run.max_loras, 4);
  EXPECT_EQ(run.max_cpu_loras, 8);
  EXPECT_EQ(run.max_lora_rank, 32);
  EXPECT_EQ(run.ranks, (std::vector<int64_t>{8, 32}));
  EXPECT_EQ(run.max_num_seqs, 128);
  EXPECT_EQ(run.max_num_batched_tokens, 4096);
  EXPECT_EQ(run.max_model_len, 16384);
  EXPECT_FALSE(run.prefix_cache);
  ASSERT_EQ(run.adapters.size(), 2u);
  EXPECT_EQ(run.adapters[1].count, 2);
  EXPECT_DOUBLE_EQ(run.adapters[1].rate_rps, 0.25);
  EXPECT_EQ(run.num_adapters(), 5);
  EXPECT_DOUBLE_EQ(run.offered_rps(), 2.0);
  EXPECT_EQ(run.lengths, LengthKind::sharegpt);
  EXPECT_DOUBLE_EQ(run.mean_prompt_tokens, 222.5);
  EXPECT_DOUBLE_EQ(run.mean_output_tokens, 196);
  EXPECT_DOUBLE_EQ(run.client.duration_s, 1800);
  EXPECT_EQ(run.client.num_requests, 9);
  EXPECT_EQ(run.client.concurrency, 7);
  EXPECT_EQ(run.client.max_in_flight, 5000);
  EXPECT_DOUBLE_EQ(run.client.poll_interval_s, 2);
}

TEST(MeasuredTable, EveryMeasureOfBothPredictors) {
  std::string header =
      "model,engine,gpu,rates_rps,mean_prompt_tokens,mean_output_tokens,duration_s";
  std::string row = "Llama-3.1-8B,vllm,H200,2,10,20,60";
  int value = 1;
  for (const std::string prefix : {"", "other_"}) {
    for (const MeasureField& field : kMeasureFields) {
      header += "," + prefix + std::string(field.name);
      row += "," + std::to_string(value++);
    }
  }
  const MeasuredTable table = read_table(header + "\n" + row + "\n");
  value = 1;
  for (const RunMeasures MeasuredRun::*whose : {&MeasuredRun::measured, &MeasuredRun::other}) {
    for (const MeasureField& field : kMeasureFields) {
      EXPECT_EQ(table.runs.at(0).*whose.*field.value, value++) << field.name;
    }
  }
}

// A base model's run: one rate, no counts, no slots.
TEST(MeasuredTable, WhatIsLeftOutHasADefault) {
  const MeasuredTable table = read_table(
      "model,engine,gpu,rates_rps,mean_prompt_tokens,mean_output_tokens,duration_s,completed\n"
      "Llama-3.1-8B,vllm,H200,2,10,20,60,\n"
      ",vllm,H200,2,10,20,60,1\n"
      "Llama-3.1-8B,vllm,H200,,,,,1\n");
  ASSERT_EQ(table.runs.size(), 1u);
  const MeasuredRun& run = table.runs.front();
  EXPECT_EQ(run.group, "Llama-3.1-8B");
  EXPECT_EQ(run.num_adapters(), 0);
  EXPECT_DOUBLE_EQ(run.offered_rps(), 2);
  EXPECT_TRUE(run.prefix_cache);
  EXPECT_TRUE(std::isnan(run.measured.completed));
  ASSERT_EQ(table.skipped.size(), 2u);
  EXPECT_EQ(table.skipped[0].place, "runs.csv:3");
  EXPECT_EQ(table.skipped[0].reason, "its model is not known");
  EXPECT_EQ(table.skipped[1].reason, "its requests are not described (rates, lengths, duration)");
}

TEST(MeasuredTable, BadCellsAreNamed) {
  const std::string good = "model,engine,gpu,max_loras\n";
  EXPECT_EQ(
      table_error(good + "Llama-3.1-8B,vllm,H200,4.5\n"),
      "runs.csv:2:24: '4.5' is not a whole number from 0 to 2147483647; write decimal digits, "
      "or leave the cell empty");
  EXPECT_EQ(table_error(good + "Llama-3.1-8B,vlm,H200,4\n"),
            "runs.csv:2:14: unknown engine 'vlm'; did you mean 'vllm'?");
  EXPECT_EQ(table_error(good + "Llama-3.1-8B,vllm\n"),
            "runs.csv:2:18: 2 cells, but the header has 4; one cell for every column; an empty one "
            "is a figure that is not known");
  EXPECT_EQ(table_error("model,engine,gpu,max_lora\n"),
            "runs.csv:1:18: 'max_lora' is no column of measured runs; did you mean 'max_loras'?");
  EXPECT_EQ(table_error("model,engine,model\n"),
            "runs.csv:1:14: column 'model' appears twice; remove one");
  EXPECT_EQ(table_error("model,prefix_cache\nLlama-3.1-8B,yes\n"),
            "runs.csv:2:14: prefix_cache is 'yes'; write on or off");
  EXPECT_EQ(table_error("model,lengths\nLlama-3.1-8B,normal\n"),
            "runs.csv:2:14: lengths is 'normal'; write constant or sharegpt");
  EXPECT_EQ(table_error("model,mean_prompt_tokens\nLlama-3.1-8B,3e9\n"),
            "runs.csv:2:1: a mean of more than 2147483647 tokens; check the lengths");
  EXPECT_EQ(table_error("model,mean_ttft_ms\nLlama-3.1-8B,-1\n"),
            "runs.csv:2:14: '-1' is not a number from 0; write a decimal number, or leave the cell "
            "empty");
  EXPECT_EQ(table_error("model,rates_rps,rate_counts\nLlama-3.1-8B,1 2,3\n"),
            "runs.csv:2:1: 2 rates, but 1 counts of adapters; give a count for each rate");
  EXPECT_EQ(table_error("model,max_loras,max_cpu_loras\nLlama-3.1-8B,8,4\n"),
            "runs.csv:2:1: max_cpu_loras 4 is below max_loras 8; an adapter on the GPU is on the "
            "CPU too");
  EXPECT_EQ(table_error("model,rates_rps,duration_s\nLlama-3.1-8B,1e6,3600\n"),
            "runs.csv:2:1: 4e+09 requests in 3600 s, over 1e8; give a shorter duration, or lower "
            "rates");
  EXPECT_EQ(table_error("model,mean_ttft_ms\nLlama-3.1-8B,12"),
            "runs.csv:2:16: the last row has no newline and may be cut off; append a newline if "
            "the file is whole");
  EXPECT_EQ(table_error(""), "runs.csv:1:1: the file is empty; give a CSV of measured runs");
  EXPECT_EQ(table_error("model\n"),
            "runs.csv:2:1: the table has no rows; give one row for each measured run");
}

constexpr const char* kSweepHeader =
    "model,set,exp,max_loras,n_adapters,max_lora_rank,real_req,real_dur_s,real_in_tps,real_out_tps,"
    "real_mean_ttft_ms,real_mean_tpot_ms,real_mean_itl_ms,rates,rate_counts,prompts_available,"
    "avail_in_tok,avail_out_tok,dt_input_throughput,dt_output_throughput,dt_itl,dt_ttft,"
    "dt_finished_requests\n";

TEST(MeasuredTable, RowsOfTheMultiLoraSweep) {
  const MeasuredTable table = read_table(
      std::string(kSweepHeader) +
      "qwen-2.5-7b-instruct,rank_16_rates_0.1_0.05,_2_5_16_,2,5,16,900.0,3600.06,55.5,44.5,183.77,"
      "46.25,53.18,0.05  0.1  ,2 3,100,22250,19600,60,50,35.5,6571.3,910\n"
      "llama-3.1-8b-instruct,rank_16_rates_0.1_0.05,_5_5_16_,5,5,16,,,,,,,,,,,,,,,,,\n");
  EXPECT_EQ(table.format, "multi-lora-sweep");
  EXPECT_EQ(table.origin, "arXiv:2508.08343 (FerranAgulloLopez/GPULLMAdapterOptimization)");
  ASSERT_EQ(table.runs.size(), 2u);
  const MeasuredRun& run = table.runs[0];
  EXPECT_EQ(run.model, "Qwen2.5-7B");
  EXPECT_EQ(run.engine, "vllm-0.8");
  EXPECT_EQ(run.group, "Qwen2.5-7B rank 16 rates 0.1 0.05");
  EXPECT_EQ(run.sweep, "Qwen2.5-7B rank 16 rates 0.1 0.05, 5 adapters");
  EXPECT_EQ(run.max_loras, 2);
  EXPECT_EQ(run.max_cpu_loras, 5);
  EXPECT_EQ(run.ranks, (std::vector<int64_t>{8, 16}));
  EXPECT_EQ(run.max_model_len, 32'768);
  EXPECT_EQ(run.max_num_seqs, 2048);
  EXPECT_FALSE(run.prefix_cache);
  EXPECT_TRUE(run.has_penalties);
  EXPECT_FALSE(table.runs[1].has_penalties);
  EXPECT_EQ(run.num_adapters(), 5);
  EXPECT_DOUBLE_EQ(run.offered_rps(), 2 * 0.05 + 3 * 0.1);
  EXPECT_EQ(run.lengths, LengthKind::sharegpt);
  EXPECT_DOUBLE_EQ(run.mean_prompt_tokens, 222.5);
  EXPECT_DOUBLE_EQ(run.mean_output_tokens, 196);
  EXPECT_DOUBLE_EQ(run.client.duration_s, 3600);
  EXPECT_EQ(run.client.max_in_flight, 26'500);
  EXPECT_DOUBLE_EQ(run.client.poll_interval_s, 2);
  EXPECT_DOUBLE_EQ(run.measured.completed, 900);
  EXPECT_DOUBLE_EQ(run.measured.total_tps(), 100);
  EXPECT_DOUBLE_EQ(run.measured.mean_ttft_ms, 183.77);
  EXPECT_DOUBLE_EQ(run.measured.mean_tpot_ms, 46.25);
  EXPECT_DOUBLE_EQ(run.measured.mean_itl_ms, 53.18);
  EXPECT_DOUBLE_EQ(run.other.total_tps(), 110);
  EXPECT_DOUBLE_EQ(run.other.completed, 910);
  EXPECT_DOUBLE_EQ(run.other.mean_itl_ms, 35.5);
  EXPECT_TRUE(std::isnan(run.other.mean_ttft_ms));  // another quantity
  EXPECT_EQ(table.runs[1].measured.kv_tokens, 0);   // it did not start
  EXPECT_EQ(table.runs[1].max_model_len, 131'072);
  EXPECT_FALSE(table.runs[1].has_traffic());
}

TEST(MeasuredTable, RanksOfTheSweepGoUpToTheLargest) {
  for (const auto& [rank, ranks] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"8", {8}}, {"16", {8, 16}}, {"32", {8, 16, 32}}}) {
    const MeasuredTable table = read_table(
        "model,set,max_loras,n_adapters,max_lora_rank,real_req\nqwen-2.5-7b-instruct,s,2,5," +
        rank + ",\n");
    EXPECT_EQ(table.runs.at(0).ranks, ranks);
  }
}

TEST(MeasuredTable, RowsOfServersWithoutAdapters) {
  const MeasuredTable table = read_table(
      "model,gpu,engine,engine_version,precision,weights,prompt_tokens,output_tokens,concurrency,"
      "batch_size,tp,ttft_ms,tpot_ms,measured\n"
      "Qwen/Qwen3-32B,h100_sxm,vllm,0.12.0,fp8,fp8,1024,128,64,64,2,4358.3,48.4,\n"
      "Qwen/Qwen3-32B,h100_sxm,sglang,0.5.1,,,1024,128,,32,4,2485.3,29.6,\n"
      "Qwen/Qwen3-32B,h100_sxm,trtllm,1.0.0rc3,,,1024,128,16,16,8,1678.7,20.0,\n"
      "Qwen/Qwen3-32B,h100_sxm,vllm,0.12.0,,,1024,128,,,8,1678.7,20.0,\n");
  EXPECT_EQ(table.format, "base-servers");
  ASSERT_EQ(table.runs.size(), 2u);
  const MeasuredRun& run = table.runs[0];
  EXPECT_EQ(run.model, "Qwen3-32B");
  EXPECT_EQ(run.engine, "vllm-0.12");
  EXPECT_EQ(run.gpu, "h100_sxm");
  EXPECT_EQ(run.dtype, "fp8");
  EXPECT_EQ(run.tp, 2);
  EXPECT_EQ(run.lengths, LengthKind::constant);
  EXPECT_DOUBLE_EQ(run.mean_prompt_tokens, 1024);
  EXPECT_DOUBLE_EQ(run.mean_output_tokens, 128);
  EXPECT_EQ(run.client.concurrency, 64);
  EXPECT_EQ(run.client.num_requests, 640);
  EXPECT_EQ(run.max_num_seqs, 64);
  EXPECT_EQ(run.max_num_batched_tokens, 64 + 1024 + 1500);
  EXPECT_EQ(run.max_model_len, 1024 + 128 + 1500);
  EXPECT_FALSE(run.prefix_cache);
  EXPECT_EQ(run.group, "Qwen3-32B vllm-0.12 h100_sxm fp8");
  EXPECT_DOUBLE_EQ(run.measured.mean_ttft_ms, 4358.3);
  EXPECT_DOUBLE_EQ(run.measured.mean_tpot_ms, 48.4);
  EXPECT_EQ(table.runs[1].client.concurrency, 32);  // the batch that arrives at once
  EXPECT_EQ(table.runs[1].dtype, "auto");
  EXPECT_EQ(table.runs[1].max_num_batched_tokens, 1024 + 1500);
  ASSERT_EQ(table.skipped.size(), 2u);
  EXPECT_EQ(table.skipped[0].reason, "no preset of engine 'trtllm'");
  EXPECT_EQ(table.skipped[1].reason, "its concurrency is not known");
}

TEST(MeasuredTable, AVersionHasThePresetOfItsTime) {
  const auto engine_of = [](const std::string& version) {
    return read_table(
               "model,gpu,engine,engine_version,prompt_tokens,output_tokens,concurrency,tp\n"
               "Qwen3-32B,h100_sxm,vllm," +
               version + ",1024,128,64,2\n")
        .runs.at(0)
        .engine;
  };
  EXPECT_EQ(engine_of("0.8.5"), "vllm-0.8");
  EXPECT_EQ(engine_of("0.9.0"), "vllm-0.12");
  EXPECT_EQ(engine_of("0.13.0rc1"), "vllm-0.12");
  EXPECT_EQ(engine_of("0.14"), "vllm");
  EXPECT_EQ(engine_of("1.0.2"), "vllm");
  EXPECT_EQ(engine_of("main"), "vllm");
}

TEST(MeasuredTable, StartsAlone) {
  const MeasuredTable table = read_table(
      "model,vllm,max_loras,max_lora_rank,weights_plus_lora_gib,kv_cache_tokens,status\n"
      "llama-3.1-8b-instruct,0.8.5-dev (v1),64,16,17.0,256640,ok\n"
      "llama-3.1-8b-instruct,0.8.5-dev (v1),256,16,,,no_kv_cache(OOM)\n"
      "llama-2-7b,0.5.0 (v0),1,8,12.6,50000,ok\n");
  ASSERT_EQ(table.runs.size(), 2u);
  EXPECT_EQ(table.runs[0].max_loras, 64);
  EXPECT_EQ(table.runs[0].max_lora_rank, 16);
  EXPECT_EQ(table.runs[0].measured.kv_tokens, 256'640);
  EXPECT_EQ(table.runs[0].measured.weights_gib, 17.0);
  EXPECT_EQ(table.runs[1].measured.kv_tokens, 0);
  EXPECT_EQ(table.skipped.at(0).reason, "no preset of vLLM 0.5.0 (v0)");
}

}  // namespace
}  // namespace loratory::sim
