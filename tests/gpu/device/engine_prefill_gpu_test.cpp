// Steps of an engine with thousands of prompt tokens, where LoRA takes other kernels than in small
// steps: every request has the bits that it has in small chunks. Skipped without a GPU.
#include <gtest/gtest.h>

#include "fuzz/support/engine_case.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "gpu_engine.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::ModelConfig;
using sim::Draw;
using sim::EngineRequest;
using sim::SchedulerConfig;

constexpr uint32_t kMostTokens = 4096;  // of all prompts
constexpr int64_t kMaxRank = 64;

constexpr Dtype kDtype = Dtype::bf16;

class EnginePrefill : public OnGpu {};

// All of the same sizes, whose products are tuned once.
ModelConfig model_config(uint64_t seed) {
  ModelConfig config = with_tensor_core_sizes(dense(reference::random_model_config(seed)));
  config.max_position_embeddings = kMostTokens + 16;
  config.sliding_window = 0;
  config.rope.scaling = reference::RopeScaling::none;  // some end before such prompts
  config.intermediate = 3968;
  return config;
}

struct Workload {
  std::vector<reference::RandomAdapter> adapters;
  std::vector<EngineRequest> requests;
};

std::string name_of(size_t adapter) { return "a" + std::to_string(adapter); }

// Up to four prompts with up to three adapters; some have none.
Workload draw_workload(uint64_t seed, const ModelConfig& config) {
  Draw draw(seed);
  Workload out;
  const int64_t num_requests = draw.between(1, 4);
  for (int64_t i = draw.between(1, 3); i > 0; --i) {
    reference::RandomAdapterOptions options;
    options.rank = draw.one_of({8, 40, 64});
    options.ragged = draw.one_in(2);
    options.dtype = kDtype;
    out.adapters.push_back(random_adapter(config, uint64_t(draw(int64_t{1} << 40)), options));
  }
  const int64_t most = int64_t{kMostTokens} / num_requests;
  for (int64_t i = 0; i < num_requests; ++i) {
    EngineRequest r;
    r.id = uint64_t(i);
    const int64_t adapter = draw(int64_t(out.adapters.size()) + 1);
    if (adapter > 0) r.adapter = name_of(size_t(adapter - 1));
    r.prompt = reference::random_tokens(config, Trial::size(draw.between(most / 2, most), 40),
                                        uint64_t(i));
    r.params.max_new_tokens = 2;
    out.requests.push_back(r);
  }
  return out;
}

// All requests, with at most so many tokens in a step.
std::map<uint64_t, sim::EngineOutput> outputs(const DeviceModel& model, const Workload& workload,
                                              uint32_t tokens_of_step) {
  static Products products({.cublaslt = "none"});
  SchedulerConfig c;
  c.block_size = 16;
  c.num_blocks = 16 + kMostTokens / 16;
  c.max_model_len = kMostTokens + 16;
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = tokens_of_step;
  c.residency.max_loras = c.residency.max_cpu_loras = 3;
  EngineOptions options;
  options.dtype = kDtype;
  options.max_lora_rank = kMaxRank;
  options.max_graph_rows = 0;
  GpuEngine engine(model, products, bounded_by_model(c, model.config()), options);
  for (size_t i = 0; i < workload.adapters.size(); ++i) {
    const reference::RandomAdapter& a = workload.adapters[i];
    engine.register_adapter(name_of(i), uint32_t(a.adapter.rank), sim::source_of(a));
  }
  for (const EngineRequest& r : workload.requests) {
    EXPECT_EQ(engine.submit(r), sim::SubmitStatus::ok);
  }
  engine.run();
  return engine.outputs();
}

// [2.10] [2.13]
TEST_F(EnginePrefill, OneStepHasTheBitsOfManySmallOnes) {
  for_all_seeds(6, [](Trial& trial) {
    const ModelConfig config = model_config(trial.seed());
    const DeviceModel model =
        DeviceModel::from(in_dtype(random_model(config, trial.seed()), kDtype), kDtype);
    const Workload workload = draw_workload(trial.seed(), config);
    const auto expected = outputs(model, workload, 250),
               got = outputs(model, workload, kMostTokens);
    int64_t num_tokens = 0;
    for (const EngineRequest& r : workload.requests) {
      const sim::EngineOutput& small = expected.at(r.id);
      ASSERT_EQ(small.reason, sim::FinishReason::length);
      ASSERT_TRUE(same_generation(got.at(r.id), {small.tokens, small.logits, {}})) << r.id;
      for (const auto& logits : small.logits) trial.count(logits.size());
      num_tokens += int64_t(r.prompt.size());
    }
    trial.classify(num_tokens >= 1408, "a wave of splits");
    trial.classify(workload.adapters.size() > 1, "several adapters");
  });
}

}  // namespace
}  // namespace loratory::gpu
