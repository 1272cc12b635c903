// What keeps steps and copies in order, taken away one by one: each fault must show in the tokens
// or logits of the requests that it hits, and in those of no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fuzz/support/engine_case.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu_engine.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Model;
using reference::ModelConfig;
using reference::RandomAdapter;
using sim::EngineOutput;
using sim::EngineRequest;
using sim::StepsAhead;

constexpr uint64_t kSeed = 5;
constexpr int kNumRequests = 4;   // request i: the base model, a1, a2, a1
constexpr int kFirst[] = {7, 8};  // requests that bring a1 and a2 to the GPU
constexpr int64_t kNumNew = 24;

// --- an executor that can be broken -------------------------------------------------------------

// What a test breaks.
struct Faults {
  bool holds_copies = false;     // copies wait until release()
  bool reports_early = false;    // a copy has ended as soon as it begins
  bool forgets_to_wait = false;  // steps do not wait for copies into their slots
};

class FaultyExecutor final : public GpuExecutor {
 public:
  template <typename... Args>
  explicit FaultyExecutor(const Faults& faults, Args&&... args)
      : GpuExecutor(std::forward<Args>(args)...), faults_(faults) {}
  ~FaultyExecutor() override { release(); }  // the base class waits for its streams

  void release() { is_released_ = true; }
  /// The next step finds the arrays of the one before.
  void skip_next_upload() { skips_upload_ = true; }

 protected:
  void upload(const std::byte* arrays, int64_t bytes) override {
    if (!std::exchange(skips_upload_, false)) GpuExecutor::upload(arrays, bytes);
  }
  // The step is behind its copy now, so that the copy may go on.
  void wait_for_copy(CUevent_st* filled) override {
    if (faults_.forgets_to_wait) return;
    GpuExecutor::wait_for_copy(filled);
    release();
  }
  void copy_part(const std::byte* image, PacedCopy::Part part, int32_t slot,
                 CUstream_st* stream) override {
    if (faults_.holds_copies) LORATORY_CUDA_CHECK(cudaLaunchHostFunc(stream, hold, this));
    GpuExecutor::copy_part(image, part, slot, stream);
  }
  bool has_copied() const override { return faults_.reports_early || GpuExecutor::has_copied(); }

 private:
  static void hold(void* self) {
    while (!static_cast<FaultyExecutor*>(self)->is_released_) std::this_thread::yield();
  }

  Faults faults_;
  bool skips_upload_ = false;
  std::atomic<bool> is_released_ = false;
};

// Their plans serve all engines: shapes come back.
Products& products() {
  static Products all({.cublaslt = "none"});
  return all;
}

// --- the workload -------------------------------------------------------------------------------

ModelConfig small_model() {
  ModelConfig config = with_tensor_core_sizes(reference::random_model_config(kSeed));
  config.num_experts = 0;
  config.shared_expert_intermediate = 0;
  config.layer_has_experts.clear();
  config.max_position_embeddings = 256;
  return config;
}

sim::SchedulerConfig scheduler_config(const ModelConfig& model) {
  sim::SchedulerConfig c;
  c.block_size = 4;
  c.num_blocks = 200;
  c.max_model_len = 64;
  c.max_num_seqs = 8;
  c.max_num_batched_tokens = 128;
  c.residency.max_loras = 2;
  c.residency.max_cpu_loras = 2;
  return bounded_by_model(c, model);
}

class Engine {
 public:
  Engine(const Faults& faults, StepsAhead ahead)
      : model_(reference::random_model(small_model(), kSeed)),
        device_model_(DeviceModel::from(model_, Dtype::bf16)),
        config_(scheduler_config(model_.config)),
        engine_([&](sim::Clock& clock) { return make_executor(faults, clock); }, config_, nullptr,
                ahead) {
    for (uint64_t i = 1; i <= 2; ++i) {
      reference::RandomAdapterOptions options;
      options.rank = 4;
      options.dtype = Dtype::bf16;
      adapters_.push_back(random_adapter(model_.config, kSeed + i, options));
      engine_.register_adapter("a" + std::to_string(i), 4, sim::source_of(adapters_.back()));
    }
  }

  void submit(int index, int64_t num_new = kNumNew) {
    EngineRequest r;
    r.id = uint64_t(index);
    for (int i = 0; i < 6; ++i) r.prompt.push_back((index * 17 + i * 5) % 100);
    r.params.max_new_tokens = num_new;
    if (index > 0) r.adapter = index % 2 == 0 ? "a2" : "a1";
    ASSERT_EQ(engine_.submit(r), sim::SubmitStatus::ok);
  }
  // With both adapters on the GPU, so that all begin in one step and go on together.
  void submit_all() {
    for (const int i : kFirst) submit(i, 1);
    engine_.run();
    for (int i = 0; i < kNumRequests; ++i) submit(i);
  }
  // Until each of `ids` has generated so many tokens.
  void advance_to(const std::set<int>& ids, uint32_t num_generated) {
    const auto is_there = [&](int id) {
      const sim::RequestRef ref = engine_.scheduler().find_request(uint64_t(id));
      return ref != sim::kNoRequest &&
             engine_.scheduler().request(ref).num_generated >= num_generated;
    };
    while (!std::ranges::all_of(ids, is_there)) ASSERT_TRUE(engine_.advance());
  }
  std::map<uint64_t, EngineOutput> run() {
    engine_.run();
    return engine_.outputs();
  }

  GpuEngine& engine() { return engine_; }
  FaultyExecutor& executor() { return *executor_; }
  const sim::Request& request(int id) {
    return engine_.scheduler().request(engine_.scheduler().find_request(uint64_t(id)));
  }

 private:
  std::unique_ptr<GpuExecutor> make_executor(const Faults& faults, sim::Clock& clock) {
    EngineOptions options;
    options.dtype = Dtype::bf16;
    options.max_lora_rank = 4;
    options.max_graph_rows = 8;
    auto made = std::make_unique<FaultyExecutor>(faults, device_model_, products(), config_,
                                                 options, clock);
    executor_ = made.get();
    return made;
  }

  Model model_;
  DeviceModel device_model_;
  sim::SchedulerConfig config_;
  FaultyExecutor* executor_ = nullptr;
  GpuEngine engine_;
  std::vector<RandomAdapter> adapters_;
};

// Which requests got other bits.
std::set<int> hit(const std::map<uint64_t, EngineOutput>& got,
                  const std::map<uint64_t, EngineOutput>& clean) {
  std::set<int> out;
  for (const auto& [id, expected] : clean) {
    const auto it = got.find(id);
    const bool same = it != got.end() && it->second.reason == expected.reason &&
                      it->second.tokens.size() == expected.tokens.size() &&
                      same_generation(it->second, {expected.tokens, expected.logits, {}});
    if (!same) out.insert(int(id));
  }
  return out;
}

std::map<uint64_t, EngineOutput> clean_run(StepsAhead ahead) {
  Engine engine({}, ahead);
  engine.submit_all();
  return engine.run();
}

class EngineFaultGpu : public OnGpu, public testing::WithParamInterface<StepsAhead> {};

INSTANTIATE_TEST_SUITE_P(Ahead, EngineFaultGpu, testing::Values(StepsAhead::none, StepsAhead::one),
                         [](const auto& test) {
                           return test.param == StepsAhead::one ? "one" : "none";
                         });

// --- faults -------------------------------------------------------------------------------------

TEST_P(EngineFaultGpu, WithoutAFaultNothingIsHit) {
  const auto clean = clean_run(GetParam());
  ASSERT_EQ(clean.size(), size_t(kNumRequests) + std::size(kFirst));
  for (int i = 0; i < kNumRequests; ++i) {
    EXPECT_EQ(int64_t(clean.at(uint64_t(i)).tokens.size()), kNumNew);
  }
  EXPECT_EQ(hit(clean_run(GetParam()), clean), std::set<int>());
  EXPECT_EQ(hit(clean_run(StepsAhead::none), clean), std::set<int>());
}

TEST_P(EngineFaultGpu, APoisonedBlockHitsItsRequest) {
  const auto clean = clean_run(GetParam());
  Engine e({}, GetParam());
  e.submit_all();
  e.advance_to({0, 1, 2, 3}, 3);
  CUstream_st* const stream = e.executor().stream();
  DeviceBuffer block = make_device_buffer(sizeof(int32_t));
  const auto id = int32_t(e.request(2).blocks[0]);
  LORATORY_CUDA_CHECK(cudaMemcpyAsync(block.get(), &id, sizeof id, cudaMemcpyHostToDevice, stream));
  e.executor().pass().kv().poison(reinterpret_cast<const int32_t*>(block.get()), 1, stream);
  EXPECT_EQ(hit(e.run(), clean), std::set<int>({2}));
}

TEST_P(EngineFaultGpu, APoisonedSlotHitsItsAdapter) {
  const auto clean = clean_run(GetParam());
  Engine e({}, GetParam());
  e.submit_all();
  e.advance_to({0, 1, 2, 3}, 3);
  const sim::Residency& residency = e.engine().scheduler().residency();
  const int32_t slot = residency.slot(residency.find("a1"));
  ASSERT_GE(slot, 0);
  DeviceSlots& slots = *e.executor().slots();
  // A of the first layer's q, which all tokens of the adapter go through.
  const int64_t module = slots.layout().find({0, -1, reference::Projection::q});
  ASSERT_GE(module, 0);
  auto* const image = static_cast<std::byte*>(slots.a(module).data) + slot * slots.layout().bytes();
  LORATORY_CUDA_CHECK(cudaMemsetAsync(image, 0xFF, 64, e.executor().stream()));
  EXPECT_EQ(hit(e.run(), clean), std::set<int>({1, 3}));
}

// The report comes before the copy: the GPU itself holds the step back.
TEST_P(EngineFaultGpu, ACopyReportedTooEarlyIsWaitedFor) {
  Engine alone({}, GetParam());
  alone.submit(1);
  const auto clean = alone.run();
  Engine e({.holds_copies = true, .reports_early = true}, GetParam());
  e.submit(1);
  EXPECT_EQ(hit(e.run(), clean), std::set<int>());
}

// And without that wait the step reads a slot that its adapter is not in.
TEST_P(EngineFaultGpu, ACopyThatComesBehindItsStepIsSeen) {
  Engine alone({}, GetParam());
  alone.submit(1);
  const auto clean = alone.run();
  Engine e({.holds_copies = true, .reports_early = true, .forgets_to_wait = true}, GetParam());
  e.submit(1);
  EXPECT_EQ(hit(e.run(), clean), std::set<int>({1}));
}

TEST_P(EngineFaultGpu, AGraphWithStaleArraysIsSeen) {
  const auto clean = clean_run(GetParam());
  Engine e({}, GetParam());
  e.submit_all();
  e.advance_to({0, 1, 2, 3}, 3);
  e.executor().skip_next_upload();
  const auto got = e.run();
  EXPECT_GT(e.executor().times().num_replayed, 0);
  EXPECT_EQ(hit(got, clean), std::set<int>({0, 1, 2, 3}));
}

}  // namespace
}  // namespace loratory::gpu
