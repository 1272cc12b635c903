#include "check/kernels/checks/crowd.hpp"

#include <algorithm>
#include <array>

#include "check/cases/draw_case.hpp"
#include "reference/base/integers.hpp"

namespace loratory::check {

using reference::Tensor;

namespace {

int64_t some(int64_t value, int64_t most, int64_t multiple) {
  multiple = std::max<int64_t>(1, multiple);
  return multiple * std::max<int64_t>(1, std::min(value, most) / multiple);
}

struct Multiples {
  int64_t num_in, num_out, rank;
};
Multiples multiples_of(const Case& c, const LoratoryClaims& claims) {
  return {size_multiple(claims, claims.num_in_multiple, c.weight),
          size_multiple(claims, claims.num_out_multiple, c.weight),
          size_multiple(claims, claims.rank_multiple, c.weight)};
}

bool has_room(int64_t most, int64_t count) { return most == 0 || most >= count; }

// Rows of x, h or y for each token.
int64_t rows_per_token(const Case& c, Far far) {
  return far == Far::x && !c.x_by_row ? 1 : c.experts_per_token;
}

// Every row of the tokens at `tokens`.
std::vector<int64_t> rows_of(const std::vector<int64_t>& tokens, int64_t per_token) {
  std::vector<int64_t> out;
  for (const int64_t token : tokens) {
    for (int64_t i = 0; i < per_token; ++i) out.push_back(token * per_token + i);
  }
  return out;
}

Places slots_in(const Crowd& crowd, const Tensor& host) {
  return {crowd.slots, crowd.num_slots, host.strides()[0]};
}
Places rows_in(const Crowd& crowd, const Tensor& host, int64_t per_token, size_t axis) {
  return {rows_of(crowd.tokens, per_token), crowd.num_tokens * per_token, host.strides()[axis]};
}

// Those of the case at their places, `per` numbers each, and otherwise(i) at index i.
template <typename Number, typename Otherwise>
std::vector<Number> scattered(const std::vector<Number>& from, const std::vector<int64_t>& at,
                              int64_t count, int64_t per, const Otherwise& otherwise) {
  std::vector<Number> out(size_t(count * per));
  for (size_t i = 0; i < out.size(); ++i) out[i] = otherwise(int64_t(i));
  for (size_t i = 0; i < at.size(); ++i) {
    std::copy_n(from.begin() + int64_t(i) * per, per, out.begin() + at[i] * per);
  }
  return out;
}

Crowd among(int64_t num_slots, int64_t num_tokens) {
  return {.slots = {0, num_slots - 1},
          .tokens = {0, num_tokens - 2, num_tokens - 1},
          .num_slots = num_slots,
          .num_tokens = num_tokens};
}

}  // namespace

std::string_view name(Far far) {
  constexpr std::array<std::string_view, 4> kNames{"slots of A", "slots of B", "rows of x",
                                                   "rows of y"};
  return kNames[size_t(far)];
}

Case small_case(const Case& shape, const LoratoryClaims& claims, int32_t num_slots) {
  constexpr int64_t kSmall = 48;
  Case c = shape;
  const Multiples multiple = multiples_of(c, claims);
  c.num_in = some(c.num_in, kSmall, multiple.num_in);
  c.num_out = {some(c.num_out[0], kSmall, multiple.num_out)};
  c.max_rank = int32_t(some(c.max_rank, kSmall, multiple.rank));
  c.ranks.assign(size_t(num_slots), {c.max_rank});
  c.slots.clear();
  for (int32_t slot = num_slots - 1; slot >= 0; --slot) c.slots.push_back(slot);
  c.num_tokens = num_slots;
  c.offset_start = 0;
  c.gaps = false;
  c.alignment = 0;
  c.fill = Fill::small_integers;
  return c;
}

std::optional<Crowd> make_crowd(Case& c, const LoratoryClaims& claims, Far far) {
  constexpr int64_t kWide = int64_t(1) << 16, kWidest = int64_t(1) << 18;
  constexpr int64_t kRoomForRanks = 64;
  constexpr int32_t kRank = 8;
  const bool is_slots = far == Far::a || far == Far::b;
  const Multiples multiple = multiples_of(c, claims);
  if (is_slots) {  // a slot is experts times rank times width, and two of them are filled
    const int64_t room = kRoomForRanks / c.num_experts;
    c.max_rank = int32_t(some(claims.max_rank == 0 ? room : claims.max_rank, room, multiple.rank));
  }
  c.ranks.assign(2, {std::min(c.max_rank, kRank)});
  c.slots = {1, 0, 1};
  c.num_tokens = 3;
  c.absent_experts = c.disabled_slots = false;
  const bool is_in = far == Far::a || far == Far::x;
  for (int64_t wide = kWide; wide <= (is_slots ? kWidest / 2 : kWidest); wide *= 2) {
    const int64_t unit = is_in ? multiple.num_in : multiple.num_out;
    const int64_t size = ceil_div(wide, unit) * unit;
    (is_in ? c.num_in : c.num_out[0]) = size;
    const int64_t step =
        is_slots ? size * c.max_rank * c.num_experts : size * rows_per_token(c, far);
    const Crowd crowd =
        is_slots ? among(ceil_div(kWraps, step) + 2, 3) : among(2, ceil_div(kWraps, step) + 3);
    if (has_room(claims.max_slots, crowd.num_slots) &&
        has_room(claims.max_tokens, crowd.num_tokens)) {
      return crowd;
    }
  }
  return std::nullopt;
}

int64_t largest_bytes(const CaseData& data, const Crowd& crowd) {
  const Case& c = data.shape;
  int64_t out = 0;
  const auto see = [&](const std::optional<Tensor>& t, bool is_weight, Far far) {
    if (!t) return;
    const Places places =
        is_weight ? slots_in(crowd, *t) : rows_in(crowd, *t, rows_per_token(c, far), 0);
    out = std::max(out, FarMemory::bytes_of(*t, places));
  };
  for (const SliceData& slice : data.slices) see(slice.a, true, Far::a), see(slice.b, true, Far::b);
  see(data.stacked_a, true, Far::a), see(data.stacked_b, true, Far::b);
  see(data.step.x, false, Far::x), see(data.step.y, false, Far::y);
  return out;
}

CrowdedCall::CrowdedCall(const CaseData& data, const Crowd& crowd, FarMemory& place)
    : layer(place_layer(data, crowd.num_tokens, place)),
      call(place_call(data, data.step, place)),
      data_(&data),
      crowd_(&crowd) {
  crowd_layer(place);
  crowd_step(place);
}

void CrowdedCall::crowd_layer(FarMemory& place) {
  layer.layer.num_slots = crowd_->num_slots;
  const auto per_slot = [&](const auto& from) {
    using Number = typename std::decay_t<decltype(from)>::value_type;
    return scattered(from, crowd_->slots, crowd_->num_slots, data_->shape.num_experts,
                     [](int64_t) { return Number(0); });
  };
  const auto spread = [&](LoratoryTensor& t, const std::optional<Tensor>& host) {
    if (host) place.spread(t, *host, slots_in(*crowd_, *host));
  };
  for (size_t i = 0; i < data_->slices.size(); ++i) {
    LoratorySlice& slice = layer.slices[i];
    ranks_.push_back(per_slot(data_->slices[i].ranks));
    scalings_.push_back(per_slot(data_->slices[i].scalings));
    slice.host_ranks = ranks_.back().data();
    slice.ranks = place.copy(ranks_.back());
    slice.host_scalings = scalings_.back().data();
    slice.scalings = place.copy(scalings_.back());
    spread(slice.a, data_->slices[i].a);
    spread(slice.b, data_->slices[i].b);
  }
  spread(layer.layer.stacked_a, data_->stacked_a);
  spread(layer.layer.stacked_b, data_->stacked_b);
}

void CrowdedCall::crowd_step(FarMemory& place) {
  const Case& c = data_->shape;
  const StepData& step = data_->step;
  const int64_t k = c.experts_per_token;
  std::vector<int32_t> slots;
  for (const int32_t slot : step.slots) slots.push_back(int32_t(crowd_->slots[size_t(slot)]));
  slots_ = scattered(slots, crowd_->tokens, crowd_->num_tokens, 1, [](int64_t) { return -1; });
  call.step.num_tokens = crowd_->num_tokens;
  call.step.host_slots = slots_.data();
  call.step.slots = place.copy(slots_);
  if (c.has_experts()) {
    experts_ = scattered(step.experts, crowd_->tokens, crowd_->num_tokens, k,
                         [&](int64_t row) { return int32_t(row % k); });
    call.step.host_experts = experts_.data();
    call.step.experts = place.copy(experts_);
  }
  if (!step.router_weights.empty()) {
    call.step.router_weights = place.copy(scattered(
        step.router_weights, crowd_->tokens, crowd_->num_tokens, k, [](int64_t) { return 1.0F; }));
  }
  const auto spread = [&](LoratoryTensor& t, const std::optional<Tensor>& host, int64_t per_token,
                          size_t axis) {
    if (host) place.spread(t, *host, rows_in(*crowd_, *host, per_token, axis), axis);
  };
  spread(call.call.x, step.x, rows_per_token(c, Far::x), 0);
  spread(call.call.h, step.h, k, 1);
  spread(call.call.y, step.y, k, 0);
}

Tensor CrowdedCall::output(const FarMemory& place) const {
  Tensor out = data_->output(data_->step);
  const bool shrinks = data_->shape.shrinks();
  const size_t axis = shrinks ? 1 : 0;
  place.collect(shrinks ? call.call.h : call.call.y, out,
                rows_in(*crowd_, out, data_->shape.experts_per_token, axis), axis);
  return out;
}

}  // namespace loratory::check
