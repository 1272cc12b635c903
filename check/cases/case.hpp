#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "check/cases/fill.hpp"
#include "check/loratory_plugin.h"
#include "reference/numerics/dtype.hpp"
#include "reference/numerics/numeric_mode.hpp"

// A case is its label: `linear.K4097.N4096+1024.r3,64,0.n17.zipf.bf16.seed7`. Fields in any order
// after the operation; what a field is follows from how it begins:
//
//   K4097          in-features; of an embedding the vocabulary
//   N4096+1024     columns of each slice
//   r3,64/0,0      ranks: a slot after each comma, where slices differ one after each slash;
//                  16x5: five slots of rank 16
//   R64            rows of a slot's buffer, if more than the largest rank
//   n17            tokens
//   zipf           their slots: uniform, zipf, identical, distinct or base; or s0,0,b,1: one by one
//   bf16           dtype of the weights and whatever does not say: xf16 (beside 8-bit weights),
//                  hf32, yf32
//   seed7          of all numbers
//
// and, where they are not the default: o8 (offset_start), noadd, gaps, dense or stacked, ints,
// cancel, tiny or outliers, a16 (bytes that addresses are aligned to, and no more), split2, cast or
// storex, twice (two roundings), folded, E4 (experts), k2 (experts per token), xrows (a row of x
// for each expert of a token), router, away (some experts of a token are not here), off (some slots
// are disabled); of 8-bit weights wtensor, wchannel or wblock, atensor, atoken or ablock.

namespace loratory::check {

/// How the tokens of a batch choose their slots. In all but `distinct` and `identical` about one
/// token in six has none.
enum class Mapping : uint8_t { uniform, zipf, identical, distinct, base };
std::string_view name(Mapping mapping);

struct Case {
  LoratoryOperation operation = LORATORY_OP_LINEAR;
  int64_t num_in = 1;
  std::vector<int64_t> num_out{1};          ///< of each slice
  std::vector<std::vector<int32_t>> ranks;  ///< [L], each of one rank or of one for each slice
  int32_t max_rank = 1;                     ///< R
  int64_t num_tokens = 0;
  Mapping mapping = Mapping::uniform;
  std::vector<int32_t> slots;  ///< [num_tokens], or empty: as `mapping` says

  reference::Dtype weight = reference::Dtype::bf16;
  reference::Dtype x = reference::Dtype::bf16;  ///< the weights', unless those are 8-bit
  reference::Dtype h = reference::Dtype::f32;   ///< the tensor h of shrink and expand
  reference::Dtype y = reference::Dtype::bf16;
  Fill fill = Fill::reals;
  reference::NumericMode mode{};
  LoratoryLayout layout = LORATORY_LAYOUT_SLICES;
  int64_t offset_start = 0;
  bool add_inputs = true;
  bool gaps = false;  ///< rows of all tensors lie further apart than they are long
  /// Bytes: the first number and every row of A, B, x, h and y lie at multiples of it, and the
  /// first of no larger power of two. 0: whatever sizes give, from 256 on.
  int32_t alignment = 0;

  LoratoryScales weight_scales = LORATORY_SCALES_NONE;
  LoratoryScales activation_scales = LORATORY_SCALES_NONE;

  int32_t num_experts = 1;        ///< E
  int32_t experts_per_token = 1;  ///< k
  bool x_by_row = false;
  bool router_weights = false;
  bool absent_experts = false;  ///< one row in four has expert -1
  bool disabled_slots = false;  ///< one slot in four
  uint64_t seed = 0;

  int64_t num_slots() const { return int64_t(ranks.size()); }
  int64_t num_rows() const { return num_tokens * experts_per_token; }
  int64_t num_columns() const;  ///< of y
  int32_t rank(int64_t slot, size_t slice) const;
  bool is_quantized() const { return weight_scales != LORATORY_SCALES_NONE; }
  bool has_quantized_activations() const { return activation_scales != LORATORY_SCALES_NONE; }
  bool has_experts() const { return operation >= LORATORY_OP_EXPERT_LINEAR; }
  bool shrinks() const;    ///< reads x and A and writes h
  bool expands() const;    ///< reads h
  bool is_linear() const;  ///< reads x (or ids), A and B and writes y
  /// Multiplications of one run.
  int64_t num_products() const;

  friend bool operator==(const Case&, const Case&) = default;
};

/// How many numbers make up the alignment of a row.
int64_t row_unit(int64_t alignment, reference::Dtype dtype);

/// "linear", "shrink", ...; and back, InputError with the nearest name.
std::string_view operation_name(int32_t operation);
LoratoryOperation operation_named(std::string_view name);

/// The case that `label` names; label_of(case_named(l)) is l with its fields in our order.
/// Errors   InputError naming the field: unknown, twice, not a number, sizes that cannot be.
Case case_named(std::string_view label);
std::string label_of(const Case& c);

/// InputError if the sizes contradict each other.
void check_case(const Case& c);

}  // namespace loratory::check
