#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "reference/layout/batch_layout.hpp"
#include "reference/model/model.hpp"
#include "reference/model/sampling.hpp"
#include "reference/model/slot_weights.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/engine/sampled_before.hpp"
#include "scheduler_sim/executors/paged_kv.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

/// Where an adapter comes from. Called for each load; throws InputError if it can not be had.
using AdapterSource = std::function<reference::Adapter()>;

/// A PEFT directory.
AdapterSource peft_directory(std::string directory, const reference::BaseModelShapes& shapes,
                             const reference::LoadOptions& options = {});

struct ModelRunnerConfig {
  int64_t max_lora_rank = 64;  ///< room of a slot
  /// A step is padded with base tokens to a multiple of this, as an engine does whose graphs exist
  /// for some batch sizes only [2.16].
  int64_t token_multiple = 1;
  LoraDtype lora_dtype = LoraDtype::of_model;  ///< fp8: slots hold adapters in 8 bits [1.50a]
};

/// Runs the scheduler's steps on a real model: the tensors behind StepPlan, on the CPU.
///
/// Keys and values lie in the scheduler's blocks (paged_kv.hpp), adapters in its slots
/// (slot_weights.hpp), and both stay there between steps. What a step computes is a function of
/// the plan, these two, and the tokens of the requests; docs/executor.md.
///
/// Errors   asserted: calls out of order, a plan that problem() finds fault with.
/// Repeats  bitwise, for any number of threads: a token's logits are a function of the model, the
///          tokens before it and its adapter alone.
class ModelRunner {
 public:
  /// `model` outlives this object. `config` is that of the scheduler whose plans will be run.
  ModelRunner(const reference::Model& model, const SchedulerConfig& config,
              const ModelRunnerConfig& own = {});

  // --- adapters: disk > CPU > slot. Named by uid: an AdapterRef may be reused after an unload ---
  void add_adapter(Uid uid, AdapterSource source);
  /// Forgets it everywhere but in its slot, which the next fill overwrites.
  void remove_adapter(Uid uid);
  /// Disk to CPU. Throws InputError: what the source throws, or the adapter does not fit the slots.
  void load(Uid uid);
  void drop_from_cpu(Uid uid) { on_cpu_.erase(uid); }
  /// CPU to slot, in two halves: in between the slot holds nothing that could be read.
  void begin_copy(int32_t slot) { slots_.begin_fill(slot); }
  void end_copy(Uid uid, int32_t slot, uint64_t generation);
  bool is_on_cpu(Uid uid) const { return on_cpu_.contains(uid); }
  const reference::SlotContent& slot(int32_t index) const { return slots_.content(index); }

  // --- requests -----------------------------------------------------------------------------
  /// How its tokens are sampled; greedy if nothing is said. `id` as in RequestSpec.
  void set_sampling(uint64_t id, const reference::SamplingParams& params);
  void forget_request(uint64_t id) { sampling_.erase(id); }

  // --- steps --------------------------------------------------------------------------------
  /// Why the plan can not be launched now, in one sentence; empty if it can. Every row's adapter
  /// must be in its slot, with the generation that the plan carries [2.10] [2.12].
  std::string problem(const StepPlan& plan, const Scheduler& scheduler) const;

  /// A step as it stands when it begins: what its pass needs of the plan and the requests, which
  /// move on while it is in flight. A token that the step before has yet to sample is named by its
  /// place there.
  struct Step;
  /// Steps are run in the order in which they were prepared, each after those before it.
  Step prepare(const StepPlan& plan, const Scheduler& scheduler);
  /// One token for each row with `samples`, in row order: what StepResult wants. Rows whose adapter
  /// failed to load are left out of the pass; their token is -1, which commit drops. Asserted:
  /// every slot still holds what the plan said.
  std::vector<int32_t> run(const Step& step);
  std::vector<int32_t> run(const StepPlan& plan, const Scheduler& scheduler);
  /// Of the last step, [vocab, rows that sampled]; a column of a row that was left out is NaN.
  const reference::Matrix<float>& logits() const { return logits_; }

 private:
  void add_row(const StepRow& row, const Scheduler& scheduler, Step& step) const;
  void add_padding(Step& step) const;
  reference::SamplingParams sampling_of(uint64_t id) const;

  const reference::Model& model_;
  ModelRunnerConfig config_;
  reference::SlotWeights slots_;
  PagedKv kv_;
  std::unordered_map<Uid, AdapterSource> sources_;
  std::unordered_map<Uid, reference::Adapter> on_cpu_;
  std::unordered_map<uint64_t, reference::SamplingParams> sampling_;
  SampledBefore sampled_before_;       // by the step that was prepared last
  std::vector<int32_t> last_sampled_;  // by the step that was run last
  reference::Matrix<float> logits_;
};

struct ModelRunner::Step {
  struct Slot {
    int32_t index;
    reference::SlotContent content;
  };
  struct Sampled {
    size_t column;  ///< among the rows with `samples`
    reference::SamplingParams params;
    int64_t position;
  };
  struct Table {
    std::vector<BlockId> blocks;
    uint32_t num_computed, num_tokens;
  };
  reference::TokenBatch tokens;  ///< an id below 0: what row -1 - id of the step before sampled
  std::vector<reference::RequestTokens> slots;
  std::vector<Table> tables;     ///< [sequences]
  std::vector<Slot> reads;       ///< slots with what must be in them
  std::vector<Sampled> sampled;  ///< of each of tokens.logits_of
  size_t num_columns = 0;
};

}  // namespace loratory::sim
