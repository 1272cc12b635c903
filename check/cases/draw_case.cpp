#include "check/cases/draw_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "check/cases/draw.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {

using reference::Dtype;
using reference::IntermediateMode;
using reference::NumericMode;
using reference::ScaleMode;
using reference::SumMode;

namespace {

constexpr int64_t kToy = 0, kAwkward = 1;  // else of sizes that engines serve

bool has(uint32_t set, int bit) { return (set >> bit & 1) != 0; }

// A member of a set of bits; `otherwise` if the set is empty.
int64_t bit_of(Draw& draw, uint32_t set, int64_t otherwise) {
  std::vector<int64_t> bits;
  for (int i = 0; i < 32; ++i) {
    if (has(set, i)) bits.push_back(i);
  }
  return bits.empty() ? otherwise : bits[size_t(draw(int64_t(bits.size())))];
}

int64_t at_most(int64_t value, int64_t limit) { return limit > 0 ? std::min(value, limit) : value; }
int64_t multiple(int64_t value, int64_t of) { return of > 1 ? (value + of - 1) / of * of : value; }
int64_t multiple_below(int64_t limit, int64_t of) { return limit / of * of; }

struct Drawing {
  Draw& draw;
  const CaseLimits& limits;
  Case& c;
  int64_t kind;

  const LoratoryClaims& claims() const { return limits.claims; }
  bool can(LoratoryAbility ability) const { return (claims().abilities & ability) != 0; }

  void dtypes() const {
    uint32_t allowed = claims().weight_dtypes;
    const bool takes_8_bits = limits.operation <= LORATORY_OP_EXPAND && claims().weight_scales != 0;
    if (!takes_8_bits && (allowed & 7) != 0) allowed &= 7;
    c.weight = Dtype(bit_of(draw, allowed, 2));
    c.x = c.weight;
    if (is_quantized(c.weight)) factors();
    const Dtype like = is_quantized(c.x) ? Dtype::bf16 : c.x;
    c.y = has(claims().y_dtypes, int(like)) && !draw.one_in(4)
              ? like
              : Dtype(bit_of(draw, claims().y_dtypes, int64_t(like)));
    if (!c.is_linear()) c.h = Dtype(bit_of(draw, claims().h_dtypes, 0));
    if (c.expands() && c.has_quantized_activations()) c.h = Dtype::f32;
  }

  void factors() const {
    c.weight_scales = LoratoryScales(bit_of(draw, claims().weight_scales, LORATORY_SCALES_TENSOR));
    const bool is_block = c.weight_scales == LORATORY_SCALES_BLOCK;
    uint32_t x_dtypes = claims().x_dtypes == 0 ? 4U : claims().x_dtypes;
    const uint32_t alike = c.weight == Dtype::i8 ? 32U : 24U;
    const uint32_t scales =
        claims().activation_scales &
        (is_block ? 16U : (1U << LORATORY_SCALES_TENSOR | 1U << LORATORY_SCALES_TOKEN));
    x_dtypes &= 7U | (scales != 0 ? alike : 0U);
    c.x = Dtype(bit_of(draw, x_dtypes, 2));
    if (is_quantized(c.x)) {
      c.activation_scales = LoratoryScales(bit_of(draw, scales, LORATORY_SCALES_TENSOR));
    }
  }

  int64_t size(std::initializer_list<int64_t> awkward, std::initializer_list<int64_t> served,
               int64_t toy) const {
    if (kind == kToy) return draw.between(1, toy);
    return kind == kAwkward ? draw.one_of(awkward) : draw.one_of(served);
  }

  int64_t in_multiples_of(int64_t claimed) const {
    return size_multiple(claims(), claimed, c.weight);
  }

  // So many terms that a sum of them still has a bound (loratory_plugin.h), and that a check of
  // numbers has something to hold them to.
  int64_t with_bound(int64_t num_terms, int64_t of) const {
    const double most = 0.25 / claims().unit;  // infinity where nothing is claimed
    if (double(num_terms) <= most) return num_terms;
    return std::max(of, multiple_below(int64_t(most), of));
  }

  // Where a limit is too low for a rank that keeps rows aligned, the claim on ranks alone counts.
  int64_t largest_rank(int64_t rolled) const {
    const int64_t of = in_multiples_of(claims().rank_multiple), limit = claims().max_rank;
    const int64_t rank = with_bound(multiple(rolled, of), of);
    if (limit == 0 || rank <= limit) return rank;
    return multiple_below(limit, limit >= of ? of : std::max<int64_t>(1, claims().rank_multiple));
  }

  void sizes() const {
    c.num_in =
        size({63, 65, 100, 127, 129, 200, 257}, {896, 2048, 2880, 4096, 4097, 4100, 14336}, 40);
    c.num_in = with_bound(multiple(c.num_in, in_multiples_of(claims().num_in_multiple)),
                          in_multiples_of(claims().num_in_multiple));
    const bool is_packed =
        c.operation != LORATORY_OP_EMBEDDING && c.operation != LORATORY_OP_LOGITS;
    int64_t num_slices = is_packed ? draw.one_of<int64_t>({1, 1, 2, 3, 3, 4}) : 1;
    num_slices = at_most(num_slices, claims().max_slices);
    c.num_out.clear();
    for (int64_t i = 0; i < num_slices; ++i) {
      const int64_t n = size({1, 7, 31, 33, 64, 65, 100, 127}, {16, 64, 128, 200, 256}, 30);
      c.num_out.push_back(multiple(n, in_multiples_of(claims().num_out_multiple)));
    }
    c.num_tokens = size({0, 1, 2, 3, 15, 17, 31, 33, 64, 65}, {1, 2, 3, 5, 8, 16, 33}, 12);
    if (kind == kToy && draw.one_in(12)) c.num_tokens = 0;
    c.num_tokens = at_most(c.num_tokens, claims().max_tokens);
    const bool is_embedding = c.operation == LORATORY_OP_EMBEDDING;
    if (can(LORATORY_TAKES_OFFSET) && !is_embedding && draw.one_in(3)) {
      c.offset_start = multiple(draw.between(1, 20), in_multiples_of(claims().num_out_multiple));
    }
  }

  void experts() const {
    if (!c.has_experts()) return;
    c.num_experts = int32_t(draw.one_of({2, 3, 4, 8}));
    const int64_t most = at_most(c.num_experts, claims().max_experts_per_token);
    c.experts_per_token = int32_t(draw.between(1, std::min<int64_t>(most, 4)));
    c.x_by_row = can(LORATORY_TAKES_ROWS_OF_X) && draw.one_in(3);
    c.router_weights = can(LORATORY_TAKES_ROUTER_WEIGHTS) && !c.shrinks() && !draw.one_in(3);
  }

  void ranks() const {
    const int64_t largest = size({1, 2, 3, 5, 8, 12, 16, 17, 24}, {8, 16, 16, 32, 64}, 9);
    c.max_rank = int32_t(largest_rank(largest));
    const int64_t slots =
        kind == kToy ? draw.between(1, 5) : draw.one_of<int64_t>({1, 2, 3, 4, 8, 20});
    const int64_t num_slots = at_most(slots, claims().max_slots);
    const bool mixed = can(LORATORY_TAKES_ABSENT_SLICES) && c.num_out.size() > 1 &&
                       c.layout != LORATORY_LAYOUT_STACKED && draw.one_in(2);
    c.ranks.clear();
    for (int64_t s = 0; s < num_slots; ++s) {
      const int64_t rolled = draw(8);
      const auto rank = int32_t(rolled == 0  ? 0
                                : rolled < 4 ? c.max_rank
                                             : draw.between(1, c.max_rank));
      c.ranks.push_back({rank});
      if (!mixed || draw.one_in(2)) continue;
      c.ranks.back().resize(c.num_out.size(), rank);
      for (int32_t& of_slice : c.ranks.back()) {
        if (draw.one_in(3)) of_slice = int32_t(draw.between(0, c.max_rank));
      }
    }
  }

  void form() const {
    c.layout = LoratoryLayout(bit_of(draw, claims().layouts, 0));
    const bool is_slices_only = c.operation != LORATORY_OP_LINEAR || c.is_quantized();
    if (c.layout == LORATORY_LAYOUT_STACKED && is_slices_only) {
      const uint32_t others = claims().layouts & ~(1U << LORATORY_LAYOUT_STACKED);
      c.layout = LoratoryLayout(bit_of(draw, others, LORATORY_LAYOUT_DENSE));
    }
    const bool may_have_gaps = c.layout != LORATORY_LAYOUT_DENSE && can(LORATORY_TAKES_GAPS);
    c.gaps = may_have_gaps && draw.one_in(3);
    const bool may_skip_inputs =
        can(LORATORY_TAKES_NO_INPUTS) && c.operation < LORATORY_OP_EMBEDDING;
    c.add_inputs = !(may_skip_inputs && draw.one_in(4));
    c.mapping = draw.one_of({Mapping::uniform, Mapping::uniform, Mapping::zipf, Mapping::zipf,
                             Mapping::identical, Mapping::distinct});
    if (draw.one_in(40)) c.mapping = Mapping::base;
    c.fill = draw.one_of(
        {Fill::reals, Fill::reals, Fill::reals, Fill::cancellation, Fill::tiny, Fill::outliers});
    if (c.fill == Fill::tiny && c.is_quantized()) c.fill = Fill::reals;
  }

  void mode() const {
    if (claims().num_modes > 0) {
      const LoratoryMode& m = claims().modes[draw(claims().num_modes)];
      c.mode = {IntermediateMode(m.h), SumMode(m.sum), ScaleMode(m.scale)};
    }
    if (c.is_quantized()) c.mode = {IntermediateMode::fp32, c.mode.sum, ScaleMode::accumulator};
  }

  // Not drawn where a limit on ranks leaves rows that cannot be aligned.
  void alignment() const {
    const int64_t claimed = claims().alignment;
    if (claimed == 0 || claimed >= 256 || draw.one_in(3)) return;
    if (c.max_rank % row_unit(claimed, c.weight) == 0) c.alignment = int32_t(claimed);
  }

  void absences() const {
    if (!c.has_experts()) return;
    c.absent_experts = can(LORATORY_TAKES_ABSENT_EXPERTS) && draw.one_in(3);
    c.disabled_slots = can(LORATORY_TAKES_DISABLED_SLOTS) && draw.one_in(3);
  }

  int64_t num_weights() const {
    return c.num_slots() * c.num_experts * c.max_rank *
           (int64_t(c.num_out.size()) * c.num_in + c.num_columns());
  }

  void cut() const {
    while (c.num_products() > limits.max_products && c.num_tokens > 1) c.num_tokens /= 2;
    while (num_weights() > limits.max_weights && c.ranks.size() > 1) c.ranks.pop_back();
    while (c.num_products() > limits.max_products && c.num_out.size() > 1) {
      c.num_out.pop_back();
      for (auto& of_slot : c.ranks) {
        if (of_slot.size() > 1) of_slot.resize(c.num_out.size());
      }
    }
  }
};

}  // namespace

int64_t size_multiple(const LoratoryClaims& claims, int64_t claimed, Dtype weight) {
  return std::lcm(std::max<int64_t>(1, claimed), row_unit(claims.alignment, weight));
}

Case draw_case(uint64_t seed, const CaseLimits& limits) {
  Draw draw(seed);
  Case c{.operation = limits.operation, .ranks = {}, .slots = {}, .seed = seed};
  const Drawing drawing{draw, limits, c, draw(3)};
  drawing.dtypes();
  drawing.sizes();
  drawing.experts();
  drawing.form();
  drawing.ranks();
  drawing.mode();
  drawing.cut();
  drawing.alignment();
  drawing.absences();
  return c;
}

namespace {

// What a label says, field by field, against the claims.
struct Claimed {
  const Case& c;
  const LoratoryClaims& claims;

  void require(bool is_claimed, std::string_view field, std::string_view what) const {
    if (is_claimed) return;
    throw InputError(fmt::format("case: '{}'", field),
                     fmt::format("the kernel does not claim {}", what));
  }
  void able(bool is_asked, LoratoryAbility ability, std::string_view field,
            std::string_view what) const {
    require(!is_asked || (claims.abilities & ability) != 0, field, what);
  }

  void dtypes() const {
    const auto one_of = [&](uint32_t set, Dtype otherwise, Dtype dtype, std::string_view of) {
      const bool is_in = set == 0 ? dtype == otherwise : has(set, int(dtype));
      require(is_in, reference::name(dtype), fmt::format("this dtype of {}", of));
    };
    one_of(claims.weight_dtypes, c.weight, c.weight, "weights");
    if (is_quantized(c.weight)) one_of(claims.x_dtypes, Dtype::bf16, c.x, "x");
    const Dtype like = is_quantized(c.x) ? Dtype::bf16 : c.x;
    if (!c.shrinks()) one_of(claims.y_dtypes, like, c.y, "y");
    const bool has_h = c.shrinks() || (c.expands() && !c.has_quantized_activations());
    if (has_h) one_of(claims.h_dtypes, Dtype::f32, c.h, "h");
  }

  void scales() const {
    if (!c.is_quantized()) return;
    require(has(claims.weight_scales, c.weight_scales), "dtype", "these factors of 8-bit weights");
    require(!c.has_quantized_activations() || has(claims.activation_scales, c.activation_scales),
            "dtype", "these factors of 8-bit x");
  }

  // Beside 8-bit weights the sum alone is drawn.
  void mode() const {
    const auto is_this = [&](const LoratoryMode& m) {
      const NumericMode mode{IntermediateMode(m.h), SumMode(m.sum), ScaleMode(m.scale)};
      return c.is_quantized() ? mode.sum == c.mode.sum : mode == c.mode;
    };
    constexpr LoratoryMode kDefault{};
    const std::span<const LoratoryMode> modes(claims.num_modes > 0 ? claims.modes : &kDefault,
                                              claims.num_modes > 0 ? size_t(claims.num_modes) : 1);
    require(std::ranges::any_of(modes, is_this), "mode", "these rounding points");
  }

  void limits() const {
    const auto within = [&](int64_t value, int64_t limit, std::string_view field,
                            std::string_view of) {
      require(limit == 0 || value <= limit, field,
              fmt::format("{} {}, {} at most", value, of, limit));
    };
    within(c.max_rank, claims.max_rank, "r", "rows of a slot's buffer");
    within(c.num_slots(), claims.max_slots, "r", "slots");
    within(int64_t(c.num_out.size()), claims.max_slices, "N", "slices");
    within(c.num_tokens, claims.max_tokens, "n", "tokens");
    if (c.has_experts()) {
      within(c.experts_per_token, claims.max_experts_per_token, "k", "experts per token");
    }
  }

  void multiples() const {
    const auto in_multiples = [&](int64_t value, int64_t of, std::string_view field) {
      require(value % of == 0, field, fmt::format("{}, which is no multiple of {}", value, of));
    };
    const int64_t in = size_multiple(claims, claims.num_in_multiple, c.weight);
    const int64_t out = size_multiple(claims, claims.num_out_multiple, c.weight);
    const int64_t rank = size_multiple(claims, claims.rank_multiple, c.weight);
    in_multiples(c.num_in, in, "K");
    for (const int64_t n : c.num_out) in_multiples(n, out, "N");
    in_multiples(c.offset_start, out, "o");
    const bool has_no_aligned = claims.max_rank > 0 && claims.max_rank < rank;
    in_multiples(c.max_rank, has_no_aligned ? std::max<int64_t>(1, claims.rank_multiple) : rank,
                 "r");
    const bool is_aligned = claims.alignment > 0 && c.alignment >= claims.alignment;
    require(c.alignment == 0 || is_aligned, "a", "tensors of this alignment");
  }

  bool has_absent_slices() const {
    return std::ranges::any_of(c.ranks, [](const std::vector<int32_t>& of_slot) {
      return std::ranges::min(of_slot) == 0 && std::ranges::max(of_slot) > 0;
    });
  }

  void abilities() const {
    able(c.offset_start > 0, LORATORY_TAKES_OFFSET, "o", "offset_start");
    able(!c.add_inputs, LORATORY_TAKES_NO_INPUTS, "noadd", "to go without inputs");
    able(c.gaps, LORATORY_TAKES_GAPS, "gaps", "rows that lie apart");
    able(has_absent_slices(), LORATORY_TAKES_ABSENT_SLICES, "r", "absent slices");
    able(c.router_weights, LORATORY_TAKES_ROUTER_WEIGHTS, "router", "router weights");
    able(c.x_by_row, LORATORY_TAKES_ROWS_OF_X, "xrows", "rows of x for each expert");
    able(c.absent_experts, LORATORY_TAKES_ABSENT_EXPERTS, "away", "absent experts");
    able(c.disabled_slots, LORATORY_TAKES_DISABLED_SLOTS, "off", "disabled slots");
  }
};

}  // namespace

void check_claimed(const Case& c, const LoratoryClaims& claims) {
  constexpr std::array<std::string_view, 3> kLayouts{"slices", "dense", "stacked"};
  const Claimed claimed{c, claims};
  claimed.require(has(claims.operations, c.operation), operation_name(c.operation),
                  "this operation");
  claimed.require(has(claims.layouts, c.layout), kLayouts[size_t(c.layout)], "this layout");
  claimed.dtypes();
  claimed.scales();
  claimed.mode();
  claimed.limits();
  claimed.multiples();
  claimed.abilities();
}

}  // namespace loratory::check
