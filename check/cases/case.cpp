#include "check/cases/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"

namespace loratory::check {

using reference::Dtype;
using reference::IntermediateMode;
using reference::ScaleMode;
using reference::SumMode;

namespace {

constexpr int64_t kMost = int64_t(1) << 40, kMostAlignment = 128;
constexpr std::array<std::string_view, 8> kOperations{
    "linear", "shrink",        "expand",        "embedding",
    "logits", "expert_linear", "expert_shrink", "expert_expand"};
constexpr std::array<Dtype, 6> kDtypes{Dtype::f32,       Dtype::f16,     Dtype::bf16,
                                       Dtype::f8_e4m3fn, Dtype::f8_e5m2, Dtype::i8};
constexpr std::array<Mapping, 5> kMappings{Mapping::uniform, Mapping::zipf, Mapping::identical,
                                           Mapping::distinct, Mapping::base};
constexpr std::array<Fill, 5> kFills{Fill::small_integers, Fill::reals, Fill::cancellation,
                                     Fill::tiny, Fill::outliers};

// The words that are fields by themselves, once for both directions.
struct Word {
  std::string_view text;
  void (*set)(Case&);
  bool (*is_set)(const Case&);
  std::string_view kind{};  // of which a label has one; empty: the word itself
};
const std::array<Word, 20> kWords{{
    {"dense", [](Case& c) { c.layout = LORATORY_LAYOUT_DENSE; },
     [](const Case& c) { return c.layout == LORATORY_LAYOUT_DENSE; }, "layout"},
    {"stacked", [](Case& c) { c.layout = LORATORY_LAYOUT_STACKED; },
     [](const Case& c) { return c.layout == LORATORY_LAYOUT_STACKED; }, "layout"},
    {"gaps", [](Case& c) { c.gaps = true; }, [](const Case& c) { return c.gaps; }},
    {"noadd", [](Case& c) { c.add_inputs = false; }, [](const Case& c) { return !c.add_inputs; }},
    {"split2", [](Case& c) { c.mode.h = IntermediateMode::split2; },
     [](const Case& c) { return c.mode.h == IntermediateMode::split2; }, "h mode"},
    {"cast", [](Case& c) { c.mode.h = IntermediateMode::cast_to_weight; },
     [](const Case& c) { return c.mode.h == IntermediateMode::cast_to_weight; }, "h mode"},
    {"storex", [](Case& c) { c.mode.h = IntermediateMode::store_as_x; },
     [](const Case& c) { return c.mode.h == IntermediateMode::store_as_x; }, "h mode"},
    {"twice", [](Case& c) { c.mode.sum = SumMode::two_round; },
     [](const Case& c) { return c.mode.sum == SumMode::two_round; }},
    {"folded", [](Case& c) { c.mode.scale = ScaleMode::folded_b; },
     [](const Case& c) { return c.mode.scale == ScaleMode::folded_b; }},
    {"xrows", [](Case& c) { c.x_by_row = true; }, [](const Case& c) { return c.x_by_row; }},
    {"router", [](Case& c) { c.router_weights = true; },
     [](const Case& c) { return c.router_weights; }},
    {"away", [](Case& c) { c.absent_experts = true; },
     [](const Case& c) { return c.absent_experts; }},
    {"off", [](Case& c) { c.disabled_slots = true; },
     [](const Case& c) { return c.disabled_slots; }},
    {"wtensor", [](Case& c) { c.weight_scales = LORATORY_SCALES_TENSOR; },
     [](const Case& c) { return c.weight_scales == LORATORY_SCALES_TENSOR; }, "weight scales"},
    {"wchannel", [](Case& c) { c.weight_scales = LORATORY_SCALES_CHANNEL; },
     [](const Case& c) { return c.weight_scales == LORATORY_SCALES_CHANNEL; }, "weight scales"},
    {"wblock", [](Case& c) { c.weight_scales = LORATORY_SCALES_BLOCK; },
     [](const Case& c) { return c.weight_scales == LORATORY_SCALES_BLOCK; }, "weight scales"},
    {"atensor", [](Case& c) { c.activation_scales = LORATORY_SCALES_TENSOR; },
     [](const Case& c) { return c.activation_scales == LORATORY_SCALES_TENSOR; },
     "activation scales"},
    {"atoken", [](Case& c) { c.activation_scales = LORATORY_SCALES_TOKEN; },
     [](const Case& c) { return c.activation_scales == LORATORY_SCALES_TOKEN; },
     "activation scales"},
    {"ablock", [](Case& c) { c.activation_scales = LORATORY_SCALES_BLOCK; },
     [](const Case& c) { return c.activation_scales == LORATORY_SCALES_BLOCK; },
     "activation scales"},
    {"reals", [](Case& c) { c.fill = Fill::reals; }, [](const Case&) { return false; }, "fill"},
}};

// --- reading --------------------------------------------------------------------------------

[[noreturn]] void fail(std::string_view field, std::string_view rule) {
  throw InputError(fmt::format("case: {}", shown(field)), rule,
                   "check/cases/case.hpp has the form");
}

template <typename T>
T number(std::string_view field, std::string_view text, int64_t low, int64_t high) {
  const auto value = to_number<int64_t>(text);
  if (!value || *value < low || *value > high) {
    fail(field, fmt::format("{} is no number from {} to {}", shown(text), low, high));
  }
  return T(*value);
}

// "16x5" is five of 16.
struct Repeated {
  std::string_view item;
  int64_t count = 1;
};
Repeated repeated(std::string_view field, std::string_view text) {
  const size_t at = text.rfind('x');
  if (at == std::string_view::npos) return {text};
  return {text.substr(0, at), number<int64_t>(field, text.substr(at + 1), 1, 1 << 20)};
}

void read_ranks(std::string_view field, Case& c) {
  for (const std::string_view text : split(field.substr(1), ',')) {
    const Repeated slot = repeated(field, text);
    std::vector<int32_t> of_slices;
    for (const std::string_view rank : split(slot.item, '/')) {
      of_slices.push_back(number<int32_t>(field, rank, 0, 1 << 20));
    }
    c.ranks.insert(c.ranks.end(), size_t(slot.count), of_slices);
  }
}

void read_slots(std::string_view field, Case& c) {
  for (const std::string_view text : split(field.substr(1), ',')) {
    const Repeated token = repeated(field, text);
    const int32_t slot = token.item == "b" ? -1 : number<int32_t>(field, token.item, 0, 1 << 20);
    c.slots.insert(c.slots.end(), size_t(token.count), slot);
  }
}

std::optional<Dtype> dtype_named(std::string_view text) {
  const auto found = std::ranges::find(kDtypes, text, [](Dtype d) { return reference::name(d); });
  return found == kDtypes.end() ? std::nullopt : std::optional(*found);
}

bool read_word(std::string_view field, Case& c) {
  for (const Word& word : kWords) {
    if (word.text == field) return word.set(c), true;
  }
  for (const Fill fill : kFills) {
    if (name(fill) == field) return c.fill = fill, true;
  }
  for (const Mapping mapping : kMappings) {
    if (name(mapping) == field) return c.mapping = mapping, true;
  }
  return false;
}

// What a label says of dtypes; the others follow from that of the weights.
struct Dtypes {
  std::optional<Dtype> weight, x, h, y;
};

bool read_dtype(std::string_view field, Dtypes& dtypes) {
  if (const auto whole = dtype_named(field)) return dtypes.weight = whole, true;
  const auto rest = dtype_named(field.substr(1));
  if (!rest) return false;
  if (field[0] == 'x') return dtypes.x = rest, true;
  if (field[0] == 'h') return dtypes.h = rest, true;
  if (field[0] == 'y') return dtypes.y = rest, true;
  return false;
}

void read_widths(std::string_view field, Case& c) {
  c.num_out.clear();
  for (const std::string_view text : split(field.substr(1), '+')) {
    c.num_out.push_back(number<int64_t>(field, text, 1, kMost));
  }
}

void read_seed(std::string_view field, Case& c) {
  const auto seed = to_number<uint64_t>(field.substr(4));
  if (!seed) fail(field, "needs a number behind seed");
  c.seed = *seed;
}

void read_number(std::string_view field, Case& c) {
  const std::string_view rest = field.substr(1);
  switch (field[0]) {
    case 'K':
      c.num_in = number<int64_t>(field, rest, 1, kMost);
      return;
    case 'N':
      return read_widths(field, c);
    case 'r':
      return read_ranks(field, c);
    case 'R':
      c.max_rank = number<int32_t>(field, rest, 1, 1 << 20);
      return;
    case 'n':
      c.num_tokens = number<int64_t>(field, rest, 0, kMost);
      return;
    case 'a':
      c.alignment = number<int32_t>(field, rest, 1, kMostAlignment);
      return;
    case 'o':
      c.offset_start = number<int64_t>(field, rest, 0, kMost);
      return;
    case 'E':
      c.num_experts = number<int32_t>(field, rest, 1, 1 << 20);
      return;
    case 'k':
      c.experts_per_token = number<int32_t>(field, rest, 1, 1 << 20);
      return;
    case 's':
      if (field.starts_with("seed")) return read_seed(field, c);
      return read_slots(field, c);
    default:
      fail(field, "is no field of a case");
  }
}

int32_t largest_rank(const Case& c) {
  int32_t largest = 1;
  for (const auto& slot : c.ranks) largest = std::max(largest, std::ranges::max(slot));
  return largest;
}

void set_defaults(const Dtypes& dtypes, Case& c) {
  c.weight = dtypes.weight.value_or(Dtype::bf16);
  c.x = dtypes.x.value_or(is_quantized(c.weight) ? Dtype::bf16 : c.weight);
  c.h = dtypes.h.value_or(Dtype::f32);
  c.y = dtypes.y.value_or(is_quantized(c.x) ? Dtype::bf16 : c.x);
  if (c.max_rank == 0) c.max_rank = largest_rank(c);
  if (!c.slots.empty()) c.num_tokens = int64_t(c.slots.size());
}

// --- writing --------------------------------------------------------------------------------

// "3,64,0" with runs as "16x5".
template <typename Values, typename Text>
std::string runs_of(const Values& values, Text&& text) {
  std::string out;
  for (size_t i = 0; i < values.size();) {
    size_t end = i + 1;
    while (end < values.size() && values[end] == values[i]) ++end;
    if (!out.empty()) out += ',';
    out += text(values[i]);
    if (end - i > 1) out += fmt::format("x{}", end - i);
    i = end;
  }
  return out;
}

std::string dtypes_text(const Case& c) {
  Case defaults;
  set_defaults({.weight = c.weight, .x = c.x, .h = {}, .y = {}}, defaults);
  std::string out = fmt::format(".{}", reference::name(c.weight));
  const Dtype default_x = is_quantized(c.weight) ? Dtype::bf16 : c.weight;
  if (c.x != default_x) out += fmt::format(".x{}", reference::name(c.x));
  if (c.h != Dtype::f32) out += fmt::format(".h{}", reference::name(c.h));
  if (c.y != defaults.y) out += fmt::format(".y{}", reference::name(c.y));
  return out;
}

}  // namespace

std::string_view name(Mapping mapping) {
  constexpr std::array<std::string_view, 5> kNames{"uniform", "zipf", "identical", "distinct",
                                                   "base"};
  return kNames[size_t(mapping)];
}

int64_t Case::num_columns() const {
  return std::accumulate(num_out.begin(), num_out.end(), offset_start);
}

int32_t Case::rank(int64_t slot, size_t slice) const {
  const std::vector<int32_t>& of_slot = ranks[size_t(slot)];
  return of_slot.size() == 1 ? of_slot[0] : of_slot[slice];
}

bool Case::shrinks() const {
  return operation == LORATORY_OP_SHRINK || operation == LORATORY_OP_EXPERT_SHRINK;
}
bool Case::expands() const {
  return operation == LORATORY_OP_EXPAND || operation == LORATORY_OP_EXPERT_EXPAND;
}
bool Case::is_linear() const { return !shrinks() && !expands(); }

int64_t Case::num_products() const {
  const int64_t columns = num_columns() - offset_start;
  const int64_t in = expands() || operation == LORATORY_OP_EMBEDDING ? 0 : num_in;
  return std::max<int64_t>(1, num_rows()) * max_rank *
         (int64_t(num_out.size()) * in + (shrinks() ? 0 : columns));
}

int64_t row_unit(int64_t alignment, Dtype dtype) {
  return std::max<int64_t>(1, alignment / int64_t(size_bytes(dtype)));
}

std::string_view operation_name(int32_t operation) { return kOperations[size_t(operation)]; }

LoratoryOperation operation_named(std::string_view name) {
  const auto found = std::ranges::find(kOperations, name);
  if (found != kOperations.end()) return LoratoryOperation(found - kOperations.begin());
  const std::vector<std::string> names(kOperations.begin(), kOperations.end());
  throw InputError(
      shown(name), "is no operation",
      did_you_mean(name, names, fmt::format("name one of {}", fmt::join(names, ", "))));
}

namespace {

std::string_view kind_of(std::string_view field) {
  for (const Word& word : kWords) {
    if (word.text == field) return word.kind.empty() ? field : word.kind;
  }
  const auto has_name = [&](auto member) { return name(member) == field; };
  if (std::ranges::any_of(kFills, has_name)) return "fill";
  if (std::ranges::any_of(kMappings, has_name)) return "mapping";
  if (dtype_named(field)) return "dtype";
  return field.starts_with("seed") ? "seed" : field.substr(0, 1);
}

void refuse_kinds_twice(std::span<const std::string_view> fields) {
  for (size_t i = 1; i < fields.size(); ++i) {
    for (size_t before = 0; before < i; ++before) {
      if (kind_of(fields[before]) != kind_of(fields[i])) continue;
      fail(fields[i], fmt::format("is of the same kind as {}, and a label has no kind twice",
                                  shown(fields[before])));
    }
  }
}

}  // namespace

Case case_named(std::string_view label) {
  const std::vector<std::string_view> fields = split(label, '.');
  Case c{.operation = operation_named(fields[0]), .ranks = {}, .max_rank = 0, .slots = {}};
  if (std::ranges::find(fields, "") != fields.end()) fail(label, "has a field of no letters");
  refuse_kinds_twice(std::span(fields).subspan(1));
  Dtypes dtypes;
  for (size_t i = 1; i < fields.size(); ++i) {
    if (read_word(fields[i], c) || read_dtype(fields[i], dtypes)) continue;
    read_number(fields[i], c);
  }
  if (c.ranks.empty()) fail(label, "has no ranks: r16 for one slot, r3,64,0 for three");
  set_defaults(dtypes, c);
  check_case(c);
  return c;
}

std::string label_of(const Case& c) {
  std::string out =
      fmt::format("{}.K{}.N{}", operation_name(c.operation), c.num_in, fmt::join(c.num_out, "+"));
  out += ".r" + runs_of(c.ranks, [](const std::vector<int32_t>& of_slot) {
           return fmt::format("{}", fmt::join(of_slot, "/"));
         });
  if (c.max_rank != largest_rank(c)) out += fmt::format(".R{}", c.max_rank);
  if (c.slots.empty()) {
    out += fmt::format(".n{}.{}", c.num_tokens, name(c.mapping));
  } else {
    out += ".s" + runs_of(c.slots, [](int32_t slot) {
             return slot < 0 ? std::string("b") : std::to_string(slot);
           });
  }
  out += dtypes_text(c);
  if (c.num_experts != 1) out += fmt::format(".E{}", c.num_experts);
  if (c.experts_per_token != 1) out += fmt::format(".k{}", c.experts_per_token);
  if (c.offset_start != 0) out += fmt::format(".o{}", c.offset_start);
  if (c.alignment != 0) out += fmt::format(".a{}", c.alignment);
  for (const Word& word : kWords) {
    if (word.is_set(c)) out += fmt::format(".{}", word.text);
  }
  if (c.fill != Fill::reals) out += fmt::format(".{}", name(c.fill));
  return out + fmt::format(".seed{}", c.seed);
}

namespace {

void require(bool ok, std::string_view field, std::string_view rule) {
  if (!ok) fail(field, rule);
}

void check_ranks(const Case& c) {
  for (const auto& of_slot : c.ranks) {
    require(of_slot.size() == 1 || of_slot.size() == c.num_out.size(), "r",
            "has not one rank for each slice in a slot");
    const bool is_one_rank =
        std::ranges::adjacent_find(of_slot, std::not_equal_to<>()) == of_slot.end();
    require(is_one_rank || c.layout != LORATORY_LAYOUT_STACKED, "r",
            "has slices of two ranks in a slot, which the stacked layout cannot have");
  }
  require(c.max_rank >= largest_rank(c), "R", "is less than the largest rank");
}

void check_alignment(const Case& c) {
  if (c.alignment == 0) return;
  require(std::has_single_bit(uint32_t(c.alignment)), "a", "is not a power of two");
  const int64_t unit = row_unit(c.alignment, c.weight);
  const auto fits = [&](int64_t size) { return size % unit == 0; };
  require(fits(c.num_in) && fits(c.max_rank) && fits(c.offset_start) &&
              std::ranges::all_of(c.num_out, fits),
          "a", fmt::format("needs K, N, R and o in multiples of {}", unit));
}

void check_scales(const Case& c) {
  require(is_quantized(c.weight) == c.is_quantized(), "dtype",
          "8-bit weights need wtensor, wchannel or wblock, others none");
  require(is_quantized(c.x) == c.has_quantized_activations(), "dtype",
          "8-bit x needs atensor, atoken or ablock, others none");
  const bool w_block = c.weight_scales == LORATORY_SCALES_BLOCK;
  const bool a_block = c.activation_scales == LORATORY_SCALES_BLOCK;
  require(!c.has_quantized_activations() || w_block == a_block, "ablock",
          "goes with wblock alone, and wblock with it");
  const bool is_plain = c.mode == reference::NumericMode{c.mode.h, c.mode.sum, {}} &&
                        c.mode.h == IntermediateMode::fp32;
  require(!c.is_quantized() || is_plain, "mode", "8-bit weights know fp32 h alone");
  require(c.is_quantized() || c.x == c.weight, "x", "has another dtype than the weights");
  const bool are_both_i8 = (c.x == Dtype::i8) == (c.weight == Dtype::i8);
  require(!c.has_quantized_activations() || are_both_i8, "x", "i8 goes with i8, fp8 with fp8");
  require(c.operation <= LORATORY_OP_EXPAND || !c.is_quantized(), "dtype",
          "8-bit weights are for linear, shrink and expand");
}

}  // namespace

void check_case(const Case& c) {
  check_ranks(c);
  check_alignment(c);
  check_scales(c);
  for (const int32_t slot : c.slots) {
    require(slot < c.num_slots(), "s", "names a slot that has no rank");
  }
  const bool is_one_slice =
      c.operation == LORATORY_OP_EMBEDDING || c.operation == LORATORY_OP_LOGITS;
  require(!is_one_slice || c.num_out.size() == 1, "N", "this operation has one slice");
  require(c.operation != LORATORY_OP_EMBEDDING || c.add_inputs, "noadd",
          "an embedding is added to a row of the base table");
  require(c.operation != LORATORY_OP_EMBEDDING || c.offset_start == 0, "o",
          "the slice of an embedding begins at column 0");
  require(!c.has_experts() || c.add_inputs, "noadd", "what experts give is always added to");
  require(c.layout != LORATORY_LAYOUT_STACKED || c.operation == LORATORY_OP_LINEAR, "stacked",
          "is a layout of linear");
  require(c.experts_per_token <= c.num_experts, "k", "is more than E");
  require(c.has_experts() || (c.num_experts == 1 && !c.x_by_row && !c.router_weights &&
                              !c.absent_experts && !c.disabled_slots),
          "E", "experts are for expert_linear, expert_shrink and expert_expand");
  require(!(c.layout == LORATORY_LAYOUT_DENSE && c.gaps), "gaps", "dense weights have none");
  require(!is_quantized(c.y) && !is_quantized(c.h), "y", "results are f32, f16 or bf16");
}

}  // namespace loratory::check
