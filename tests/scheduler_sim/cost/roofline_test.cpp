#include "scheduler_sim/cost/roofline.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/rounding.hpp"
#include "tests/scheduler_sim/cost/cost_testing.hpp"

namespace loratory::sim {
namespace {

// A GPU on which numbers come out round: 1 byte/ns at fraction .9, flops fraction .8.
GpuSpec gpu() { return parse_gpu_spec("mem=80GiB,bw=1TB/s,flops=100T,host=50GB/s"); }

BatchShape prefill(int64_t tokens) {
  BatchShape shape;
  shape.num_seqs = shape.num_sampled = 1;
  shape.num_tokens = shape.num_prefill_tokens = shape.prefill_context_tokens = tokens;
  shape.prefill_pairs = tokens * (tokens + 1) / 2;
  return shape;
}

BatchShape with_adapters(BatchShape shape, int64_t num, int64_t rank) {
  shape.num_lora_tokens = shape.num_tokens;
  shape.lora_rank_tokens = shape.num_tokens * rank;
  shape.num_adapters = num;
  shape.sum_rank = num * rank;
  shape.max_rank = rank;
  return shape;
}

RooflineModel model(const RooflineOptions& options = {}) {
  return {load_model_spec("Llama-3.1-8B"), gpu(), options};
}

constexpr double kLayerWeights = 32 * 218103808.0;  // matrices of the layers
constexpr double kBytesPerNs = 900.0;               // 1 TB/s x .9
constexpr double kFlopsPerNs = 80000.0;             // 100 TFLOP/s x .8

TEST(Roofline, SmallBatchReadsTheWeights) {
  const StepParts parts = model().parts(decode(1, 1000));
  const double activation = 32 * (4 * 4096.0 + 3 * 14336.0) * 2 / kBytesPerNs;
  EXPECT_NEAR(parts.dense, kLayerWeights * 2 / kBytesPerNs + activation, 1);
  EXPECT_NEAR(parts.attention, 1000 * 131072 / kBytesPerNs, 1);
  EXPECT_NEAR(parts.logits, (128256 * 4096.0 * 2 + 128256 * 8.0) / kBytesPerNs, 1);
  EXPECT_EQ(parts.lora, 0);
  EXPECT_EQ(parts.allreduce, 0);
}

TEST(Roofline, LargeBatchComputes) {
  const StepParts parts = model().parts(prefill(2048));
  const double activation = 2048 * 32 * (4 * 4096.0 + 3 * 14336.0) * 2 / kBytesPerNs;
  EXPECT_NEAR(parts.dense, 2 * kLayerWeights * 2048 / kFlopsPerNs + activation, 1);
  const double pairs = 2048.0 * 2049 / 2;
  EXPECT_NEAR(parts.attention, 4 * 32 * 4096 * pairs / 50000.0, 1);
}

TEST(Roofline, AdaptersCostTheirTrueRank) {
  RooflineOptions no_launch;
  no_launch.lora_pair_overhead_ns = 0;
  const StepParts parts = model(no_launch).parts(with_adapters(decode(4, 100), 4, 8));
  const double weights = 4 * 8 * 32 * 81920.0 * 2 / kBytesPerNs;
  // Inputs of q|k|v, o, gate|up, down once; outputs read and written.
  const double inputs = 4096 + 4096 + 4096 + 14336;
  const double outputs = 6144 + 4096 + 28672 + 4096;
  EXPECT_NEAR(parts.lora, weights + 4 * 32 * (inputs + 2 * outputs) * 2 / kBytesPerNs, 1);
}

TEST(Roofline, LaunchOverheadIsPaidOnceAnAdapterIsThere) {
  const BatchShape base = decode(4, 100);
  EXPECT_EQ(model().parts(base).lora, 0);
  RooflineOptions none;
  none.lora_pair_overhead_ns = 0;
  const BatchShape one = with_adapters(base, 1, 8);
  EXPECT_NEAR(model().parts(one).lora - model(none).parts(one).lora, 32 * 4 * 9000.0, 1e-3);
}

TEST(Roofline, PaddedRankCostsLikeTheLargest) {
  RooflineOptions padded;
  padded.lora_padded_rank = 64;
  const BatchShape small = with_adapters(decode(8, 100), 8, 8);
  const BatchShape large = with_adapters(decode(8, 100), 8, 64);
  EXPECT_GT(model(padded).step_ns(small), model().step_ns(small));
  EXPECT_EQ(model(padded).step_ns(small), model().step_ns(large));
}

TEST(Roofline, GridCostGrowsWithSlotsAndNotWithoutAdapters) {
  RooflineOptions grid;
  grid.lora_grid_max_loras = 128;
  const BatchShape base = decode(8, 100);
  EXPECT_EQ(model(grid).step_ns(base), model().step_ns(base));
  const BatchShape lora = with_adapters(base, 8, 16);
  // One row tile: 7 slices x 64 splits of shrink; of expand the tiles of the widest slice for
  // every slice; 128 slots and one for no adapter; 32 layers.
  const double blocks = 32.0 * (7 * 64 + (3 * 4096 + 4096 + 2 * 14336 + 4096) / 128.0);
  EXPECT_NEAR(model(grid).parts(lora).lora - model().parts(lora).lora, 129 * blocks * 5, 1e-3);
}

TEST(Roofline, Fp8AdaptersAreReadInHalfTheBytes) {
  RooflineOptions fp8;
  fp8.lora_dtype = LoraDtype::fp8;
  const BatchShape step = with_adapters(decode(4, 100), 4, 8);
  const double weights = 4 * 8 * 32 * 81920.0 * 2 / kBytesPerNs;
  EXPECT_NEAR(model().parts(step).lora - model(fp8).parts(step).lora, weights / 2, 1e-3);
  EXPECT_EQ(model().parts(step).dense, model(fp8).parts(step).dense);
}

TEST(Roofline, OneGraphLaunchesLoraKernelsInEveryStep) {
  RooflineOptions one;
  one.lora_graphs = LoraGraphs::with_lora_only;
  const BatchShape base = decode(4, 100);
  EXPECT_NEAR(model(one).parts(base).lora, 32 * 4 * 9000.0, 1e-3);
  const BatchShape lora = with_adapters(base, 1, 8);
  EXPECT_EQ(model(one).parts(lora).lora, model().parts(lora).lora);
  one.lora_grid_max_loras = 128;
  const double blocks = 32.0 * (7 * 64 + (3 * 4096 + 4096 + 2 * 14336 + 4096) / 128.0);
  EXPECT_NEAR(model(one).parts(base).lora, 32 * 4 * 9000.0 + 129 * blocks * 5, 1e-3);
}

TEST(Roofline, TheSharedExpertIsReadInEveryStep) {
  ModelSpec routed = load_model_spec("Mistral-7B");
  routed.num_experts = 8;
  routed.experts_per_token = 2;
  ModelSpec shared = routed;
  shared.shared_intermediate = 5632;
  shared.shared_gate = true;
  const double weights = 32 * (3.0 * 4096 * 5632 + 4096) * 2 / kBytesPerNs;
  const double activation = 32 * 3.0 * 5632 * 2 / kBytesPerNs;
  const RooflineModel without(routed, gpu(), {}), with(shared, gpu(), {});
  EXPECT_NEAR(with.parts(decode(1, 0)).dense - without.parts(decode(1, 0)).dense,
              weights + activation, 1);
  EXPECT_EQ(shared.num_parameters() - routed.num_parameters(),
            int64_t{32} * (3 * 4096 * 5632 + 4096));
  EXPECT_EQ(lora_parameters_per_rank(shared, LoraTargets("gate")) -
                lora_parameters_per_rank(routed, LoraTargets("gate")),
            32 * (4096 + 5632));
}

TEST(Roofline, TensorParallelSharesWorkAndPaysTheAllReduce) {
  RooflineOptions two;
  two.tp = 2;
  const BatchShape shape = decode(16, 2000);
  EXPECT_LT(model(two).step_ns(shape), model().step_ns(shape));
  EXPECT_GT(model(two).parts(shape).allreduce, 2 * 32 * 10e3);
  EXPECT_NEAR(model(two).parts(shape).attention, model().parts(shape).attention / 2, 1e-3);
  RooflineOptions three;
  three.tp = 3;
  EXPECT_THROW(model(three), InputError);
}

TEST(Roofline, FewTokensReadFewExperts) {
  ModelSpec mixtral = load_model_spec("Mistral-7B");
  mixtral.num_experts = 8;
  mixtral.experts_per_token = 2;
  const RooflineModel moe(mixtral, gpu(), {});
  const double expert = 32 * 3.0 * 4096 * 14336 * 2 / kBytesPerNs;
  EXPECT_NEAR(moe.parts(decode(4, 0)).dense - moe.parts(decode(1, 0)).dense, 6 * expert,
              0.01 * expert);
  EXPECT_NEAR(moe.parts(decode(8, 0)).dense, moe.parts(decode(4, 0)).dense, 0.01 * expert);
}

TEST(Roofline, AStepLastsAtLeastOneNanosecond) {
  EXPECT_GE(model().step_ns(BatchShape{}), 1);
  EXPECT_EQ(round_step_ns(-5.0), 1);
  EXPECT_EQ(round_step_ns(std::numeric_limits<double>::quiet_NaN()), 1);
  EXPECT_EQ(round_step_ns(2.5), 3);
  EXPECT_EQ(round_step_ns(std::numeric_limits<double>::infinity()), 1'000'000'000'000'000);
}

TEST(Roofline, LayersWithAWindowReadNoMoreThanIt) {
  ModelSpec windowed = load_model_spec("Llama-3.1-8B");
  windowed.windows = {{1000, 24}};
  const RooflineModel full = model(), some(windowed, gpu(), {});
  EXPECT_EQ(some.parts(decode(4, 900)).attention, full.parts(decode(4, 900)).attention);
  EXPECT_NEAR(some.parts(decode(4, 3000)).attention,
              full.parts(decode(4, 3000)).attention * (8 * 3000 + 24 * 1000) / (32 * 3000.0), 1);
  // The newest query of each of 4,000 tokens sees 1,000 keys.
  const double pair_ns = 4 * 4096 / (gpu().flops * 0.5) * 1e9;
  EXPECT_NEAR(some.parts(prefill(4000)).attention,
              (8 * 4000 * 4001 / 2.0 + 24 * 4000 * 1000.0) * pair_ns, 1);
}

TEST(Roofline, Fp8WeightsHalveTheirBytesAndDoubleTheRate) {
  ModelSpec fp8 = load_model_spec("Llama-3.1-8B");
  apply_dtypes(fp8, "fp8", "fp8");
  GpuSpec card = gpu();
  const RooflineModel emulated(fp8, card, {});
  card.fp8_flops = 2 * card.flops;
  const RooflineModel native(fp8, card, {});
  const double activation = 32 * (4 * 4096.0 + 3 * 14336.0) * 2 / kBytesPerNs;
  EXPECT_NEAR(native.parts(decode(1, 0)).dense, kLayerWeights / kBytesPerNs + activation, 1);
  EXPECT_EQ(native.parts(decode(9, 99)).attention, model().parts(decode(9, 99)).attention / 2);
  const double compute = 2 * kLayerWeights * 2048 / kFlopsPerNs;
  EXPECT_NEAR(emulated.parts(prefill(2048)).dense, compute + 2048 * activation, 100);
  EXPECT_NEAR(native.parts(prefill(2048)).dense, compute / 2 + 2048 * activation, 100);
}

// DeepSeek-V2-Lite: in decode 16 heads share the 576 numbers of a token; 256 heads would compute.
TEST(Roofline, LatentAttentionReadsTheCompressedKv) {
  ModelSpec lite = load_model_spec("Llama-3.1-8B");
  lite.latent = {.kv_rank = 512, .q_rank = 0, .nope_dim = 128, .rope_dim = 64, .v_dim = 128};
  lite.num_heads = lite.num_kv_heads = 16;
  lite.head_dim = 192;
  const RooflineModel few(lite, gpu(), {});
  EXPECT_NEAR(few.parts(decode(1, 1000)).attention, 1000 * 32 * 576 * 2 / kBytesPerNs, 1);
  lite.num_heads = lite.num_kv_heads = 256;
  const RooflineModel many(lite, gpu(), {});
  const double flops = 2.0 * 256 * (512 + 64 + 512);
  EXPECT_NEAR(many.parts(decode(1, 1000)).attention, 1000 * 32 * flops / (gpu().flops * 0.5) * 1e9,
              1);
  EXPECT_NEAR(many.parts(prefill(1000)).attention,
              32 * 500500 * 2.0 * 256 * (192 + 128) / (gpu().flops * 0.5) * 1e9, 1);
}

}  // namespace
}  // namespace loratory::sim
