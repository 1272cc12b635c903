#include "scheduler_sim/executors/model_runner.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/slot_lora.hpp"
#include "scheduler_sim/executors/plan_problem.hpp"

namespace loratory::sim {

using reference::Adapter;
using reference::Matrix;
using reference::RequestTokens;
using reference::Vector;

namespace {

constexpr int32_t kNoToken = -1;

}  // namespace

AdapterSource peft_directory(std::string directory, const reference::BaseModelShapes& shapes,
                             const reference::LoadOptions& options) {
  return [=] { return reference::load_adapter(directory, shapes, options); };
}

ModelRunner::ModelRunner(const reference::Model& model, const SchedulerConfig& config,
                         const ModelRunnerConfig& own)
    : model_(model),
      config_(own),
      slots_(
          base_model_shapes(model.config), config.residency.max_loras, own.max_lora_rank,
          own.lora_dtype == LoraDtype::fp8 ? reference::Dtype::f8_e4m3fn : reference::Dtype::f32),
      kv_({.num_blocks = config.num_blocks,
           .block_size = config.block_size,
           .num_layers = model.config.num_layers,
           .row_size = model.config.num_kv_heads * model.config.head_dim}) {
  LORATORY_ASSERT(own.token_multiple >= 1, "a step has whole tokens");
}

// --- adapters -------------------------------------------------------------------------------

void ModelRunner::add_adapter(Uid uid, AdapterSource source) {
  const bool is_new = sources_.emplace(uid, std::move(source)).second;
  LORATORY_ASSERT(is_new && uid != kBaseUid, "a uid is used once");
}

void ModelRunner::remove_adapter(Uid uid) {
  sources_.erase(uid);
  on_cpu_.erase(uid);
}

void ModelRunner::load(Uid uid) {
  const auto source = sources_.find(uid);
  LORATORY_ASSERT(source != sources_.end(), "only a registered adapter is loaded");
  Adapter adapter = source->second();
  if (!slots_.fits(adapter)) {
    throw InputError(fmt::format("adapter {}", uid), "does not fit the slots of this engine",
                     "raise max_lora_rank, or leave out modules that the model does not have");
  }
  on_cpu_.insert_or_assign(uid, std::move(adapter));
}

void ModelRunner::end_copy(Uid uid, int32_t slot, uint64_t generation) {
  const auto adapter = on_cpu_.find(uid);
  LORATORY_ASSERT(adapter != on_cpu_.end(), "what is copied to a slot is on the CPU");
  slots_.fill(slot, adapter->second, {uid, generation});
}

void ModelRunner::set_sampling(uint64_t id, const reference::SamplingParams& params) {
  sampling_.insert_or_assign(id, params);
}

// --- steps ----------------------------------------------------------------------------------

std::string ModelRunner::problem(const StepPlan& plan, const Scheduler& scheduler) const {
  return plan_problem(plan, scheduler, slots_.max_loras(),
                      [&](int32_t slot) { return slots_.content(slot); });
}

// Padding tokens are first tokens of sequences of their own, all in the null block.
void ModelRunner::add_padding(Step& step) const {
  while (step.tokens.ids.size() % size_t(config_.token_multiple) != 0) {
    step.tokens.ids.push_back(0);
    step.tokens.positions.push_back(0);
    step.tokens.sequences.push_back(int64_t(step.tables.size()));
    step.slots.push_back({reference::kBaseSlot, 1});
    step.tables.push_back({{kNullBlock}, 0, 1});
  }
}

reference::SamplingParams ModelRunner::sampling_of(uint64_t id) const {
  const auto it = sampling_.find(id);
  return it == sampling_.end() ? reference::SamplingParams{} : it->second;
}

void ModelRunner::add_row(const StepRow& row, const Scheduler& scheduler, Step& step) const {
  const Request& r = scheduler.request(row.request);
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const size_t position = row.num_computed + i;
    LORATORY_ASSERT(position <= r.tokens.size(), "its tokens are known, or sampled just now");
    const bool is_known = position < r.tokens.size();
    step.tokens.ids.push_back(is_known ? r.tokens[position]
                                       : -1 - sampled_before_.index_of(row.request));
    step.tokens.positions.push_back(int64_t(position));
    step.tokens.sequences.push_back(int64_t(step.tables.size()));
  }
  step.slots.push_back({row.slot, int32_t(row.num_tokens)});
  step.tables.push_back({r.blocks, row.num_computed, row.num_tokens});
  if (row.slot != kNoSlot) {
    step.reads.push_back({row.slot, {scheduler.residency().uid(row.adapter), row.generation}});
  }
  if (!row.samples) return;
  step.tokens.logits_of.push_back(int64_t(step.tokens.ids.size()) - 1);
  step.sampled.push_back({.column = step.num_columns,
                          .params = sampling_of(r.id),
                          .position = int64_t{row.num_computed} + row.num_tokens});
}

ModelRunner::Step ModelRunner::prepare(const StepPlan& plan, const Scheduler& scheduler) {
  const std::string what = problem(plan, scheduler);
  LORATORY_ASSERT(what.empty(), what.c_str());
  Step step;
  for (const StepRow& row : plan.rows) {
    if (!has_no_weights(row, scheduler)) add_row(row, scheduler, step);
    step.num_columns += row.samples;
  }
  add_padding(step);
  sampled_before_.next_step();
  int32_t column = 0;
  for (const StepRow& row : plan.rows) {
    if (row.samples) sampled_before_.add(row.request, column++);
  }
  return step;
}

std::vector<int32_t> ModelRunner::run(const StepPlan& plan, const Scheduler& scheduler) {
  return run(prepare(plan, scheduler));
}

std::vector<int32_t> ModelRunner::run(const Step& step) {
  for (const Step::Slot& slot : step.reads) {
    LORATORY_ASSERT(slots_.content(slot.index) == slot.content, "nothing changes under a step");
  }
  logits_ = Matrix<float>::Constant(model_.config.vocab, Eigen::Index(step.num_columns),
                                    std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> sampled(step.num_columns, kNoToken);
  if (!step.tokens.ids.empty()) {
    reference::TokenBatch tokens = step.tokens;
    for (auto& id : tokens.ids) {
      if (id < 0) id = last_sampled_.at(size_t(-1 - id));
    }
    std::vector<KvSequence> sequences;
    for (const Step::Table& t : step.tables) {
      sequences.push_back({t.blocks, t.num_computed, t.num_tokens});
    }
    kv_.begin_step(std::move(sequences));
    const reference::SlotLora lora(slots_, token_slots(step.slots));
    const Matrix<float> logits = forward<float>(model_, tokens, kv_, &lora);
    for (size_t i = 0; i < step.sampled.size(); ++i) {
      const Step::Sampled& s = step.sampled[i];
      const Vector<float> of_row = logits.col(Eigen::Index(i));
      logits_.col(Eigen::Index(s.column)) = of_row;
      sampled[s.column] = reference::sample(of_row, s.params, s.position);
    }
  }
  last_sampled_ = sampled;
  return sampled;
}

}  // namespace loratory::sim
