#include "scheduler_sim/executors/model_runner.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/model/slot_lora.hpp"

namespace loratory::sim {

using reference::Adapter;
using reference::Matrix;
using reference::RequestTokens;
using reference::Vector;

namespace {

constexpr int32_t kNoToken = -1;
constexpr BlockId kPaddingTable[] = {kNullBlock};

// A row that waited for an adapter which then failed to load: it ends at the commit.
bool has_no_weights(const StepRow& row, const Scheduler& scheduler) {
  return row.adapter != kBaseRef && row.slot == kNoSlot &&
         scheduler.request(row.request).end_at_commit;
}

std::string problem_of(const StepRow& row, const reference::SlotWeights& slots,
                       const Residency& residency) {
  if (row.adapter == kBaseRef) {
    return row.slot == kNoSlot ? "" : fmt::format("a base row has slot {}", row.slot);
  }
  const Uid uid = residency.uid(row.adapter);
  if (row.slot < 0 || row.slot >= slots.max_loras()) {
    return fmt::format("adapter {} has slot {}", uid, row.slot);
  }
  const reference::SlotContent planned{uid, row.generation}, found = slots.content(row.slot);
  if (found == planned) return "";
  return fmt::format("slot {} holds adapter {} of generation {}, the plan says {} of {}", row.slot,
                     found.uid, found.generation, planned.uid, planned.generation);
}

}  // namespace

AdapterSource peft_directory(std::string directory, const reference::BaseModelShapes& shapes,
                             const reference::LoadOptions& options) {
  return [=] { return reference::load_adapter(directory, shapes, options); };
}

// A plan, flattened: its rows one after the other, then padding.
struct ModelRunner::Batch {
  reference::TokenBatch tokens;
  std::vector<RequestTokens> slots;
  std::vector<KvSequence> sequences;
  std::vector<size_t> columns;  // of the logits, for each of tokens.logits_of
};

ModelRunner::ModelRunner(const reference::Model& model, const SchedulerConfig& config,
                         const ModelRunnerConfig& own)
    : model_(model),
      config_(own),
      slots_(base_model_shapes(model.config), config.residency.max_loras, own.max_lora_rank),
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
  for (const StepRow& row : plan.rows) {
    if (has_no_weights(row, scheduler)) continue;
    const std::string text = problem_of(row, slots_, scheduler.residency());
    if (!text.empty()) return text;
  }
  return "";
}

ModelRunner::Batch ModelRunner::make_batch(const StepPlan& plan, const Scheduler& scheduler) const {
  Batch batch;
  size_t num_sampled = 0;
  for (const StepRow& row : plan.rows) {
    const size_t column = num_sampled;
    num_sampled += row.samples;
    if (has_no_weights(row, scheduler)) continue;
    const Request& r = scheduler.request(row.request);
    const auto sequence = int64_t(batch.sequences.size());
    LORATORY_ASSERT(row.num_computed + row.num_tokens <= r.tokens.size(), "its tokens are known");
    for (uint32_t i = 0; i < row.num_tokens; ++i) {
      batch.tokens.ids.push_back(r.tokens[row.num_computed + i]);
      batch.tokens.positions.push_back(row.num_computed + i);
      batch.tokens.sequences.push_back(sequence);
    }
    batch.slots.push_back({row.slot, int32_t(row.num_tokens)});
    batch.sequences.push_back({r.blocks, row.num_computed, row.num_tokens});
    if (!row.samples) continue;
    batch.tokens.logits_of.push_back(int64_t(batch.tokens.ids.size()) - 1);
    batch.columns.push_back(column);
  }
  add_padding(batch);
  return batch;
}

// Padding tokens are first tokens of sequences of their own, all in the null block.
void ModelRunner::add_padding(Batch& batch) const {
  while (batch.tokens.ids.size() % size_t(config_.token_multiple) != 0) {
    batch.tokens.ids.push_back(0);
    batch.tokens.positions.push_back(0);
    batch.tokens.sequences.push_back(int64_t(batch.sequences.size()));
    batch.slots.push_back({reference::kBaseSlot, 1});
    batch.sequences.push_back({kPaddingTable, 0, 1});
  }
}

std::vector<int32_t> ModelRunner::run(const StepPlan& plan, const Scheduler& scheduler) {
  const std::string what = problem(plan, scheduler);
  LORATORY_ASSERT(what.empty(), what.c_str());
  Batch batch = make_batch(plan, scheduler);
  const auto num_sampled = std::ranges::count_if(plan.rows, &StepRow::samples);
  logits_ = Matrix<float>::Constant(model_.config.vocab, num_sampled,
                                    std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> sampled(size_t(num_sampled), kNoToken);
  if (batch.tokens.ids.empty()) return sampled;

  kv_.begin_step(std::move(batch.sequences));
  const reference::SlotLora lora(slots_, token_slots(batch.slots));
  const Matrix<float> logits = forward<float>(model_, batch.tokens, kv_, &lora);
  for (size_t i = 0; i < batch.columns.size(); ++i) {
    logits_.col(Eigen::Index(batch.columns[i])) = logits.col(Eigen::Index(i));
  }
  size_t column = 0;
  for (const StepRow& row : plan.rows) {
    if (!row.samples) continue;
    const size_t c = column++;
    if (has_no_weights(row, scheduler)) continue;
    const Vector<float> of_row = logits_.col(Eigen::Index(c));
    const auto params = sampling_.find(scheduler.request(row.request).id);
    sampled[c] = reference::sample(
        of_row, params == sampling_.end() ? reference::SamplingParams{} : params->second,
        int64_t{row.num_computed} + row.num_tokens);
  }
  return sampled;
}

}  // namespace loratory::sim
