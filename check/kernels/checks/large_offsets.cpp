#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "check/cases/draw_case.hpp"
#include "check/kernels/checks/checks.hpp"
#include "check/kernels/checks/crowd.hpp"
#include "check/kernels/far_memory.hpp"
#include "check/kernels/reference_call.hpp"

// Slots, or rows, beyond 2^31 elements: 32-bit offsets wrap. Kernels get there in two ways.
//
//   apart   two or three rows whose stride is 2^31 elements, or 2^30: Triton computes in 64 bits
//           where the stride does not fit in 32. For kernels that take gaps.
//   a pool  so many slots, or tokens, that the last lie there, one behind the other as engines have
//           them; few have an adapter.
//
// Most of that memory is never touched.

namespace loratory::check {

namespace {

constexpr std::string_view kName = "large_offsets";

struct Distance {
  int64_t stride;
  int32_t last;  // row, or slot, and there are tokens of all
  std::string_view text;
};
constexpr std::array<Distance, 2> kDistances{
    {{(int64_t(1) << 31) + 64, 1, "2^31"}, {(int64_t(1) << 30) + 64, 2, "2^30"}}};

bool has_slices(const CaseRun& run) {
  return (run.kernel().claims().layouts & 1U << LORATORY_LAYOUT_SLICES) != 0;
}

// Which tensors an operation has.
std::vector<Far> tensors_of(const Case& c) {
  std::vector<Far> out;
  if (!c.expands()) out.insert(out.end(), {Far::x, Far::a});
  if (!c.shrinks()) out.insert(out.end(), {Far::y, Far::b});
  return out;
}

// Calls a plugin's functions on what was placed.
void call_plugin(const CaseRun& run, PlacedLayer& layer, PlacedCall& call, FarMemory& place) {
  const Kernel& kernel = run.kernel();
  const LoratoryPlugin& plugin = kernel.plugin();
  void* const stream = run.memory().stream();
  void* state = nullptr;
  layer.layer.slices = layer.slices.data();
  must_succeed(kernel, "create()",
               [&] { return plugin.create(plugin.context, &layer.layer, &state); });
  const std::unique_ptr<void, void (*)(void*)> owner(state, plugin.destroy);
  const int64_t bytes = workspace_bytes(kernel, state, call.step.num_tokens);
  call.call.step = &call.step;
  call.call.workspace = bytes > 0 ? place.workspace(size_t(bytes)) : nullptr;
  call.call.workspace_bytes = bytes;
  if (plugin.prepare != nullptr) {
    must_succeed(kernel, "prepare()", [&] { return plugin.prepare(state, &call.step, stream); });
  }
  must_succeed(kernel, "run()", [&] { return plugin.run(state, &call.call, stream); });
  run.memory().synchronize();
}

bool is_right_nearby(CaseRun& run, const CaseData& data) {
  Trial trial(run.kernel(), run.memory(), data, data.step.num_tokens());
  const Outcome outcome = run.run(trial, data.step);
  const std::vector<Stretch> at = data.covered(data.step);
  const reference::Tensor want = reference_output(data, data.step);
  return !run.has_trespassed() && differing(outcome.output, at, want, at, true).empty();
}

// --- rows that lie apart --------------------------------------------------------------------

LoratoryTensor& tensor(Far far, PlacedLayer& layer, PlacedCall& call) {
  const bool is_stacked = layer.layer.layout == LORATORY_LAYOUT_STACKED;
  if (far == Far::a) return is_stacked ? layer.layer.stacked_a : layer.slices[0].a;
  if (far == Far::b) return is_stacked ? layer.layer.stacked_b : layer.slices[0].b;
  return far == Far::x ? call.call.x : call.call.y;
}

// Kernels count in other sizes too, which may be what is too much.
std::string sizes_of(const LoratoryTensor& far, const PlacedLayer& layer, const PlacedCall& call) {
  return fmt::format("{} slots, {} tokens, stride {}", layer.layer.num_slots, call.step.num_tokens,
                     far.strides[0]);
}

const reference::Tensor& tensor(Far far, const CaseData& data) {
  if (far == Far::a) return *data.slices[0].a;
  if (far == Far::b) return *data.slices[0].b;
  return far == Far::x ? *data.step.x : *data.step.y;
}

// One row after the other, as the host has them.
Places side_by_side(const reference::Tensor& host) {
  Places out{.at = {}, .count = host.shape()[0], .stride = host.strides()[0]};
  for (int64_t i = 0; i < out.count; ++i) out.at.push_back(i);
  return out;
}

void look_apart(CaseRun& run, const Case& c, Far far, const Distance& distance) {
  const CaseData data(c, run.beyond());
  // Other checks are for a kernel that is wrong nearby, or that takes no gap at all.
  if (!is_right_nearby(run, data)) return;
  Case near = c;
  near.gaps = c.layout != LORATORY_LAYOUT_DENSE;
  if (near.gaps && !is_right_nearby(run, CaseData(near, run.beyond()))) return;
  FarMemory place(run.memory());
  PlacedLayer layer = place_layer(data, c.num_tokens, place);
  PlacedCall call = place_call(data, data.step, place);
  Places apart = side_by_side(tensor(far, data));
  apart.stride = distance.stride;
  place.spread(tensor(far, layer, call), tensor(far, data), apart);
  call_plugin(run, layer, call, place);
  Outcome outcome{data.output(data.step), {}};
  place.collect(c.shrinks() ? call.call.h : call.call.y, outcome.output,
                far == Far::y ? apart : side_by_side(outcome.output));
  run.expect_reference(kName, data, data.step, outcome,
                       fmt::format("{} lie {} elements apart ({})", name(far), distance.text,
                                   sizes_of(tensor(far, layer, call), layer, call)));
}

// --- many of them ---------------------------------------------------------------------------

void look_at_pool(CaseRun& run, const Case& c, Far far, const Crowd& crowd) {
  const CaseData data(c, run.beyond());
  const int64_t bytes = largest_bytes(data, crowd);
  if (bytes > run.max_bytes()) {
    return run.leave_out(kName, fmt::format("{} ({} bytes, beyond --max-bytes)", name(far), bytes));
  }
  if (!is_right_nearby(run, data)) return;
  FarMemory place(run.memory());
  CrowdedCall in_crowd(data, crowd, place);
  call_plugin(run, in_crowd.layer, in_crowd.call, place);
  const Outcome outcome{in_crowd.output(place), {}};
  const LoratoryTensor& large = tensor(far, in_crowd.layer, in_crowd.call);
  run.expect_reference(kName, data, data.step, outcome,
                       fmt::format("{} in a tensor of more than 2^31 elements ({})", name(far),
                                   sizes_of(large, in_crowd.layer, in_crowd.call)));
}

// Memory that is not there is no finding. Where the device is lost, the report says at what.
template <typename Look>
void look_far(CaseRun& run, Far far, const Look& look) {
  try {
    look();
  } catch (const NoRoom&) {  // these gigabytes are not there, and other cases want fewer
    run.leave_out(kName, fmt::format("{} (no memory)", name(far)));
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format("{}, with {} beyond 2^31 elements", error.what(), name(far)));
  }
}

void look_at_one_apart(CaseRun& run) {
  const LoratoryClaims& claims = run.kernel().claims();
  const Distance& distance = kDistances[run.pick(62, kDistances.size())];
  const int64_t count = distance.last + 1;
  const auto has_room = [&](int64_t most) { return most == 0 || most >= count; };
  if (!has_room(claims.max_slots) || !has_room(claims.max_tokens)) return;
  std::vector<Far> all = tensors_of(run.shape());
  if (!has_slices(run)) std::erase_if(all, [](Far far) { return far == Far::a || far == Far::b; });
  Case c = small_case(run.shape(), claims, distance.last + 1);
  if (has_slices(run)) c.layout = LORATORY_LAYOUT_SLICES;
  const Far far = all[run.pick(61, all.size())];
  look_far(run, far, [&] { look_apart(run, c, far, distance); });
}

void look_at_pools(CaseRun& run) {
  if (run.max_bytes() == 0) return run.leave_out(kName, "many slots and rows (--max-bytes 0)");
  for (const Far far : tensors_of(run.shape())) {
    Case c = small_case(run.shape(), run.kernel().claims(), 2);
    const std::optional<Crowd> crowd = make_crowd(c, run.kernel().claims(), far);
    if (!crowd) {
      run.leave_out(kName, fmt::format("{} (the claims allow too few)", name(far)));
      continue;
    }
    try {
      look_far(run, far, [&] { look_at_pool(run, c, far, *crowd); });
    } catch (const KernelFailed& error) {  // better a refusal than a wrong result
      run.leave_out(kName, fmt::format("{} ({})", name(far), error.what()));
    }
    if (run.has_found(kName)) return;
  }
}

}  // namespace

void look_at_large_offsets(CaseRun& run) {
  const Case& of = run.shape();
  if (of.is_quantized()) return run.leave_out(kName, "8-bit weights");
  if (of.operation == LORATORY_OP_EMBEDDING) return run.leave_out(kName, "embeddings");
  // Who writes beyond the end would leave this memory, and the process.
  if (run.has_trespassed()) return;
  const bool is_on_device = run.kernel().is_on_device();  // gigabytes, for real
  const bool takes_gaps = run.kernel().has(LORATORY_TAKES_GAPS);
  if (takes_gaps && (!is_on_device || run.pick(60, 4) == 0)) look_at_one_apart(run);
  if (!run.has_found(kName) && run.pick(63, is_on_device ? 4 : 16) == 0) look_at_pools(run);
}

}  // namespace loratory::check
