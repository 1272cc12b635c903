#include "check/kernels/shrink_case.hpp"

#include <algorithm>
#include <vector>

#include "check/cases/case_data.hpp"
#include "check/cases/draw_case.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

using Cases = std::vector<Case>;

int64_t down_to(int64_t value, int64_t multiple) {
  return multiple > 1 ? std::max(multiple, value / multiple * multiple)
                      : std::max<int64_t>(1, value);
}

// Values between 1 and `value` worth a try: halves first, then one less.
std::vector<int64_t> smaller(int64_t value, int64_t multiple) {
  std::vector<int64_t> out;
  for (int64_t cut = value; cut > 0; cut /= 2) {
    const int64_t candidate = down_to(value - cut, multiple);
    if (candidate < value && (out.empty() || out.back() != candidate)) out.push_back(candidate);
  }
  return out;
}

// Token by token, so that some of them can go.
void add_fewer_tokens(const Case& c, Cases& out) {
  Case explicit_slots = c;
  if (c.slots.empty()) explicit_slots.slots = CaseData(c).step.slots;
  const auto count = int64_t(explicit_slots.slots.size());
  for (int64_t part = count; part >= 1; part /= 2) {
    for (int64_t begin = 0; begin + part <= count && part < count; begin += part) {
      Case fewer = explicit_slots;
      fewer.slots.erase(fewer.slots.begin() + begin, fewer.slots.begin() + begin + part);
      fewer.num_tokens = int64_t(fewer.slots.size());
      out.push_back(fewer);
      if (out.size() > 24) return;
    }
  }
}

void add_fewer_slots(const Case& c, Cases& out) {
  for (int64_t s = c.num_slots() - 1; s >= 0 && c.num_slots() > 1; --s) {
    Case fewer = c;
    fewer.ranks.erase(fewer.ranks.begin() + s);
    if (std::ranges::find(c.slots, int32_t(s)) != c.slots.end()) continue;
    for (int32_t& slot : fewer.slots) slot -= slot > s ? 1 : 0;
    out.push_back(fewer);
  }
}

void add_fewer_slices(const Case& c, Cases& out) {
  for (size_t i = 0; i < c.num_out.size() && c.num_out.size() > 1; ++i) {
    Case fewer = c;
    fewer.num_out.erase(fewer.num_out.begin() + ptrdiff_t(i));
    for (auto& of_slot : fewer.ranks) {
      if (of_slot.size() > 1) of_slot.erase(of_slot.begin() + ptrdiff_t(i));
    }
    out.push_back(fewer);
  }
}

void add_smaller_sizes(const Case& c, const LoratoryClaims& claims, Cases& out) {
  const auto multiple_of = [&](int64_t claimed) {
    return size_multiple(claims, claimed, c.weight);
  };
  for (const int64_t num_in : smaller(c.num_in, multiple_of(claims.num_in_multiple))) {
    out.push_back(c), out.back().num_in = num_in;
  }
  for (size_t i = 0; i < c.num_out.size(); ++i) {
    for (const int64_t n : smaller(c.num_out[i], multiple_of(claims.num_out_multiple))) {
      out.push_back(c), out.back().num_out[i] = n;
    }
  }
  for (const int64_t rank : smaller(c.max_rank, multiple_of(claims.rank_multiple))) {
    Case lower = c;
    lower.max_rank = int32_t(rank);
    for (auto& of_slot : lower.ranks) {
      for (int32_t& r : of_slot) r = std::min(r, lower.max_rank);
    }
    out.push_back(lower);
  }
}

void add_plainer(const Case& c, Cases& out) {
  const auto with = [&](auto change) {
    Case plainer = c;
    change(plainer);
    if (plainer != c) out.push_back(plainer);
  };
  with([](Case& p) { p.offset_start = 0; });
  with([](Case& p) { p.gaps = false; });
  with([](Case& p) { p.alignment = 0; });
  with([](Case& p) { p.add_inputs = true; });
  with([](Case& p) { p.router_weights = false; });
  with([](Case& p) { p.x_by_row = false; });
  with([](Case& p) { p.absent_experts = false; });
  with([](Case& p) { p.disabled_slots = false; });
  with([](Case& p) { p.fill = Fill::reals; });
  with([](Case& p) {
    for (auto& of_slot : p.ranks) of_slot.resize(1);
  });
  with([](Case& p) { p.num_experts = std::max(p.experts_per_token, p.num_experts / 2); });
  with([](Case& p) { p.experts_per_token = std::max(1, p.experts_per_token - 1); });
}

Cases candidates(const Case& c, const LoratoryClaims& claims) {
  Cases out;
  add_fewer_tokens(c, out);
  add_fewer_slots(c, out);
  add_fewer_slices(c, out);
  add_smaller_sizes(c, claims, out);
  add_plainer(c, out);
  return out;
}

bool is_a_case(const Case& c) {
  try {
    check_case(c);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

}  // namespace

Case shrink_case(const Case& failing, const LoratoryClaims& claims,
                 const std::function<bool(const Case&)>& fails, int most_tries) {
  Case smallest = failing;
  for (bool has_shrunk = true; has_shrunk;) {
    has_shrunk = false;
    for (const Case& candidate : candidates(smallest, claims)) {
      if (!is_a_case(candidate)) continue;
      if (most_tries-- <= 0) return smallest;
      if (!fails(candidate)) continue;
      smallest = candidate;
      has_shrunk = true;
      break;
    }
  }
  return smallest;
}

}  // namespace loratory::check
