#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "check/cases/draw_case.hpp"
#include "check/kernels/checks/checks.hpp"
#include "check/kernels/reference_call.hpp"

// Slots, or rows, beyond 2^31 elements: 32-bit offsets wrap. Either the second lies that far, or
// the third, with a stride that fits in 32 bits: Triton computes in 64 where the stride does not.
// Most of that memory is never touched; before the first row there is as much again, where offsets
// that wrapped below 0 lead.

namespace loratory::check {

using reference::Tensor;

namespace {

constexpr int64_t kBefore = int64_t(1) << 31;

struct Distance {
  int64_t stride;
  int32_t last;  // row, or slot, and there are tokens of all
  std::string_view text;
};
constexpr std::array<Distance, 2> kDistances{
    {{(int64_t(1) << 31) + 64, 1, "2^31"}, {(int64_t(1) << 30) + 64, 2, "2^30"}}};

// Every part in memory of its own.
class Separately final : public Placing {
 public:
  explicit Separately(Memory& memory) : memory_(&memory) {}
  ~Separately() override {
    for (void* const address : owned_) memory_->release(address);
  }
  Separately(const Separately&) = delete;
  Separately& operator=(const Separately&) = delete;

  void* operator()(const Part& part) override {
    owned_.push_back(memory_->allocate(part.bytes + 1));
    if (part.host != nullptr) memory_->write(owned_.back(), part.host, part.bytes);
    return owned_.back();
  }
  // Rows of the first axis `stride` elements apart.
  void spread(LoratoryTensor& t, const Tensor& host, int64_t stride) {
    const auto size = int64_t(size_bytes(host.dtype()));
    const int64_t near = host.strides()[0] * size, far = stride * size, rows = t.shape[0];
    owned_.push_back(memory_->reserve(size_t(kBefore * size + far * (rows - 1) + near)));
    t.data = static_cast<std::byte*>(owned_.back()) + kBefore * size;
    t.strides[0] = stride;
    for (int64_t row = 0; row < rows; ++row) {
      std::byte* const to = static_cast<std::byte*>(t.data) + row * far;
      memory_->write(to, host.bytes().data() + row * near, size_t(near));
    }
  }
  void collect(const LoratoryTensor& t, Tensor& host) const {
    const auto size = int64_t(size_bytes(host.dtype()));
    const int64_t near = host.strides()[0] * size;
    for (int64_t row = 0; row < t.shape[0]; ++row) {
      const std::byte* const from =
          static_cast<const std::byte*>(t.data) + row * t.strides[0] * size;
      memory_->read(host.bytes().data() + row * near, from, size_t(near));
    }
  }
  void* workspace(size_t bytes) {
    const std::vector<std::byte> nan(bytes + 1, std::byte{0xFF});
    return (*this)({"the workspace", 0, nan.data(), bytes, false});
  }

 private:
  Memory* memory_;
  std::vector<void*> owned_;
};

bool has_slices(const CaseRun& run) {
  return (run.kernel().claims().layouts & 1U << LORATORY_LAYOUT_SLICES) != 0;
}

// Small, with two or three slots, and a token of each.
Case far_case(const CaseRun& run, int32_t last) {
  const LoratoryClaims& claims = run.kernel().claims();
  const auto some = [](int64_t value, int64_t multiple) {
    return std::max<int64_t>(1, multiple) *
           std::max<int64_t>(1, std::min<int64_t>(value, 48) / std::max<int64_t>(1, multiple));
  };
  Case c = run.shape();
  const auto multiple_of = [&](int64_t claimed) {
    return size_multiple(claims, claimed, c.weight);
  };
  c.num_in = some(c.num_in, multiple_of(claims.num_in_multiple));
  c.num_out = {some(c.num_out[0], multiple_of(claims.num_out_multiple))};
  c.max_rank = int32_t(some(c.max_rank, multiple_of(claims.rank_multiple)));
  c.ranks.assign(size_t(last) + 1, {c.max_rank});
  c.slots.clear();
  for (int32_t slot = last; slot >= 0; --slot) c.slots.push_back(slot);
  c.num_tokens = last + 1;
  c.offset_start = 0;
  c.gaps = false;
  c.alignment = 0;
  if (has_slices(run)) c.layout = LORATORY_LAYOUT_SLICES;
  c.fill = Fill::small_integers;
  return c;
}

// Which tensor lies far apart.
enum class Far : uint8_t { a, b, x, y };
std::string_view name(Far far) {
  constexpr std::array<std::string_view, 4> kNames{"slots of A", "slots of B", "rows of x",
                                                   "rows of y"};
  return kNames[size_t(far)];
}

void spread(Far far, int64_t stride, const CaseData& data, PlacedLayer& layer, PlacedCall& call,
            Separately& place) {
  if (far == Far::a) place.spread(layer.slices[0].a, *data.slices[0].a, stride);
  if (far == Far::b) place.spread(layer.slices[0].b, *data.slices[0].b, stride);
  if (far == Far::x) place.spread(call.call.x, *data.step.x, stride);
  if (far == Far::y) place.spread(call.call.y, *data.step.y, stride);
}

// Calls a plugin's functions on what was placed.
void call_plugin(const CaseRun& run, PlacedLayer& layer, PlacedCall& call, Separately& place) {
  const LoratoryPlugin& plugin = run.kernel().plugin();
  Memory& memory = run.memory();
  const auto require = [](int status) {
    if (status != 0)
      throw KernelFailed(fmt::format("a function returned {} for far tensors", status));
  };
  void* state = nullptr;
  layer.layer.slices = layer.slices.data();
  require(plugin.create(plugin.context, &layer.layer, &state));
  const int64_t bytes = plugin.workspace_bytes == nullptr ? 0 : plugin.workspace_bytes(state, 3);
  call.call.step = &call.step;
  call.call.workspace = bytes > 0 ? place.workspace(size_t(bytes)) : nullptr;
  call.call.workspace_bytes = bytes;
  int status = plugin.prepare == nullptr ? 0 : plugin.prepare(state, &call.step, memory.stream());
  if (status == 0) status = plugin.run(state, &call.call, memory.stream());
  memory.synchronize();
  plugin.destroy(state);
  require(status);
}

bool is_right_nearby(CaseRun& run, const CaseData& data) {
  Trial trial(run.kernel(), run.memory(), data, 3);
  const Outcome outcome = run.run(trial, data.step);
  const std::vector<Stretch> at = data.covered(data.step);
  const Tensor want = reference_output(data, data.step);
  return run.is_clean() && differing(outcome.output, at, want, at, true).empty();
}

void look_at(CaseRun& run, const Case& c, Far far, const Distance& distance) {
  const CaseData data(c, run.beyond());
  if (!is_right_nearby(run, data)) return;  // other checks are for that
  Separately place(run.memory());
  PlacedLayer layer = place_layer(data, 3, place);
  PlacedCall call = place_call(data, data.step, place);
  try {
    spread(far, distance.stride, data, layer, call, place);
  } catch (const NoRoom&) {
    return;  // these gigabytes are not there, and other cases want fewer
  }
  call_plugin(run, layer, call, place);
  Outcome outcome{data.output(data.step), {}};
  place.collect(c.shrinks() ? call.call.h : call.call.y, outcome.output);
  run.expect_reference("large_offsets", data, data.step, outcome,
                       fmt::format("{} lie {} elements apart", name(far), distance.text));
}

}  // namespace

void look_at_large_offsets(CaseRun& run) {
  const Case& of = run.shape();
  if (!run.kernel().has(LORATORY_TAKES_GAPS) || of.is_quantized() ||
      of.operation == LORATORY_OP_EMBEDDING) {
    return;
  }
  if (run.kernel().is_on_device() && run.pick(60, 4) != 0) return;  // gigabytes, for real
  if (!run.is_clean())
    return;  // who writes beyond the end would leave this memory, and the process
  const LoratoryClaims& claims = run.kernel().claims();
  const Distance& distance = kDistances[run.pick(62, kDistances.size())];
  const int64_t count = distance.last + 1;
  const auto has_room = [&](int64_t most) { return most == 0 || most >= count; };
  if (!has_room(claims.max_slots) || !has_room(claims.max_tokens)) return;
  std::vector<Far> all;
  if (!of.expands()) all.push_back(Far::x);
  if (!of.expands() && has_slices(run)) all.push_back(Far::a);
  if (!of.shrinks()) all.push_back(Far::y);
  if (!of.shrinks() && has_slices(run)) all.push_back(Far::b);
  look_at(run, far_case(run, distance.last), all[run.pick(61, all.size())], distance);
}

}  // namespace loratory::check
