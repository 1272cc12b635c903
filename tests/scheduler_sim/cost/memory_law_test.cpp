#include "scheduler_sim/cost/memory_law.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

TEST(LoraShapes, ParametersPerRankByHand) {
  const ModelSpec llama = load_model_spec("Llama-3.1-8B");
  // q 4096+4096, k and v 4096+1024, o 4096+4096, gate and up 4096+14336, down 14336+4096.
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets()), 32 * 81920);
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("q,v")), 32 * (8192 + 5120));
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("q_proj,q,v_proj")), 32 * (8192 + 5120));
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("embed_tokens,lm_head")),
            2 * (4096 + 128256));
  EXPECT_EQ(adapter_bytes(llama, LoraTargets(), 16), 80 * kMiB);
}

TEST(LoraShapes, QwenHeadsNeedNotFillTheHiddenSize) {
  const ModelSpec qwen = load_model_spec("Qwen3-4B");  // hidden 2560, q output 32 x 128 = 4096
  EXPECT_EQ(lora_parameters_per_rank(qwen, LoraTargets("q")), 36 * (2560 + 4096));
  EXPECT_EQ(lora_parameters_per_rank(qwen, LoraTargets("o")), 36 * (4096 + 2560));
}

TEST(LoraShapes, TensorParallelCutsOneMatrixOfEachPair) {
  const ModelSpec llama = load_model_spec("Llama-3.1-8B");
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("q"), 4), 32 * (4096 + 1024));
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("o"), 4), 32 * (1024 + 4096));
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("down"), 4), 32 * (3584 + 4096));
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("k"), 16), 32 * (4096 + 128));
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("embed"), 4), 128256 + 4096);
  EXPECT_EQ(lora_parameters_per_rank(llama, LoraTargets("lm_head"), 4), 4096 + 32064);
}

TEST(LoraTargets, UnknownOrEmptyNamesAreErrors) {
  for (const char* bad : {"", "q,", "qkv", "all-linear,x", " q"}) {
    EXPECT_THROW(LoraTargets{bad}, InputError) << bad;
  }
  EXPECT_EQ(LoraTargets("lm_head,q").to_string(), "q_proj,lm_head");
}

TEST(MemoryLaw, PartsAddUpToWhatTheEngineMayUse) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  const GpuSpec gpu = parse_gpu_spec("mem=80GiB,bw=3TB/s,flops=900T");
  MemoryOptions options;
  options.reserve_bytes = 1024 * kMiB;
  const MemoryPlan plan = plan_memory(model, gpu, options, 8, 32);
  ASSERT_TRUE(plan.fits()) << plan.problem;
  EXPECT_EQ(plan.split.hbm_bytes, 72 * 1024 * kMiB);
  EXPECT_EQ(plan.split.slot_bytes, 8 * 80 * kMiB);
  EXPECT_EQ(plan.split.host_bytes, 32 * 80 * kMiB);
  EXPECT_EQ(plan.split.block_bytes, 16 * 131072);
  EXPECT_EQ(plan.split.kv_bytes, plan.split.kv_blocks * plan.split.block_bytes);
  const int64_t used = plan.split.weights_bytes + plan.split.slot_bytes + plan.split.kv_bytes +
                       plan.split.reserve_bytes;
  EXPECT_LE(used, plan.split.hbm_bytes);
  EXPECT_LT(plan.split.hbm_bytes - used, plan.split.block_bytes);
}

TEST(MemoryLaw, Fp8AdaptersTakeAByteANumberOnEveryTier) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  MemoryOptions options;
  options.slot_overhead_bytes = 6 * kMiB;
  options.lora_dtype = LoraDtype::fp8;
  EXPECT_EQ(adapter_bytes(model, LoraTargets(), 16, LoraDtype::fp8), 40 * kMiB);
  EXPECT_EQ(slot_bytes(model, options), (40 + 6) * kMiB);
  const MemorySplit split = plan_memory(model, parse_gpu_spec("H200"), options, 8, 32).split;
  EXPECT_EQ(split.host_bytes, 32 * 40 * kMiB);
  EXPECT_EQ(split.weights_bytes, model.weight_bytes());
  EXPECT_EQ(split.block_bytes, 16 * 131072);
}

TEST(MemoryLaw, ReserveCountsTheExpertsOfATokenAndTheGpus) {
  ModelSpec model = load_model_spec("Mistral-7B");
  MemoryOptions options;
  options.tp = 2;
  const int64_t fixed = 768 * kMiB + 256 * 14 * 32768;
  EXPECT_EQ(default_reserve_bytes(model, options), fixed + 2048 * (3 * 14336 / 2) * 2);
  model.num_experts = 8;
  model.experts_per_token = 2;
  model.shared_intermediate = 1000;
  EXPECT_EQ(default_reserve_bytes(model, options), fixed + 2048 * (3 * (28672 + 1000) / 2) * 2);
}

TEST(MemoryLaw, WhatDoesNotFitIsASentence) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  const MemoryPlan plan = plan_memory(model, parse_gpu_spec("A10G"), {}, 64, 64);
  EXPECT_FALSE(plan.fits());
  EXPECT_EQ(plan.split.kv_blocks, 0);
  EXPECT_EQ(plan.split.kv_bytes, 0);
  EXPECT_THAT(plan.problem, HasSubstr("weights 14.96 GiB + 64 slots 5.00 GiB"));
  EXPECT_THAT(plan.problem, HasSubstr("more than the 19.80 GiB"));
}

TEST(MemoryLaw, LongestRequestMustFit) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  const GpuSpec gpu = parse_gpu_spec("A10G");
  MemoryOptions options;
  const int64_t blocks = plan_memory(model, gpu, options, 1, 1).split.kv_blocks;
  options.max_model_len = blocks * 16;
  EXPECT_TRUE(plan_memory(model, gpu, options, 1, 1).fits());
  options.max_model_len += 1;
  EXPECT_FALSE(plan_memory(model, gpu, options, 1, 1).fits());
}

TEST(MemoryLaw, HostMemoryIsALimitWhenGiven) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  MemoryOptions options;
  options.host_memory_bytes = 31 * 80 * kMiB;
  EXPECT_TRUE(plan_memory(model, parse_gpu_spec("H200"), options, 8, 31).fits());
  const MemoryPlan plan = plan_memory(model, parse_gpu_spec("H200"), options, 8, 32);
  EXPECT_EQ(plan.split.kv_blocks, 0);
  EXPECT_THAT(plan.problem, HasSubstr("32 adapters need 2.50 GiB of host memory, 0.08 GiB more"));
}

TEST(MemoryLaw, SlotsTakeKvBlocksAway) {
  const ModelSpec model = load_model_spec("Llama-3.1-8B");
  const GpuSpec gpu = parse_gpu_spec("H100-80");
  const int64_t few = plan_memory(model, gpu, {}, 8, 8).split.kv_blocks;
  const int64_t many = plan_memory(model, gpu, {}, 72, 72).split.kv_blocks;
  EXPECT_NEAR(double(few - many), 64.0 * 80 * kMiB / (16 * 131072), 1.0);
}

TEST(MemoryLaw, AbsurdNumbersDoNotOverflow) {
  const ModelSpec model = load_model_spec("Llama-3-70B");
  MemoryOptions options;
  options.max_lora_rank = int64_t{1} << 40;
  options.max_num_seqs = int64_t{1} << 60;
  const MemoryPlan plan =
      plan_memory(model, parse_gpu_spec("H200"), options, int64_t{1} << 40, int64_t{1} << 40);
  EXPECT_FALSE(plan.fits());
  EXPECT_GT(plan.split.slot_bytes, 0);
}

TEST(GpuSpec, PresetsListsAndOverrides) {
  for (const std::string& name : gpu_preset_names()) {
    EXPECT_EQ(parse_gpu_spec(name).name, name);
    EXPECT_FALSE(parse_gpu_spec(name).source.empty());
  }
  const GpuSpec custom = parse_gpu_spec("mem=80GiB,bw=3.35TB/s,flops=989T");
  EXPECT_EQ(custom.memory_bytes, int64_t{80} << 30);
  EXPECT_DOUBLE_EQ(custom.bandwidth_bytes_per_s, 3.35e12);
  EXPECT_DOUBLE_EQ(custom.flops, 989e12);
  EXPECT_DOUBLE_EQ(custom.link_bytes_per_s, custom.host_bytes_per_s);
  const GpuSpec smaller = parse_gpu_spec("H100-80,mem=64GiB");
  EXPECT_EQ(smaller.memory_bytes, int64_t{64} << 30);
  EXPECT_DOUBLE_EQ(smaller.flops, parse_gpu_spec("H100-80").flops);
  for (const char* bad :
       {"", "H300", "mem=80GiB", "mem=80GiB,bw=3TB/s,flops=0", "H200,H200", "H200,mem=80GB/s",
        "H200,mem=-1GiB", "H200,bw=nan", "H200,x=1", "H200,bw=3TB/s,bw=4TB/s",
        "mem=80,bw=1,flops=1e99999", "H200,mem=1e300", "H200,host=1.1MB/s"}) {
    EXPECT_THROW(parse_gpu_spec(bad), InputError) << bad;
  }
}

// FP32 rates (not of tensor cores) in TFLOP/s, as the source of each preset has them, to half of
// their last digit: multiprocessors x FLOP a cycle x boost clock.
TEST(GpuSpec, MultiprocessorsAndClocksMakeTheFp32RateOfTheDatasheet) {
  struct Rate {
    const char* gpu;
    double tflops, rounding, flop_per_cycle;
  };
  const Rate rates[] = {
      {"A100-40", 19.5, 0.05, 128},
      {"A100-80", 19.5, 0.05, 128},
      {"A100-80-PCIe", 19.5, 0.05, 128},
      {"H100-80", 67, 0.5, 256},
      {"H100-PCIe", 51, 0.5, 256},
      {"H100-NVL", 60, 0.5, 256},
      {"H200", 67, 0.5, 256},
      {"B200", 75, 0.5, 256},  // HGX B200: 600 of eight
      {"L4", 30.3, 0.05, 256},
      {"L40S", 91.6, 0.05, 256},
      {"A10G", 35, 0.5, 256},
      {"RTX-4090", 82.6, 0.05, 256},
      {"RTX-PRO-6000", 126, 0.5, 256},
      {"RTX-PRO-6000-WS", 126, 0.5, 256},
      {"MI300X", 163.4, 0.05, 256},
  };
  EXPECT_EQ(std::size(rates), gpu_preset_names().size());
  for (const Rate& rate : rates) {
    EXPECT_NEAR(parse_gpu_spec(rate.gpu).sm_ghz * rate.flop_per_cycle / 1000, rate.tflops,
                rate.rounding)
        << rate.gpu;
  }
}

TEST(GpuSpec, NamesOfDriversAndClouds) {
  const std::pair<const char*, const char*> names[] = {
      // as others write it, preset
      {"NVIDIA H100 80GB HBM3", "H100-80"},
      {"h100-80", "H100-80"},
      {"nvidia-h100-80gb", "H100-80"},
      {"p5.48xlarge", "H100-80"},
      {"Standard_ND96isr_H100_v5", "H100-80"},
      {"NVIDIA H100 PCIe", "H100-PCIe"},
      {"NVIDIA H100 NVL", "H100-NVL"},
      {"NVIDIA H200", "H200"},
      {"p5en.48xlarge", "H200"},
      {"NVIDIA B200", "B200"},
      {"NVIDIA A100-SXM4-40GB", "A100-40"},
      {"NVIDIA A100-SXM4-80GB", "A100-80"},
      {"NVIDIA A100 80GB PCIe", "A100-80-PCIe"},
      {"NVIDIA L4", "L4"},
      {"g6.xlarge", "L4"},
      {"g6e.xlarge", "L40S"},
      {"NVIDIA A10G", "A10G"},
      {"NVIDIA GeForce RTX 4090", "RTX-4090"},
      {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"},
      {"AMD Instinct MI300X", "MI300X"},
  };
  for (const auto& [name, preset] : names) EXPECT_EQ(parse_gpu_spec(name).name, preset) << name;
  EXPECT_EQ(parse_gpu_spec("nvidia l4,mem=20GiB").memory_bytes, int64_t{20} << 30);
  EXPECT_EQ(parse_gpu_spec("A10G").fp8_flops, 0);
  EXPECT_DOUBLE_EQ(parse_gpu_spec("L4,fp8=1T").fp8_flops, 1e12);
  for (const char* several : {"A100", "nvidia h100"}) {
    try {
      parse_gpu_spec(several);
      FAIL() << several;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("may be one of several GPUs; say "));
    }
  }
}

}  // namespace
}  // namespace loratory::sim
