#include "check/kernels/trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "check/kernels/expected.hpp"
#include "check/library/guarded_call.hpp"

namespace loratory::check {

using reference::Tensor;

// Twice through the parts: first they get their places, then their addresses are known.
class Trial::InArena final : public Placing {
 public:
  InArena(Arena& arena, int32_t alignment) : arena_(&arena), alignment_(size_t(alignment)) {
    arena.clear();
  }
  void* operator()(const Part& part) override {
    const size_t region = next_++;
    if (is_placed_) return arena_->address(region);
    if (!part.is_input) output_ = region;
    const bool is_shifted = alignment_ > 0 && part.element_bytes > 0;
    arena_->add({.name = part.slice == 0 ? std::string(part.name)
                                         : fmt::format("{} of slice {}", part.name, part.slice),
                 .host = part.host,
                 .bytes = part.bytes,
                 .is_input = part.is_input,
                 .shift = is_shifted ? std::max(alignment_, part.element_bytes) : 0});
    return nullptr;
  }
  void place() {
    arena_->place();
    is_placed_ = true;
    next_ = 0;
  }
  size_t output() const { return output_; }

 private:
  Arena* arena_;
  size_t alignment_;
  size_t next_ = 0, output_ = 0;
  bool is_placed_ = false;
};

Trial::Trial(const Kernel& kernel, Memory& memory, CaseData data, int64_t max_tokens)
    : kernel_(&kernel),
      memory_(&memory),
      data_(std::move(data)),
      max_tokens_(max_tokens),
      weights_(memory),
      tensors_(memory) {
  create();
}

Trial::~Trial() { destroy(); }

void Trial::create() {
  InArena place(weights_, data_.shape.alignment);
  place_layer(data_, max_tokens_, place);
  place.place();
  layer_ = place_layer(data_, max_tokens_, place);
  layer_.layer.slices = layer_.slices.data();
  weights_.upload();
  const LoratoryPlugin& plugin = kernel_->plugin();
  must_succeed(*kernel_, "create()",
               [&] { return plugin.create(plugin.context, &layer_.layer, &state_); });
}

void Trial::destroy() {
  const OwnArithmetic own;
  if (state_ != nullptr) kernel_->plugin().destroy(state_);
  state_ = nullptr;
}

void Trial::rebuild(CaseData data) {
  destroy();
  data_ = std::move(data);
  create();
}

void Trial::change(const CaseData& to, int64_t slot) {
  // The tensors stay where they are in data_: only their bytes are others.
  copy_slot(to, data_, slot);
  weights_.upload();
  const auto changed = kernel_->plugin().weights_changed;
  if (changed == nullptr) return;
  must_succeed(*kernel_, "weights_changed()", [&] { return changed(state_, int32_t(slot)); });
}

void Trial::place_step(const StepData& step) {
  const int64_t bytes = workspace_bytes(*kernel_, state_, step.num_tokens());
  const Part workspace{"the workspace", 0, nullptr, size_t(bytes), false};
  InArena place(tensors_, data_.shape.alignment);
  place(workspace);
  place_call(data_, step, place);
  output_ = place.output();
  place.place();
  void* const address = place(workspace);
  call_ = place_call(data_, step, place);
  call_.call.step = &call_.step;
  call_.call.workspace = bytes == 0 ? nullptr : address;
  call_.call.workspace_bytes = bytes;
  tensors_.upload();
}

void Trial::prepare() {
  const auto prepare = kernel_->plugin().prepare;
  if (prepare == nullptr) return;
  must_succeed(*kernel_, "prepare()",
               [&] { return prepare(state_, &call_.step, memory_->stream()); });
}

void Trial::launch() {
  must_succeed(*kernel_, "run()",
               [&] { return kernel_->plugin().run(state_, &call_.call, memory_->stream()); });
}

namespace {

std::string element_name(const CaseData& data, const Tensor& output, size_t byte) {
  const auto element = int64_t(byte / size_bytes(output.dtype()));
  const auto& strides = output.strides();
  if (data.shape.shrinks()) {
    const int64_t slice = strides[0] == 0 ? 0 : element / strides[0];
    const int64_t rest = element - slice * strides[0];
    return fmt::format("h of slice {}, row {}, rank {}", slice, rest / strides[1],
                       rest % strides[1]);
  }
  const int64_t column = element % strides[0];
  return fmt::format("y, row {}, column {}{}", element / strides[0], column,
                     column >= output.shape()[1] ? " (between rows)" : "");
}

void allow_zeros_beyond_rank(const CaseData& data, const StepData& step,
                             std::span<const std::byte> after, std::vector<std::byte>& expected) {
  const Tensor& h = *step.h;
  const size_t size = size_bytes(h.dtype());
  for (int64_t i = 0; i < h.shape()[0]; ++i) {
    for (int64_t row = 0; row < h.shape()[1]; ++row) {
      for (int64_t j = 0; j < h.shape()[2]; ++j) {
        const size_t at = size_t(i * h.strides()[0] + row * h.strides()[1] + j) * size;
        const double value = reference::load(h.dtype(), after.data() + at);
        if (!may_write_beyond_rank(data, step, row, value)) continue;
        std::memcpy(expected.data() + at, after.data() + at, size);
      }
    }
  }
}

}  // namespace

Outcome Trial::finish(const StepData& step) {
  memory_->synchronize();
  Outcome out{data_.output(step), {}};
  for (Arena* arena : {&tensors_, &weights_}) {
    for (const Arena::Change& change : arena->read_back()) {
      out.trespasses.push_back({change.in_guard ? "guards" : "inputs_unchanged",
                                fmt::format("{} was written", change.where)});
    }
  }
  const auto after = tensors_.after(output_), before = tensors_.before(output_);
  std::ranges::copy(after, out.output.bytes().begin());
  std::vector<std::byte> expected(before.begin(), before.end());
  const size_t size = size_bytes(out.output.dtype());
  for (const Stretch& s : data_.covered(step)) {
    const size_t begin = size_t(s.element) * size;
    std::memcpy(expected.data() + begin, after.data() + begin, size_t(s.count) * size);
  }
  if (data_.beyond == BeyondRank::zeros && data_.shape.shrinks()) {
    allow_zeros_beyond_rank(data_, step, after, expected);
  }
  if (!std::ranges::equal(expected, after)) {
    const auto at = size_t(std::ranges::mismatch(expected, after).in1 - expected.begin());
    out.trespasses.push_back(
        {"only_covered_written", element_name(data_, out.output, at) + " was written"});
  }
  return out;
}

Outcome Trial::run(const StepData& step) {
  place_step(step);
  prepare();
  launch();
  return finish(step);
}

std::vector<Outcome> Trial::capture_and_replay(const StepData& step,
                                               const std::vector<StepData>& others) {
  place_step(step);
  prepare();
  memory_->begin_capture();
  try {
    launch();
  } catch (...) {
    try {
      memory_->end_capture();
    } catch (const DeviceError&) {  // the capture is void; what the kernel said counts
    }
    throw;
  }
  memory_->end_capture();
  std::vector<Outcome> out;
  for (const StepData& other : others) {
    place_step(other);
    prepare();
    memory_->replay();
    out.push_back(finish(other));
  }
  return out;
}

}  // namespace loratory::check
