// What an engine plans on the host: weights, memory, graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "error_of.hpp"
#include "fuzz/support/random_model.hpp"
#include "gpu/engine/decode_graphs.hpp"
#include "gpu/engine/engine_memory.hpp"
#include "reference/base/units.hpp"
#include "reference/model/model_presets.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::ModelConfig;
using testing::HasSubstr;

ModelConfig preset(std::string_view name) {
  for (const reference::ModelPreset& p : reference::model_presets()) {
    if (p.name == name) return reference::parse_model_config(p.config, std::string(name));
  }
  ADD_FAILURE() << "no preset " << name;
  return {};
}

sim::SchedulerConfig served(uint32_t num_blocks = 0) {
  sim::SchedulerConfig config;
  config.num_blocks = num_blocks;
  config.max_model_len = 8192;
  config.residency.max_loras = 8;
  return config;
}

// --- weights --------------------------------------------------------------------------------

TEST(WeightLayout, HoldsEveryTensorOfTheModelOnce) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    ModelConfig config = reference::random_model_config(seed);
    config.shared_expert_intermediate = 0;
    const reference::Model model = random_model(config, seed);
    const WeightLayout layout = lay_out_weights(config, Dtype::bf16);
    std::set<std::string> names;
    int64_t end = 0;
    for (const WeightPart& part : layout.parts) {
      SCOPED_TRACE(checkpoint_name(part));
      EXPECT_TRUE(names.insert(checkpoint_name(part)).second);
      EXPECT_GE(part.offset, end);
      end = part.offset + part.size() * 2;
      const WeightNumbers from = numbers_of(model, part);
      if (part.is_vector()) {
        ASSERT_NE(from.vector, nullptr);
        EXPECT_EQ(from.vector->size(), part.num_rows);
      } else {
        ASSERT_NE(from.matrix, nullptr);
        EXPECT_EQ(from.matrix->rows(), part.num_rows);
        EXPECT_EQ(from.matrix->cols(), part.num_columns);
      }
    }
    EXPECT_LE(end, layout.bytes);
    EXPECT_EQ(layout.lm_head == layout.embed_tokens, config.tied_embeddings);
    EXPECT_EQ(names.count("lm_head.weight"), config.tied_embeddings ? 0 : 1);
  }
}

// q, k and v are one product, gate and up too.
TEST(WeightLayout, PacksWhatOneProductComputes) {
  ModelConfig config = reference::tiny_model_config();
  config.qkv_bias = true;
  const WeightLayout layout = lay_out_weights(config, Dtype::f32);
  std::map<WeightRole, WeightPart> first;
  for (const WeightPart& part : layout.parts) first.emplace(part.role, part);
  const auto follows = [&](WeightRole a, WeightRole b) {
    return first[b].offset == first[a].offset + first[a].size() * 4;
  };
  EXPECT_EQ(layout.layers[0].qkv, first[WeightRole::q].offset);
  EXPECT_TRUE(follows(WeightRole::q, WeightRole::k));
  EXPECT_TRUE(follows(WeightRole::k, WeightRole::v));
  EXPECT_TRUE(follows(WeightRole::q_bias, WeightRole::k_bias));
  EXPECT_TRUE(follows(WeightRole::gate, WeightRole::up));
  EXPECT_EQ(layout.layers[0].qkv % 256, 0);
}

// Experts of a layer lie as a fused tensor has them, so that it is copied as a whole.
TEST(WeightLayout, NamesExpertsAsCheckpointsDo) {
  const ModelConfig config = reference::with_experts(reference::tiny_model_config(), 3, 2, true);
  const WeightLayout layout = lay_out_weights(config, Dtype::bf16);
  const auto names = [&](const ExpertNames& of) {
    std::map<std::string, StoredPart> out;
    for (const StoredPart& part : stored_parts(layout, of)) out.emplace(part.name, part);
    return out;
  };
  const int64_t hidden = config.hidden, inner = config.expert_intermediate;
  const auto qwen = names({}), mixtral = names({.of_mixtral = true});
  const auto fused = names({.fused = true});
  EXPECT_EQ(qwen.count("model.layers.0.mlp.gate_proj.weight"), 1);  // dense
  EXPECT_EQ(qwen.count("model.layers.0.mlp.gate.weight"), 0);
  EXPECT_EQ(qwen.at("model.layers.1.mlp.gate.weight").shape, (std::vector<int64_t>{3, hidden}));
  const auto& up = qwen.at("model.layers.1.mlp.experts.2.up_proj.weight");
  EXPECT_EQ(up.shape, (std::vector<int64_t>{inner, hidden}));
  const auto& w3 = mixtral.at("model.layers.1.block_sparse_moe.experts.2.w3.weight");
  EXPECT_EQ(w3.offset, up.offset);
  EXPECT_EQ(mixtral.at("model.layers.1.block_sparse_moe.experts.0.w2.weight").shape,
            (std::vector<int64_t>{hidden, inner}));
  EXPECT_EQ(mixtral.count("model.layers.1.block_sparse_moe.gate.weight"), 1);
  const auto& gate_up = fused.at("model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate_up.shape, (std::vector<int64_t>{3, 2 * inner, hidden}));
  EXPECT_EQ(gate_up.offset, qwen.at("model.layers.1.mlp.experts.0.gate_proj.weight").offset);
  EXPECT_EQ(gate_up.offset, layout.layers[1].experts_gate_up);
  EXPECT_EQ(gate_up.offset + (2 * 2 + 1) * inner * hidden * 2, up.offset);
  EXPECT_EQ(fused.at("model.layers.1.mlp.experts.down_proj").shape,
            (std::vector<int64_t>{3, hidden, inner}));
  EXPECT_EQ(fused.count("model.layers.1.mlp.experts.0.down_proj.weight"), 0);
}

// --- memory ---------------------------------------------------------------------------------

EngineMemory plan(const ModelConfig& model, const sim::SchedulerConfig& config, int64_t free_bytes,
                  const EngineOptions& options = {}) {
  return plan_engine_memory(model, config, options, 0, free_bytes, 0.9);
}

// The engine's own count of weights and slots is the law's but for padding to 256 bytes.
TEST(EngineMemory, AgreesWithTheLaw) {
  struct Case {
    ModelConfig model;
    sim::LoraDtype lora;
  };
  constexpr auto kWide = sim::LoraDtype::of_model, kFp8 = sim::LoraDtype::fp8;
  for (const Case& c :
       {Case{preset("Llama-3.1-8B"), kWide}, Case{preset("Llama-3.1-8B"), kFp8},
        Case{preset("Qwen3-8B"), kWide}, Case{with_experts(preset("Qwen3-8B"), 8, 2), kWide}}) {
    SCOPED_TRACE(c.model.num_experts);
    const EngineMemory memory = plan(c.model, served(), 140 * kGiB, {.lora_dtype = c.lora});
    ASSERT_EQ(memory.problem, "");
    for (size_t i = 0; i < 3; ++i) {
      const MemoryLine& line = memory.lines[i];
      EXPECT_GE(line.planned_bytes, line.law_bytes) << line.what;
      EXPECT_LE(line.planned_bytes - line.law_bytes, kMiB) << line.what;
    }
    EXPECT_GT(memory.num_blocks, 10'000);
    int64_t sum = 0;
    for (const MemoryLine& line : memory.lines) sum += line.planned_bytes;
    EXPECT_LE(sum, memory.usable_bytes);
    EXPECT_GT(sum + 4 * kMiB, memory.usable_bytes) << "another block would fit";
  }
}

TEST(EngineMemory, SaysInOneLineWhatIsShort) {
  const EngineMemory memory = plan(preset("Llama-3.1-8B"), served(), 16 * kGiB);
  EXPECT_EQ(memory.num_blocks, 0);
  EXPECT_THAT(memory.problem, HasSubstr("does not fit: weights 14.96 GiB + 8 slots"));
  EXPECT_EQ(memory.problem.find('\n'), std::string::npos);
  const EngineMemory many = plan(preset("Llama-3.1-8B"), served(1'000'000), 80 * kGiB);
  EXPECT_THAT(many.problem, HasSubstr("1000000 KV blocks"));
}

TEST(EngineMemory, TakesTheBlocksThatItIsGiven) {
  EXPECT_EQ(plan(preset("Qwen3-8B"), served(500), 80 * kGiB).num_blocks, 500);
}

TEST(EngineMemory, NeedsNoSlotsWithoutLora) {
  const EngineMemory memory = plan(preset("Qwen3-8B"), served(), 80 * kGiB, {.lora = false});
  EXPECT_EQ(memory.lines[1].planned_bytes, 0);
  EXPECT_EQ(memory.lines[1].law_bytes, 0);
}

TEST(EngineMemory, BuffersOfAPassAreApart) {
  ModelConfig model = preset("Qwen3-8B");
  const PassLayout p = lay_out_pass(model, bounded_by_model(served(1000), model), {});
  const std::vector<int64_t> all{p.x,        p.normed,     p.qkv,     p.attended, p.delta,
                                 p.gate_up,  p.activation, p.sampled, p.logits,   p.ids,
                                 p.tokens,   p.logprobs,   p.lora_h,  p.step,     p.rope_cos,
                                 p.rope_sin, p.attention};
  EXPECT_TRUE(std::ranges::is_sorted(all));
  EXPECT_EQ(p.normed - p.x, 2048 * 4096 * 2);
  EXPECT_EQ(p.ids - p.logits, 256 * model.vocab * 4);
  EXPECT_EQ(p.attention - p.rope_sin, 8192 * 64 * 4);
}

// Sums of 256 rows of 131,072 positions: 512 pieces of 32 heads each.
TEST(EngineMemory, CountsTheWorkspaceOfAttention) {
  const ModelConfig model = preset("Llama-3.1-8B");
  const auto bytes = [&](uint32_t rows) {
    sim::SchedulerConfig config = served(10'000);
    config.max_model_len = 131'072;
    config.max_num_seqs = rows;
    const int64_t of_sums =
        plan_attention(model, bounded_by_model(config, model), Dtype::bf16).workspace_bytes();
    const EngineMemory memory = plan(model, config, 140 * kGiB);
    EXPECT_GE(memory.lines[3].planned_bytes, of_sums);
    return of_sums;
  };
  EXPECT_GT(bytes(256), 2 * kGiB);
  EXPECT_GT(bytes(1024), 8 * kGiB);
}

TEST(EngineMemory, RefusesWhatTheKernelsCannotTake) {
  sim::SchedulerConfig config = served();
  config.block_size = 24;
  EXPECT_EQ(error_of([&] { plan(preset("Qwen3-8B"), config, 80 * kGiB); }),
            "--block-size: 24 is not a power of two, as the kernels need; use 16");
  config = served();
  config.residency.max_loras = 40;
  const ModelConfig many = with_experts(preset("Qwen3-8B"), 128, 8);
  EXPECT_EQ(
      error_of([&] { plan(many, config, 140 * kGiB); }),
      "--max-loras: 40 slots of 128 experts are more than 4400 groups of rows; use 34 at most");
  EXPECT_EQ(error_of([&] { plan(many, config, 140 * kGiB, {.lora = false}); }), "");
}

// --- limits ---------------------------------------------------------------------------------

TEST(EngineOptions, RefusesWhatItCannotCompute) {
  ModelConfig model = reference::tiny_model_config();
  EXPECT_EQ(error_of([&] { require_gpu_model(model, Dtype::bf16); }), "");
  EXPECT_EQ(error_of([&] { require_gpu_model(model, Dtype::f32); }), "");
  model.head_dim = 15;
  EXPECT_THAT(error_of([&] { require_gpu_model(model, Dtype::bf16); }),
              HasSubstr("head_dim 15 has no kernel"));
  model.head_dim = 2048;
  EXPECT_THAT(error_of([&] { require_gpu_model(model, Dtype::f32); }),
              HasSubstr("head_dim 2048 has no kernel"));
  model.head_dim = 16;
  ModelConfig experts = with_experts(model, 4, 2);
  EXPECT_EQ(error_of([&] { require_gpu_model(experts, Dtype::bf16); }), "");
  experts.expert_intermediate = 50;
  EXPECT_EQ(error_of([&] { require_gpu_model(experts, Dtype::f32); }), "");
  EXPECT_THAT(error_of([&] { require_gpu_model(experts, Dtype::bf16); }),
              HasSubstr("has experts of 50 x 64"));
  experts = with_experts(model, 3000, 2);
  EXPECT_THAT(error_of([&] { require_gpu_model(experts, Dtype::f32); }),
              HasSubstr("sends tokens to 2 of 3000 experts"));
  experts = with_experts(model, 4, 2);
  experts.shared_expert_intermediate = 8;
  EXPECT_THAT(error_of([&] { require_gpu_model(experts, Dtype::f32); }),
              HasSubstr("has shared experts"));
  EXPECT_THAT(error_of([&] { require_gpu_model(model, Dtype::f8_e5m2); }),
              HasSubstr("is no type of activations"));
}

TEST(EngineOptions, BoundsRequestsByTheModel) {
  ModelConfig model = reference::tiny_model_config();
  EXPECT_EQ(bounded_by_model(served(1000), model).max_model_len, 4096u);
  EXPECT_EQ(max_blocks_per_row(bounded_by_model(served(1000), model)), 256);
  EXPECT_EQ(bounded_by_model(served(11), model).max_model_len, 160u);
  model.sliding_window = 100;
  EXPECT_EQ(bounded_by_model(served(1000), model).max_model_len, 100u);
  model.rope.scaling = reference::RopeScaling::dynamic;
  model.rope.original_max_position_embeddings = 64;
  EXPECT_EQ(bounded_by_model(served(1000), model).max_model_len, 64u);
}

// --- graphs ---------------------------------------------------------------------------------

std::vector<int32_t> rows_of(const DecodeGraphs& graphs, bool lora) {
  std::vector<int32_t> out;
  for (const DecodeGraphs::Graph& g : graphs.all()) {
    const int32_t most = lora ? DecodeGraphs::kAnyNumber : 0;
    if (g.max_adapters == most) out.push_back(g.num_rows);
  }
  return out;
}

StepBatch decode_batch(int32_t num_rows, int32_t num_adapters) {
  StepBatch batch;
  batch.token_ids.resize(size_t(num_rows));
  batch.contexts.resize(size_t(num_rows));
  batch.num_adapters = num_adapters;
  return batch;
}

TEST(DecodeGraphs, CoverEveryNumberOfRows) {
  for (const int32_t most : {1, 2, 3, 5, 8, 9, 64, 100, 256, 300}) {
    SCOPED_TRACE(most);
    const DecodeGraphs graphs(most, 1000, true);
    EXPECT_EQ(graphs.all().front().num_rows, most);
    for (int32_t rows = 1; rows <= most; ++rows) {
      for (const int32_t num_adapters : {0, 1, rows}) {
        const int64_t at = graphs.find(decode_batch(rows, num_adapters));
        ASSERT_GE(at, 0);
        const DecodeGraphs::Graph& g = graphs.all()[size_t(at)];
        EXPECT_EQ(g.max_adapters > 0, num_adapters > 0);
        EXPECT_GE(g.max_adapters, num_adapters);
        EXPECT_GE(g.num_rows, rows);
        EXPECT_LE(g.num_rows, rows + std::max(7, rows / 2));
      }
    }
    EXPECT_EQ(graphs.find(decode_batch(most + 1, 0)), -1);
  }
}

TEST(DecodeGraphs, AreFewAndKnown) {
  EXPECT_EQ(rows_of(DecodeGraphs(128, 256, true), true),
            (std::vector<int32_t>{128, 112, 96, 80, 64, 56, 48, 40, 32, 24, 16, 8, 4, 2, 1}));
  EXPECT_EQ(rows_of(DecodeGraphs(128, 256, false), true), (std::vector<int32_t>{}));
  EXPECT_TRUE(DecodeGraphs(128, 0, true).all().empty());
  EXPECT_EQ(rows_of(DecodeGraphs(128, 6, true), false), (std::vector<int32_t>{6, 4, 2, 1}));
}

TEST(DecodeGraphs, KnowFewAdapters) {
  const DecodeGraphs graphs(128, 256, true);
  const auto most = [&](int32_t rows, int32_t num_adapters) {
    return graphs.all()[size_t(graphs.find(decode_batch(rows, num_adapters)))].max_adapters;
  };
  EXPECT_EQ(most(4, 1), DecodeGraphs::kAnyNumber);
  EXPECT_EQ(most(5, 1), 1);  // padded to 8
  EXPECT_EQ(most(8, 2), DecodeGraphs::kAnyNumber);
  EXPECT_EQ(most(32, 1), 2);
  EXPECT_EQ(most(32, 2), 2);
  EXPECT_EQ(most(9, 2), 8);  // padded to 16
  EXPECT_EQ(most(32, 3), 8);
  EXPECT_EQ(most(32, 8), 8);
  EXPECT_EQ(most(32, 9), DecodeGraphs::kAnyNumber);
  EXPECT_EQ(most(33, 3), DecodeGraphs::kAnyNumber);  // padded to 40
  EXPECT_EQ(most(64, 1), 4);
  EXPECT_EQ(most(65, 1), 2);  // padded to 80
  EXPECT_EQ(most(128, 1), 4);
  EXPECT_EQ(most(128, 4), 4);
  EXPECT_EQ(most(128, 5), 8);
  EXPECT_EQ(most(128, 9), DecodeGraphs::kAnyNumber);
}

TEST(DecodeGraphs, LeaveChunksToTheEagerPass) {
  const DecodeGraphs graphs(16, 256, true);
  StepBatch chunk = decode_batch(2, 0);
  chunk.token_ids.push_back(1);
  EXPECT_EQ(graphs.find(chunk), -1);
  EXPECT_EQ(graphs.find(StepBatch{}), -1);
  EXPECT_EQ(graphs.find(decode_batch(2, 1)), graphs.find(decode_batch(2, 0)) - 1);
}

}  // namespace
}  // namespace loratory::gpu
