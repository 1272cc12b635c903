#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/engine/adapter_store.hpp"
#include "gpu/engine/decode_graphs.hpp"
#include "gpu/engine/device/model_pass.hpp"
#include "gpu/engine/host_time.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "reference/model/slot_weights.hpp"
#include "scheduler_sim/engine/sampled_before.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"

namespace loratory::gpu {

/// Runs the scheduler's plans on a GPU, in real time. begin_* enqueues on streams, next() waits.
///
/// Steps    one stream. Decode steps are replayed from graphs, the others enqueued one by one; both
///          give the same bits. Two may be under way: the second is enqueued behind the first, and
///          reads tokens that the host does not know yet where the first one wrote them.
/// Copies   a stream of their own, beside the steps, at a pace that spares them (PacedCopy). A copy
///          waits on the GPU for a step in flight that reads its slot, and a step for the copies
///          into slots that it reads.
/// Loads    threads of AdapterStore.
/// Checks   as ModelRunner::problem: every row's adapter must be in the row's slot with the
///          generation that the plan carries [2.10] [2.12].
/// Errors   asserted: calls out of order, a plan that problem() finds fault with.
///          std::runtime_error from CUDA.
class GpuExecutor : public sim::ModelExecutor {
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
  const sim::StepTimes* step_times() const override { return &times_; }

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
  void keep_logits();
  /// [columns of StepResult::sampled][vocab], NaN for a row that was left out.
  const std::vector<std::vector<float>>& logits() const { return logits_; }
  const sim::StepTimes& times() const { return times_; }
  size_t num_requests() const { return sampling_.size(); }

  // --- for benches and tests ------------------------------------------------------------------
  DeviceSlots* slots() { return slots_.get(); }
  const ModelPass& pass() const { return *pass_; }
  const DecodeGraphs& graphs() const { return graphs_; }
  CUstream_st* stream() const { return stream_.get(); }
  /// Enqueues a batch that was made elsewhere: a replay if there is a graph for it. Its results go
  /// nowhere. Batches that differ have a wait between them; no step is under way.
  void enqueue(StepBatch& batch) { enqueue(batch, shared_[0]); }
  /// By the GPU's clock: from the end of the step before the one that ended last to its end. Two
  /// steps have ended, and no other has begun since the last: as in StepObserver::on_step_end.
  double last_step_ms();
  /// Bytes of weights, slots, KV and all else, as EngineMemory::lines has them.
  std::vector<int64_t> allocated() const;

 protected:
  // What keeps steps and copies in order. A test overrides one of these, and sees what breaks.
  /// The arrays of a step to the GPU, before its kernels.
  virtual void upload(const std::byte* arrays, int64_t bytes);
  /// A step waits, on the GPU, for the copy into a slot that it reads.
  virtual void wait_for_copy(CUevent_st* filled);
  /// A part of an adapter's image into a slot.
  virtual void copy_part(const std::byte* image, PacedCopy::Part part, int32_t slot,
                         CUstream_st* stream);
  /// Has the part under way ended?
  virtual bool has_copied() const { return has_passed(copied_); }

 private:
  static constexpr size_t kMostSteps = 2;
  // One more than steps: the events of the step before are needed when a step ends.
  static constexpr size_t kNumShared = kMostSteps + 1;
  // What a step and the host share: the host writes one while the GPU reads another.
  struct Shared {
    PinnedBuffer arrays, results, poisoned, logits;
    Event begun, ended;
  };
  struct Step {
    StepBatch batch;
    Shared* shared;
    int64_t begin_ns;
    bool continues;         // the host went from the step before to this one without a rest
    bool is_late;           // the GPU had nothing to do when this step was enqueued
    int64_t launch_ns = 0;  // from `begun` to the first kernel
  };
  struct Copy {
    sim::CopyStart start;
    std::shared_ptr<const std::byte> image;  // held until the copy has ended
    PacedCopy pace;
  };
  struct Slot {
    reference::SlotContent content;
    Event filled;
    bool is_fresh = false;   // no step has waited for `filled` yet
    int64_t last_step = -1;  // that reads it, by num_begun_
  };

  void capture_graphs();
  Shared make_shared_memory() const;
  Shared& shared_of(int64_t step) { return shared_[size_t(step) % kNumShared]; }
  int64_t enqueue(StepBatch& batch, Shared& shared);
  void read_back(const StepBatch& batch, Shared& shared);
  void wait_for_slots(const sim::StepPlan& plan);
  void poison_new_blocks(const sim::StepPlan& plan, const sim::Scheduler& scheduler,
                         Shared& shared);
  void remember_sampled(const StepBatch& batch);
  void take_results(const Step& step);
  void add_times(const Step& step);
  SamplingRow sampling_of(uint64_t id, int64_t position) const;
  void look();
  void advance_copy(int64_t now_ns);
  sim::Completion wait(int64_t until_ns);
  void read_logits(const Step& step);

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
  Event copied_ = make_event();
  std::array<Shared, kNumShared> shared_;  // step i has that of i mod kNumShared
  int64_t num_begun_ = 0, num_ended_ = 0;
  std::deque<Step> steps_;  // under way, the older one first
  sim::SampledBefore sampled_before_;
  int64_t last_end_ns_ = -1;                                        // of a step, as next() saw it
  std::optional<int64_t> load_end_ns_, copy_end_ns_, step_end_ns_;  // seen by look()

  bool keeps_logits_ = false;
  std::vector<int32_t> sampled_;
  std::vector<sim::TokenLogprobs> logprobs_;
  std::vector<std::vector<float>> logits_;
  std::map<sim::Uid, std::string> load_errors_;
  sim::StepTimes times_;
  HostTime host_;
};

}  // namespace loratory::gpu
