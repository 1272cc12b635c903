#include "gpu/engine/device/gpu_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using sim::Completion;
using sim::Scheduler;
using sim::StepPlan;
using sim::StepRow;
using sim::Uid;
using Kind = Completion::Kind;

namespace {

constexpr int32_t kNoToken = -1;
constexpr float kNoLogit = std::numeric_limits<float>::quiet_NaN();

std::shared_ptr<std::byte> pinned_memory(size_t bytes) {
  return {make_pinned_buffer(bytes).release(), PinnedFree()};
}

}  // namespace

GpuExecutor::GpuExecutor(const DeviceModel& model, Products& products,
                         const sim::SchedulerConfig& config, const EngineOptions& options,
                         sim::Clock& clock)
    : model_(model),
      config_(config),
      options_(options),
      clock_(clock),
      max_blocks_(max_blocks_per_row(config)),
      graphs_(config.max_num_seqs, options.max_graph_rows, options.lora) {
  const int32_t max_loras = config.residency.max_loras;
  if (options.lora) {
    SlotLayout layout(base_model_shapes(model.config()), options.modules, options.max_lora_rank,
                      options.dtype);
    slots_ = std::make_unique<DeviceSlots>(layout, max_loras);
    store_ = std::make_unique<AdapterStore>(layout, config.residency.num_load_workers,
                                            options.num_host_images, pinned_memory);
    slot_states_.resize(size_t(max_loras));
    for (Slot& slot : slot_states_) slot.filled = make_event();
  }
  pass_ = std::make_unique<ModelPass>(model, products, slots_.get(), config, options);
  arrays_ = make_pinned_buffer(size_t(pass_->layout().step_bytes));
  results_ = make_pinned_buffer(config.max_num_seqs * (sizeof(int32_t) + sizeof(double)));
  if (options.poison_blocks) poisoned_ = make_pinned_buffer(config.num_blocks * sizeof(int32_t));
  capture_graphs();
}

GpuExecutor::~GpuExecutor() {
  cudaStreamSynchronize(stream_.get());
  cudaStreamSynchronize(copy_stream_.get());
}

std::vector<int64_t> GpuExecutor::allocated() const {
  return {model_.bytes(), slots_ == nullptr ? 0 : slots_->bytes(), pass_->kv().bytes(),
          pass_->bytes()};
}

// --- graphs -----------------------------------------------------------------------------------

void GpuExecutor::enqueue_eagerly(const StepArrays& arrays, int32_t max_row_tokens, bool lora) {
  LORATORY_CUDA_CHECK(cudaMemcpyAsync(pass_->step_arrays(), arrays_.get(), size_t(arrays.bytes),
                                      cudaMemcpyHostToDevice, stream_.get()));
  pass_->launch(arrays, max_row_tokens, lora, stream_.get());
  const auto sampled = size_t(arrays.shape.num_sampled);
  if (sampled == 0) return;
  LORATORY_CUDA_CHECK(cudaMemcpyAsync(results_.get(), pass_->logprobs(), sampled * sizeof(double),
                                      cudaMemcpyDeviceToHost, stream_.get()));
  std::byte* const tokens = results_.get() + config_.max_num_seqs * sizeof(double);
  LORATORY_CUDA_CHECK(cudaMemcpyAsync(tokens, pass_->tokens(), sampled * sizeof(int32_t),
                                      cudaMemcpyDeviceToHost, stream_.get()));
}

// Each once eagerly, on padding alone: what loads on first use does so outside of a capture.
void GpuExecutor::capture_graphs() {
  for (const DecodeGraphs::Graph& graph : graphs_.all()) {
    StepBatch nothing;
    nothing.row_starts.push_back(0);
    pad(nothing, DecodeGraphs::shape(graph));
    const StepArrays arrays = lay_out_step(nothing.shape(), max_blocks_);
    write_step(nothing, arrays, {arrays_.get(), size_t(arrays.bytes)});
    enqueue_eagerly(arrays, /*max_row_tokens=*/1, graph.lora);
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    LORATORY_CUDA_CHECK(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    enqueue_eagerly(arrays, /*max_row_tokens=*/1, graph.lora);
    cudaGraph_t captured = nullptr;
    LORATORY_CUDA_CHECK(cudaStreamEndCapture(stream_.get(), &captured));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&executable, captured, 0);
    cudaGraphDestroy(captured);
    LORATORY_CUDA_CHECK(made);
    executables_.emplace_back(executable);
  }
}

void GpuExecutor::enqueue(StepBatch& batch) {
  const int64_t graph = graphs_.find(batch);
  const int32_t max_row_tokens = batch.max_row_tokens;
  if (graph >= 0) pad(batch, DecodeGraphs::shape(graphs_.all()[size_t(graph)]));
  const StepArrays arrays = lay_out_step(batch.shape(), max_blocks_);
  write_step(batch, arrays, {arrays_.get(), size_t(pass_->layout().step_bytes)});
  if (graph >= 0) {
    LORATORY_CUDA_CHECK(cudaGraphLaunch(executables_[size_t(graph)].get(), stream_.get()));
    ++times_.num_replayed;
  } else {
    enqueue_eagerly(arrays, max_row_tokens, batch.has_lora);
  }
}

// --- adapters and requests --------------------------------------------------------------------

void GpuExecutor::add_adapter(Uid uid, sim::AdapterSource source) {
  LORATORY_ASSERT(store_ != nullptr, "an engine with LoRA");
  store_->add(uid, std::move(source));
}

void GpuExecutor::set_sampling(uint64_t id, const sim::TokenParams& params) {
  sampling_row(params.sampling, 0, params.num_logprobs);  // throws
  if (params.num_logprobs > kMostLogprobs) {
    throw InputError("logprobs",
                     fmt::format("is {}, may be {}", params.num_logprobs, kMostLogprobs));
  }
  sampling_.insert_or_assign(id, params);
}

SamplingRow GpuExecutor::sampling_of(uint64_t id, int64_t position) const {
  const auto it = sampling_.find(id);
  if (it == sampling_.end()) return sampling_row({}, position);
  return sampling_row(it->second.sampling, position, it->second.num_logprobs);
}

std::string GpuExecutor::load_error(Uid uid) const {
  const auto it = load_errors_.find(uid);
  return it == load_errors_.end() ? "" : it->second;
}

void GpuExecutor::evicted_from_cpu(Uid uid) {
  if (store_ != nullptr) store_->drop(uid);
}

void GpuExecutor::unloaded(Uid uid) {
  if (store_ != nullptr) store_->remove(uid);
}

// --- loads and copies -------------------------------------------------------------------------

void GpuExecutor::begin_load(const sim::LoadStart& load, int64_t) { store_->begin_load(load.uid); }

sim::LoadEnd GpuExecutor::end_load(int64_t) {
  LORATORY_ASSERT(load_end_ns_.has_value(), "only what ended ends");
  load_end_ns_.reset();
  const AdapterStore::Ended ended = store_->take_ended();
  if (!ended.error.empty()) load_errors_.insert_or_assign(ended.uid, ended.error);
  return {ended.uid, ended.error.empty()};
}

void GpuExecutor::begin_copy(const sim::CopyStart& copy, int64_t) {
  LORATORY_ASSERT(!copy_, "one copy at a time");
  Slot& slot = slot_states_[size_t(copy.slot)];
  slot.content = {};
  copy_ = Copy{copy, store_->image(copy.uid)};
  LORATORY_ASSERT(copy_->image != nullptr, "what is copied to a slot is on the CPU");
  if (slot.in_step) {
    LORATORY_CUDA_CHECK(cudaStreamWaitEvent(copy_stream_.get(), stepped_.get()));
  }
  slots_->copy(copy_->image.get(), copy.slot, copy_stream_.get());
  LORATORY_CUDA_CHECK(cudaEventRecord(slot.filled.get(), copy_stream_.get()));
  LORATORY_CUDA_CHECK(cudaEventRecord(copied_.get(), copy_stream_.get()));
  slot.is_fresh = true;
}

Uid GpuExecutor::end_copy(int64_t) {
  LORATORY_ASSERT(copy_end_ns_.has_value(), "only what ended ends");
  copy_end_ns_.reset();
  const sim::CopyStart done = copy_->start;
  slot_states_[size_t(done.slot)].content = {done.uid, done.generation};
  copy_.reset();
  return done.uid;
}

// --- steps ------------------------------------------------------------------------------------

std::string GpuExecutor::problem(const StepPlan& plan, const Scheduler& scheduler) const {
  for (const StepRow& row : plan.rows) {
    if (has_no_weights(row, scheduler)) continue;
    if (row.adapter == sim::kBaseRef) {
      if (row.slot != sim::kNoSlot) return fmt::format("a base row has slot {}", row.slot);
      continue;
    }
    const Uid uid = scheduler.residency().uid(row.adapter);
    if (row.slot < 0 || size_t(row.slot) >= slot_states_.size()) {
      return fmt::format("adapter {} has slot {}", uid, row.slot);
    }
    const reference::SlotContent planned{uid, row.generation};
    const reference::SlotContent& found = slot_states_[size_t(row.slot)].content;
    if (found == planned) continue;
    return fmt::format("slot {} holds adapter {} of generation {}, the plan says {} of {}",
                       row.slot, found.uid, found.generation, planned.uid, planned.generation);
  }
  return "";
}

void GpuExecutor::wait_for_slots(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    if (row.slot == sim::kNoSlot) continue;
    Slot& slot = slot_states_[size_t(row.slot)];
    slot.in_step = true;
    if (!std::exchange(slot.is_fresh, false)) continue;
    LORATORY_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), slot.filled.get()));
  }
}

// Blocks behind the computed tokens are new in this step.
void GpuExecutor::poison_new_blocks(const StepPlan& plan, const Scheduler& scheduler) {
  auto* const blocks = reinterpret_cast<int32_t*>(poisoned_.get());
  int32_t count = 0;
  for (const StepRow& row : plan.rows) {
    const auto& table = scheduler.request(row.request).blocks;
    const size_t first = (row.num_computed + config_.block_size - 1) / config_.block_size;
    for (size_t i = first; i < table.size(); ++i) blocks[count++] = int32_t(table[i]);
  }
  pass_->kv().poison(blocks, count, stream_.get());
}

void GpuExecutor::begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t) {
  const std::string what = problem(plan, scheduler);
  LORATORY_ASSERT(what.empty(), what.c_str());
  LORATORY_ASSERT(!steps_, "one step at a time");
  step_begin_ns_ = clock_.now_ns();
  steps_ = true;
  batch_ = make_step_batch(
      plan, scheduler, [this](uint64_t id, int64_t position) { return sampling_of(id, position); });
  if (!batch_.empty()) {
    wait_for_slots(plan);
    if (options_.poison_blocks) poison_new_blocks(plan, scheduler);
    enqueue(batch_);
  }
  LORATORY_CUDA_CHECK(cudaEventRecord(stepped_.get(), stream_.get()));
  times_.host_ns += clock_.now_ns() - step_begin_ns_;
}

sim::StepResult GpuExecutor::end_step(const StepPlan&, const Scheduler&) {
  LORATORY_ASSERT(step_end_ns_.has_value(), "only what ended ends");
  const int64_t begin_ns = clock_.now_ns();
  times_.step_ns += *step_end_ns_ - step_begin_ns_;
  ++times_.num_steps;
  step_end_ns_.reset();
  steps_ = false;
  for (Slot& slot : slot_states_) slot.in_step = false;
  sampled_.assign(size_t(batch_.num_columns), kNoToken);
  logprobs_.assign(size_t(batch_.num_columns), {});
  const auto* const logprobs = reinterpret_cast<const double*>(results_.get());
  const auto* const tokens =
      reinterpret_cast<const int32_t*>(results_.get() + config_.max_num_seqs * sizeof(double));
  for (size_t i = 0; i < batch_.sampled.size(); ++i) {
    const SampledRow& row = batch_.sampled[i];
    if (row.column < 0) continue;
    sampled_[size_t(row.column)] = tokens[i];
    if (row.how.num_top < 0) continue;
    logprobs_[size_t(row.column)].logprob = logprobs[i];
    if (row.how.num_top > 0) read_top(i, logprobs_[size_t(row.column)]);
  }
  if (keeps_logits_) read_logits();
  times_.host_ns += clock_.now_ns() - begin_ns;
  return {sampled_};
}

// Few requests ask for these, so they stay on the GPU until one does.
void GpuExecutor::read_top(size_t row, sim::TokenLogprobs& out) const {
  const int64_t wanted = batch_.sampled[row].how.num_top;
  const auto count = size_t(std::min<int64_t>(wanted, model_.config().vocab));
  std::vector<int32_t> tokens(count);
  std::vector<double> logprobs(count);
  const auto read = [&](auto& to, const auto* from) {
    LORATORY_CUDA_CHECK(cudaMemcpyAsync(to.data(), from + row * kMostLogprobs,
                                        count * sizeof(to[0]), cudaMemcpyDeviceToHost,
                                        stream_.get()));
  };
  read(tokens, pass_->top_tokens());
  read(logprobs, pass_->top_logprobs());
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  for (size_t i = 0; i < count; ++i) out.top.push_back({tokens[i], logprobs[i]});
}

void GpuExecutor::read_logits() {
  const auto vocab = size_t(model_.config().vocab);
  logits_.assign(size_t(batch_.num_columns), std::vector<float>(vocab, kNoLogit));
  for (size_t i = 0; i < batch_.sampled.size(); ++i) {
    const int64_t column = batch_.sampled[i].column;
    if (column < 0) continue;
    LORATORY_CUDA_CHECK(cudaMemcpyAsync(logits_[size_t(column)].data(), pass_->logits() + i * vocab,
                                        vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                        stream_.get()));
  }
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

// --- time -------------------------------------------------------------------------------------

// What has ended gets the time at which that was seen.
void GpuExecutor::look() {
  const int64_t now = clock_.now_ns();
  const auto see = [now](std::optional<int64_t>& end, bool has_ended) {
    if (!end && has_ended) end = now;
  };
  see(load_end_ns_, store_ != nullptr && store_->has_ended());
  see(copy_end_ns_, copy_ && has_passed(copied_));
  see(step_end_ns_, steps_ && has_passed(stepped_));
}

Completion GpuExecutor::next(int64_t until_ns) {
  constexpr int64_t kLongestWaitNs = 1'000'000;
  for (;;) {
    look();
    Completion first;
    const auto offer = [&](const std::optional<int64_t>& end, Kind kind) {
      if (end && *end <= until_ns && std::tuple(*end, kind) < std::tuple(first.time_ns, first.kind))
        first = {*end, kind};
    };
    offer(load_end_ns_, Kind::load);
    offer(copy_end_ns_, Kind::copy);
    offer(step_end_ns_, Kind::step);
    if (first.kind != Kind::none) return first;
    const bool loads = store_ != nullptr && store_->num_loading() > 0;
    const int64_t left = until_ns - clock_.now_ns();
    if ((!loads && !copy_ && !steps_) || left <= 0) return {};
    // The GPU says nothing when it is done: it is asked again and again.
    if (copy_ || steps_)
      std::this_thread::yield();
    else
      store_->wait(std::chrono::nanoseconds(std::min(left, kLongestWaitNs)));
  }
}

}  // namespace loratory::gpu
