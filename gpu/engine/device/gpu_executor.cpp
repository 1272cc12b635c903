#include "gpu/engine/device/gpu_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>

#include "gpu/engine/device/engine_kernels.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/executors/plan_problem.hpp"

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
    const SlotLayout layout = slot_layout(model.config(), options);
    slots_ = std::make_unique<DeviceSlots>(layout, max_loras);
    store_ = std::make_unique<AdapterStore>(layout, config.residency.num_load_workers,
                                            options.num_host_images, pinned_memory);
    slot_states_.resize(size_t(max_loras));
    for (Slot& slot : slot_states_) slot.filled = make_event();
  }
  pass_ = std::make_unique<ModelPass>(model, products, slots_.get(), config, options);
  for (Shared& shared : shared_) shared = make_shared_memory();
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

GpuExecutor::Shared GpuExecutor::make_shared_memory() const {
  Shared shared;
  shared.arrays = make_pinned_buffer(size_t(pass_->layout().step_bytes));
  shared.results = make_pinned_buffer(size_t(pass_->layout().results_bytes()));
  if (options_.poison_blocks) {
    shared.poisoned = make_pinned_buffer(config_.num_blocks * sizeof(int32_t));
  }
  shared.begun = make_timed_event();
  shared.ended = make_timed_event();
  return shared;
}

// --- graphs -----------------------------------------------------------------------------------

// Each once eagerly, on padding alone: what loads on first use does so outside of a capture. The
// arrays come to the GPU before a graph is launched and results go back behind it, so that two
// steps can have buffers of their own.
void GpuExecutor::capture_graphs() {
  const Shared& shared = shared_[0];
  for (const DecodeGraphs::Graph& graph : graphs_.all()) {
    StepBatch nothing;
    nothing.row_starts.push_back(0);
    pad(nothing, DecodeGraphs::shape(graph));
    const StepArrays arrays = lay_out_step(nothing.shape(), max_blocks_);
    write_step(nothing, arrays, {shared.arrays.get(), size_t(pass_->layout().step_bytes)});
    LORATORY_CUDA_CHECK(cudaMemcpyAsync(pass_->step_arrays(), shared.arrays.get(),
                                        size_t(arrays.bytes), cudaMemcpyHostToDevice,
                                        stream_.get()));
    const auto launch = [&] {
      pass_->launch(arrays, /*max_row_tokens=*/1, graph.max_adapters, stream_.get());
    };
    launch();
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    executables_.push_back(capture(stream_.get(), launch));
  }
}

void GpuExecutor::upload(const std::byte* arrays, int64_t bytes) {
  copy_few(pass_->step_arrays(), arrays, bytes, stream_.get());
}

// Says when the GPU had its first kernel: a graph comes to it as a whole.
int64_t GpuExecutor::enqueue(StepBatch& batch, Shared& shared) {
  const int64_t graph = graphs_.find(batch);
  const int32_t max_row_tokens = batch.max_row_tokens;
  if (graph >= 0) pad(batch, DecodeGraphs::shape(graphs_.all()[size_t(graph)]));
  const StepArrays arrays = lay_out_step(batch.shape(), max_blocks_);
  write_step(batch, arrays, {shared.arrays.get(), size_t(pass_->layout().step_bytes)});
  int64_t first_work_ns = clock_.now_ns();
  upload(shared.arrays.get(), arrays.bytes);
  if (graph >= 0) {
    LORATORY_CUDA_CHECK(cudaGraphLaunch(executables_[size_t(graph)].get(), stream_.get()));
    ++times_.num_replayed;
    first_work_ns = clock_.now_ns();
  } else {
    pass_->launch(arrays, max_row_tokens, batch.num_adapters, stream_.get());
  }
  read_back(batch, shared);
  return first_work_ns;
}

// One copy: tokens and log probabilities lie side by side, and behind them the likeliest tokens,
// which few requests ask for.
void GpuExecutor::read_back(const StepBatch& batch, Shared& shared) {
  if (batch.sampled.empty()) return;
  const bool wants_top =
      std::ranges::any_of(batch.sampled, [](const SampledRow& row) { return row.how.num_top > 0; });
  const PassLayout& at = pass_->layout();
  const int64_t end = wants_top ? at.results_bytes() : at.top_tokens - at.tokens;
  copy_few(shared.results.get(), pass_->tokens(), end, stream_.get());
  if (!keeps_logits_) return;
  const size_t bytes = batch.sampled.size() * size_t(model_.config().vocab) * sizeof(float);
  LORATORY_CUDA_CHECK(cudaMemcpyAsync(shared.logits.get(), pass_->logits(), bytes,
                                      cudaMemcpyDeviceToHost, stream_.get()));
}

void GpuExecutor::keep_logits() {
  keeps_logits_ = true;
  const size_t bytes =
      size_t(pass_->layout().num_sampled) * size_t(model_.config().vocab) * sizeof(float);
  for (Shared& shared : shared_) shared.logits = make_pinned_buffer(bytes);
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

void GpuExecutor::begin_load(const sim::LoadStart& load, int64_t) {
  load_errors_.erase(load.uid);
  store_->begin_load(load.uid);
}

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
  copy_ = Copy{copy, store_->image(copy.uid),
               PacedCopy(slots_->layout().bytes(), options_.copy_part_bytes)};
  LORATORY_ASSERT(copy_->image != nullptr, "what is copied to a slot is on the CPU");
  if (slot.last_step >= num_ended_) {
    CUevent_st* const ended = shared_of(slot.last_step).ended.get();
    LORATORY_CUDA_CHECK(cudaStreamWaitEvent(copy_stream_.get(), ended));
  }
  advance_copy(clock_.now_ns());
}

// The part under way may have ended, and the next one may begin.
void GpuExecutor::advance_copy(int64_t now_ns) {
  PacedCopy& pace = copy_->pace;
  if (pace.is_under_way() && has_copied()) pace.end_part(now_ns);
  const auto part = pace.take(now_ns, !steps_.empty());
  if (!part) return;
  Slot& slot = slot_states_[size_t(copy_->start.slot)];
  copy_part(copy_->image.get(), *part, copy_->start.slot, copy_stream_.get());
  LORATORY_CUDA_CHECK(cudaEventRecord(slot.filled.get(), copy_stream_.get()));
  LORATORY_CUDA_CHECK(cudaEventRecord(copied_.get(), copy_stream_.get()));
  slot.is_fresh = true;
}

void GpuExecutor::copy_part(const std::byte* image, PacedCopy::Part part, int32_t slot,
                            CUstream_st* stream) {
  slots_->copy(image, part, slot, stream);
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
  return plan_problem(plan, scheduler, int32_t(slot_states_.size()),
                      [&](int32_t slot) { return slot_states_[size_t(slot)].content; });
}

void GpuExecutor::wait_for_copy(CUevent_st* filled) {
  LORATORY_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), filled));
}

void GpuExecutor::wait_for_slots(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    if (row.slot == sim::kNoSlot) continue;
    Slot& slot = slot_states_[size_t(row.slot)];
    slot.last_step = num_begun_;
    if (std::exchange(slot.is_fresh, false)) wait_for_copy(slot.filled.get());
  }
}

// Blocks behind the computed tokens are new in this step.
void GpuExecutor::poison_new_blocks(const StepPlan& plan, const Scheduler& scheduler,
                                    Shared& shared) {
  auto* const blocks = reinterpret_cast<int32_t*>(shared.poisoned.get());
  int32_t count = 0;
  for (const StepRow& row : plan.rows) {
    const auto& table = scheduler.request(row.request).blocks;
    const size_t first = (row.num_computed + config_.block_size - 1) / config_.block_size;
    for (size_t i = first; i < table.size(); ++i) blocks[count++] = int32_t(table[i]);
  }
  pass_->kv().poison(blocks, count, stream_.get());
}

// A GPU that had nothing to do before this step waited for the host, if the host planned it in one
// go with the end of the step before.
void GpuExecutor::begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t now_ns) {
  const std::string what = problem(plan, scheduler);
  LORATORY_ASSERT(what.empty(), what.c_str());
  LORATORY_ASSERT(steps_.size() < kMostSteps, "one step at a time, and one ahead of it");
  Shared& shared = shared_of(num_begun_);
  const int64_t begin_ns = clock_.now_ns();
  times_.num_ahead += !steps_.empty();
  steps_.push_back({.batch = make_step_batch(
                        plan, scheduler,
                        [this](uint64_t id, int64_t position) { return sampling_of(id, position); },
                        sampled_before_),
                    .shared = &shared,
                    .begin_ns = begin_ns,
                    .continues = !steps_.empty() || now_ns <= last_end_ns_,
                    .is_late = steps_.empty() || has_passed(steps_.back().shared->ended)});
  Step& step = steps_.back();
  remember_sampled(step.batch);
  const int64_t begun_ns = clock_.now_ns();
  LORATORY_CUDA_CHECK(cudaEventRecord(shared.begun.get(), stream_.get()));
  if (!step.batch.empty()) {
    wait_for_slots(plan);
    if (options_.poison_blocks) poison_new_blocks(plan, scheduler, shared);
    step.launch_ns = enqueue(step.batch, shared) - begun_ns;
  }
  LORATORY_CUDA_CHECK(cudaEventRecord(shared.ended.get(), stream_.get()));
  ++num_begun_;
  host_.works(clock_.now_ns());
}

void GpuExecutor::remember_sampled(const StepBatch& batch) {
  sampled_before_.next_step();
  for (size_t i = 0; i < batch.sampled.size(); ++i) {
    sampled_before_.add(batch.sampled[i].request, int32_t(i));
  }
}

sim::StepResult GpuExecutor::end_step(const StepPlan&, const Scheduler&) {
  LORATORY_ASSERT(step_end_ns_.has_value(), "only what ended ends");
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  ++num_ended_;
  add_times(step);
  last_end_ns_ = *std::exchange(step_end_ns_, std::nullopt);
  take_results(step);
  if (keeps_logits_) read_logits(step);
  host_.works(clock_.now_ns());
  return {sampled_};
}

void GpuExecutor::add_times(const Step& step) {
  times_.step_ns += *step_end_ns_ - std::max(step.begin_ns, last_end_ns_);
  if (step.continues && num_ended_ > 1) {
    const Shared& before = shared_of(num_ended_ - 2);
    float gap_ms = 0;
    LORATORY_CUDA_CHECK(
        cudaEventElapsedTime(&gap_ms, before.ended.get(), step.shared->begun.get()));
    times_.waited_ns += int64_t(1e6 * double(std::max(0.0F, gap_ms)));
    if (step.is_late) times_.waited_ns += step.launch_ns;
  }
  ++times_.num_steps;
}

double GpuExecutor::last_step_ms() {
  LORATORY_ASSERT(num_ended_ > 1, "two steps have ended");
  const Shared &before = shared_of(num_ended_ - 2), &last = shared_of(num_ended_ - 1);
  float ms = 0;
  LORATORY_CUDA_CHECK(cudaEventElapsedTime(&ms, before.ended.get(), last.ended.get()));
  return double{ms};
}

void GpuExecutor::take_results(const Step& step) {
  const PassLayout& at = pass_->layout();
  const auto result = [&](int64_t offset) {
    return step.shared->results.get() + offset - at.tokens;
  };
  const auto* const tokens = reinterpret_cast<const int32_t*>(result(at.tokens));
  const auto* const logprobs = reinterpret_cast<const double*>(result(at.logprobs));
  const auto* const top_tokens = reinterpret_cast<const int32_t*>(result(at.top_tokens));
  const auto* const top_logprobs = reinterpret_cast<const double*>(result(at.top_logprobs));
  sampled_.assign(size_t(step.batch.num_columns), kNoToken);
  logprobs_.assign(size_t(step.batch.num_columns), {});
  for (size_t i = 0; i < step.batch.sampled.size(); ++i) {
    const SampledRow& row = step.batch.sampled[i];
    if (row.column < 0) continue;
    sampled_[size_t(row.column)] = tokens[i];
    if (row.how.num_top < 0) continue;
    sim::TokenLogprobs& out = logprobs_[size_t(row.column)];
    out.logprob = logprobs[i];
    const auto num_top = size_t(std::min<int64_t>(row.how.num_top, model_.config().vocab));
    for (size_t j = i * kMostLogprobs; j < i * kMostLogprobs + num_top; ++j) {
      out.top.push_back({top_tokens[j], top_logprobs[j]});
    }
  }
}

void GpuExecutor::read_logits(const Step& step) {
  const auto vocab = size_t(model_.config().vocab);
  const auto* const logits = reinterpret_cast<const float*>(step.shared->logits.get());
  logits_.assign(size_t(step.batch.num_columns), std::vector<float>(vocab, kNoLogit));
  for (size_t i = 0; i < step.batch.sampled.size(); ++i) {
    const int64_t column = step.batch.sampled[i].column;
    if (column >= 0) logits_[size_t(column)].assign(logits + i * vocab, logits + (i + 1) * vocab);
  }
}

// --- time -------------------------------------------------------------------------------------

// What has ended gets the time at which that was seen.
void GpuExecutor::look() {
  const int64_t now = clock_.now_ns();
  const auto see = [now](std::optional<int64_t>& end, bool has_ended) {
    if (!end && has_ended) end = now;
  };
  see(load_end_ns_, store_ != nullptr && store_->has_ended());
  if (copy_) advance_copy(now);
  see(copy_end_ns_, copy_ && copy_->pace.has_ended());
  see(step_end_ns_, !steps_.empty() && has_passed(steps_.front().shared->ended));
}

Completion GpuExecutor::next(int64_t until_ns) {
  host_.waits(clock_.now_ns());
  const Completion first = wait(until_ns);
  host_.wakes(clock_.now_ns());
  times_.host_ns = host_.total_ns();
  return first;
}

Completion GpuExecutor::wait(int64_t until_ns) {
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
    if ((!loads && !copy_ && steps_.empty()) || left <= 0) return {};
    // The GPU says nothing when it is done: it is asked again and again.
    if (copy_ || !steps_.empty())
      std::this_thread::yield();
    else
      store_->wait(std::chrono::nanoseconds(std::min(left, kLongestWaitNs)));
  }
}

}  // namespace loratory::gpu
