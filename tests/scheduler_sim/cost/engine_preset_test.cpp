#include "scheduler_sim/cost/engine_preset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/cost/cuda_allocator.hpp"
#include "scheduler_sim/cost/nearest_fit.hpp"
#include "scheduler_sim/cost/vllm_memory.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

EnginePreset on(std::string_view engine, std::string_view gpu, int tp = 1) {
  return engine_preset(engine, parse_gpu_spec(gpu), tp);
}

TEST(EnginePreset, IdealIsWhatTheFlagsDefaultTo) {
  const EnginePreset ideal = on("ideal", "H100-80");
  EXPECT_EQ(ideal.law, MemoryLaw::plain);
  EXPECT_EQ(ideal.gpu_memory_utilization, 0.9);
  EXPECT_EQ(ideal.max_num_seqs, 256);
  EXPECT_EQ(ideal.max_num_batched_tokens, 2048);
  EXPECT_FALSE(ideal.blocking_loads || ideal.padded_ranks || ideal.max_grid || ideal.one_graph);
  EXPECT_EQ(allowed_lora_rank(ideal, 13), 13);
}

TEST(EnginePreset, DefaultsDependOnTheCard) {
  struct Case {
    const char *engine, *gpu;
    int64_t tokens, seqs;
    double utilization;
  };
  const Case cases[] = {
      // engine, GPU, max_num_batched_tokens, max_num_seqs, gpu_memory_utilization
      {"vllm-0.8", "H100-80", 8192, 1024, 0.9},
      {"vllm-0.8", "L4", 2048, 256, 0.9},
      {"vllm-0.8", "A100-80", 8192, 1024, 0.9},
      {"vllm-0.12", "H100-80", 8192, 1024, 0.9},
      {"vllm-0.12", "A100-80", 2048, 256, 0.9},
      {"vllm-0.12", "B200", 8192, 1024, 0.9},
      {"vllm", "A100-80", 2048, 256, 0.92},
      {"vllm", "H200", 8192, 1024, 0.92},
      {"vllm", "B200", 16384, 1024, 0.92},
      // (79.1 GiB - max(512 + 1.5 x 8192 + 128 + 512, 10 GiB) MiB) / 79.1 GiB
      {"sglang", "H100-80", 8192, 2048, 0.834},
      // (21.9 GiB - (512 + 1.5 x 4096 + 128 + 96) MiB) / 21.9 GiB
      {"sglang", "L4", 4096, 2048, 0.693},
  };
  for (const Case& c : cases) {
    const EnginePreset e = on(c.engine, c.gpu);
    EXPECT_EQ(e.max_num_batched_tokens, c.tokens) << c.engine << ' ' << c.gpu;
    EXPECT_EQ(e.max_num_seqs, c.seqs) << c.engine << ' ' << c.gpu;
    EXPECT_DOUBLE_EQ(e.gpu_memory_utilization, c.utilization) << c.engine << ' ' << c.gpu;
  }
  EXPECT_THROW(on("vLLM", "L4"), InputError);
}

TEST(EnginePreset, RanksAreRoundedUpToAllowedOnes) {
  const EnginePreset old = on("vllm-0.8", "L4"), now = on("vllm", "L4");
  EXPECT_EQ(allowed_lora_rank(old, 1), 8);
  EXPECT_EQ(allowed_lora_rank(now, 1), 1);
  EXPECT_EQ(allowed_lora_rank(now, 2), 8);
  EXPECT_EQ(allowed_lora_rank(old, 16), 16);
  EXPECT_EQ(allowed_lora_rank(old, 17), 32);
  EXPECT_EQ(allowed_lora_rank(old, 257), 320);
  EXPECT_EQ(allowed_lora_rank(on("sglang", "L4"), 17), 17);
  EXPECT_THROW(allowed_lora_rank(old, 513), InputError);
}

TEST(CudaAllocator, TakesWholeSegments) {
  const auto reserved = [](const std::vector<int64_t>& tensors) {
    CudaAllocator memory;
    for (const int64_t bytes : tensors) memory.allocate(bytes);
    return memory.reserved_bytes() / kMiB;
  };
  EXPECT_EQ(reserved({1}), 2);
  EXPECT_EQ(reserved({kMiB, kMiB}), 2);
  EXPECT_EQ(reserved({kMiB, kMiB, 1}), 4);
  EXPECT_EQ(reserved({kMiB + 1}), 20);
  EXPECT_EQ(reserved({8 * kMiB, 8 * kMiB}), 20);
  EXPECT_EQ(reserved({8 * kMiB, 8 * kMiB, 8 * kMiB}), 40);  // 4 MiB stay unused
  EXPECT_EQ(reserved({8 * kMiB, 8 * kMiB, 3 * kMiB}), 20);  // of which a smaller one has use
  EXPECT_EQ(reserved({11 * kMiB}), 12);
  // The 1 MiB beside 19 MiB is no part of its own: a large part has more.
  EXPECT_EQ(reserved({9 * kMiB, 10 * kMiB - 1, kMiB + 512}), 40);
  EXPECT_EQ(reserved({int64_t{1} << 62, int64_t{1} << 62}), (int64_t{1} << 60) / kMiB);
}

// Embeddings, lm_head and extra vocabulary are in the slots of Llama, not in those of Qwen. Half a
// MiB of a slot is what 128 slots of rank 16 leave unused of their segments.
TEST(VllmMemory, SlotsHaveRoomForWhatVllmAdapts) {
  const auto slot_mib = [](const char* name, MemoryLaw law) {
    const ModelSpec model = load_model_spec(name);
    MemoryOptions options;
    options.law = law;
    options.targets = LoraTargets("q");
    const int64_t none = vllm_static_bytes(model, options, 0);
    return double(vllm_static_bytes(model, options, 128) - none) / 128 / double(kMiB);
  };
  EXPECT_NEAR(slot_mib("Llama-3.1-8B", MemoryLaw::vllm), 80 + 2 * (128256 + 4096) * 32 / 1048576.0,
              0.5);
  EXPECT_NEAR(slot_mib("Llama-3.1-8B", MemoryLaw::vllm_08), 94, 0.5);  // measured
  EXPECT_NEAR(slot_mib("Qwen2.5-7B", MemoryLaw::vllm_08), 77, 0.5);    // measured
}

TEST(VllmMemory, HostCopiesAndWindows) {
  ModelSpec model = load_model_spec("Llama-3.1-8B");
  model.windows = {{1000, 16}};
  MemoryOptions options;
  options.tp = 2;
  const MemorySplit plain = plan_memory(model, parse_gpu_spec("H200"), options, 8, 32).split;
  options.host_copy_per_gpu = true;
  options.kv_pricing = {.context_tokens = 4000};
  const MemorySplit held = plan_memory(model, parse_gpu_spec("H200"), options, 8, 32).split;
  EXPECT_EQ(held.host_bytes, 2 * plain.host_bytes);
  EXPECT_EQ(held.block_bytes * 8, plain.block_bytes * 5);  // (16 + 16 / 4) of 32 layers
}

TEST(NearestFits, NamesEveryChangeThatHelps) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  MemoryOptions options;
  options.max_lora_rank = 64;
  const std::vector<int64_t> ranks{8, 16, 32, 64};
  const auto fits = nearest_fits(model, parse_gpu_spec("A10G"), options, 16, 16, 8, ranks);
  using Kind = MemoryRemedy::Kind;
  std::vector<Kind> kinds;
  for (const MemoryRemedy& remedy : fits) {
    kinds.push_back(remedy.kind);
    EXPECT_GT(remedy.kv_tokens, 0);
  }
  EXPECT_THAT(kinds, ::testing::ElementsAre(Kind::smaller_rank, Kind::fewer_slots,
                                            Kind::fp8_weights, Kind::more_gpus, Kind::other_gpu));
  EXPECT_EQ(fits[0].value, 32);
  EXPECT_EQ(fits[1].value, 8);
  EXPECT_EQ(fits[3].value, 2);
  EXPECT_EQ(fits[4].gpu, "A100-40");
  EXPECT_THAT(describe_remedy(fits[3]), HasSubstr("--tp 2 has room for "));
  // What it names, fits.
  options.max_lora_rank = fits[0].value;
  const MemoryPlan plan = plan_memory(model, parse_gpu_spec("A10G"), options, 16, 16);
  EXPECT_EQ(plan.split.kv_blocks * 16, fits[0].kv_tokens);
  EXPECT_TRUE(nearest_fits(model, parse_gpu_spec("A10G"), options, 16, 16, 8, ranks).empty());
}

TEST(NearestFits, NothingHelpsWhatNothingHolds) {
  ModelSpec model = load_model_spec("Llama-3-70B");
  model.num_layers = 4000;
  EXPECT_TRUE(nearest_fits(model, parse_gpu_spec("L4"), {}, 4, 4, 8).empty());
}

}  // namespace
}  // namespace loratory::sim
