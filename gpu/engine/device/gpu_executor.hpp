#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/engine/adapter_store.hpp"
#include "gpu/engine/decode_graphs.hpp"
#include "gpu/engine/device/cuda_handles.hpp"
#include "gpu/engine/device/model_pass.hpp"
#include "reference/model/slot_weights.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"

namespace loratory::gpu {

/// Where the time of steps went, since the executor began.
struct StepTimes {
  int64_t num_steps = 0, num_replayed = 0;
  int64_t host_ns = 0;  ///< of begin_step and end_step, in which the host does not wait
  int64_t step_ns = 0;  ///< from begin_step to the moment at which next() saw the end
};

/// Runs the scheduler's plans on a GPU, in real time. begin_* enqueues on streams, next() waits.
///
/// Steps    one stream. Decode steps are replayed from graphs, the others enqueued one by one; both
///          give the same bits.
/// Copies   a stream of their own, beside the steps. A copy waits on the GPU for a step in flight
///          that reads its slot, and a step for the copies into slots that it reads.
/// Loads    threads of AdapterStore.
/// Checks   as ModelRunner::problem: every row's adapter must be in the row's slot with the
///          generation that the plan carries [2.10] [2.12].
/// Errors   asserted: calls out of order, a plan that problem() finds fault with.
///          std::runtime_error from CUDA.
class GpuExecutor final : public sim::ModelExecutor {
 public:
  /// `model`, `products` and `clock` outlive this object. `config` is the scheduler's,
  /// bounded_by_model().
  /// Graphs are captured here.
  GpuExecutor(const DeviceModel& model, Products& products, const sim::SchedulerConfig& config,
              const EngineOptions& options, sim::Clock& clock);
  ~GpuExecutor() override;

  void add_adapter(sim::Uid uid, sim::AdapterSource source) override;
  /// Errors   InputError: what reference::sample refuses, more log probabilities than
  ///          kMostLogprobs.
  void set_sampling(uint64_t id, const sim::TokenParams& params) override;
  void forget_request(uint64_t id) override { sampling_.erase(id); }
  std::string load_error(sim::Uid uid) const override;
  std::span<const sim::TokenLogprobs> logprobs() const override { return logprobs_; }

  // --- Executor -----------------------------------------------------------------------------
  void begin_load(const sim::LoadStart& load, int64_t now_ns) override;
  void begin_copy(const sim::CopyStart& copy, int64_t now_ns) override;
  void begin_step(const sim::StepPlan& plan, const sim::Scheduler& scheduler,
                  int64_t now_ns) override;
  sim::Completion next(int64_t until_ns) override;
  sim::LoadEnd end_load(int64_t now_ns) override;
  sim::Uid end_copy(int64_t now_ns) override;
  sim::StepResult end_step(const sim::StepPlan& plan, const sim::Scheduler& scheduler) override;
  void evicted_from_cpu(sim::Uid uid) override;
  void unloaded(sim::Uid uid) override;

  std::string problem(const sim::StepPlan& plan, const sim::Scheduler& scheduler) const;

  // --- what came out ------------------------------------------------------------------------
  /// Copies the logits of every step to the host from now on. Slow: for tests.
  void keep_logits() { keeps_logits_ = true; }
  /// [columns of StepResult::sampled][vocab], NaN for a row that was left out.
  const std::vector<std::vector<float>>& logits() const { return logits_; }
  const StepTimes& times() const { return times_; }
  size_t num_requests() const { return sampling_.size(); }

  // --- for benches and tests ------------------------------------------------------------------
  DeviceSlots* slots() { return slots_.get(); }
  const ModelPass& pass() const { return *pass_; }
  const DecodeGraphs& graphs() const { return graphs_; }
  CUstream_st* stream() const { return stream_.get(); }
  /// Enqueues a batch that was made elsewhere: a replay if there is a graph for it.
  void enqueue(StepBatch& batch);
  /// Bytes of weights, slots, KV and all else, as EngineMemory::lines has them.
  std::vector<int64_t> allocated() const;

 private:
  struct Copy {
    sim::CopyStart start;
    std::shared_ptr<const std::byte> image;  // held until the copy has ended
  };
  struct Slot {
    reference::SlotContent content;
    Event filled;
    bool is_fresh = false;  // no step has waited for `filled` yet
    bool in_step = false;   // the step in flight reads it
  };

  void capture_graphs();
  void enqueue_eagerly(const StepArrays& arrays, int32_t max_row_tokens, bool lora);
  void wait_for_slots(const sim::StepPlan& plan);
  void poison_new_blocks(const sim::StepPlan& plan, const sim::Scheduler& scheduler);
  SamplingRow sampling_of(uint64_t id, int64_t position) const;
  void look();
  void read_top(size_t row, sim::TokenLogprobs& out) const;
  void read_logits();

  const DeviceModel& model_;
  sim::SchedulerConfig config_;
  EngineOptions options_;
  sim::Clock& clock_;
  int32_t max_blocks_;
  Stream stream_ = make_stream(), copy_stream_ = make_stream();
  std::unique_ptr<DeviceSlots> slots_;  // null: no LoRA
  std::unique_ptr<ModelPass> pass_;
  std::unique_ptr<AdapterStore> store_;
  DecodeGraphs graphs_;
  std::vector<Graph> executables_;

  std::unordered_map<uint64_t, sim::TokenParams> sampling_;
  std::vector<Slot> slot_states_;
  std::optional<Copy> copy_;
  Event copied_ = make_event(), stepped_ = make_event();
  PinnedBuffer arrays_, results_;  // to the GPU, and back: log-probabilities, then tokens
  PinnedBuffer poisoned_;
  StepBatch batch_;  // of the step in flight
  bool steps_ = false;
  int64_t step_begin_ns_ = 0;
  std::optional<int64_t> load_end_ns_, copy_end_ns_, step_end_ns_;  // seen by look()

  bool keeps_logits_ = false;
  std::vector<int32_t> sampled_;
  std::vector<sim::TokenLogprobs> logprobs_;
  std::vector<std::vector<float>> logits_;
  std::map<sim::Uid, std::string> load_errors_;
  StepTimes times_;
};

}  // namespace loratory::gpu
