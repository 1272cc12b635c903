#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "check/cases/case.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::check {

/// Numbers of one group of columns in a row of the output that LoRA writes: of a slice in y, or of
/// the ranks of a slice in h. What is in none of them must not be written.
struct Stretch {
  int64_t row = 0;  ///< of y; of h the row of one slice
  int32_t slice = 0;
  int32_t slot = 0;
  int32_t expert = 0;
  int64_t first = 0;  ///< column of y; of h the first rank, 0
  int64_t count = 0;
  int64_t element = 0;  ///< where the first lies in the output tensor, in elements
};

/// Tokens of a step and all tensors that a run reads and writes. What nobody may read is NaN.
struct StepData {
  std::vector<int32_t> slots;         ///< [T]
  std::vector<int64_t> token_ids;     ///< [T], of an embedding
  std::vector<int32_t> experts;       ///< [T·k], -1: not here
  std::vector<int32_t> enabled;       ///< [L], or empty: all are on
  std::vector<float> router_weights;  ///< [T·k], or empty
  std::optional<reference::Tensor> x, x_scale, h, h_scale, y;

  int64_t num_tokens() const { return int64_t(slots.size()); }
  /// The slot of a token, -1 if it is disabled.
  int32_t active_slot(int64_t token) const {
    const int32_t slot = slots[size_t(token)];
    return slot >= 0 && !enabled.empty() && enabled[size_t(slot)] == 0 ? -1 : slot;
  }
};

/// One slice for all slots.
struct SliceData {
  std::optional<reference::Tensor> a, b, a_scale, b_scale;
  std::vector<int32_t> ranks;   ///< [L·E]
  std::vector<float> scalings;  ///< [L·E]
};

/// How what lies beyond a rank looks to a kernel.
enum class BeyondRank : uint8_t { nan, zeros };

/// The tensors of a case, owned: everything follows from the label. Filling repeats bitwise.
struct CaseData {
  explicit CaseData(const Case& c, BeyondRank beyond = BeyondRank::nan);

  /// Tokens of slots `slots`; token t has the numbers of token contents[t] of the case's own step.
  StepData make_step(const std::vector<int32_t>& slots, std::span<const int64_t> contents) const;
  /// The tokens `tokens` of the case's own step, in that order; one may come twice.
  StepData step_of(std::span<const int64_t> tokens) const;
  /// What a run on `step` covers, in the order of rows and slices.
  std::vector<Stretch> covered(const StepData& step) const;
  /// The output of an operation: h of a shrink, else y.
  reference::Tensor& output(StepData& step) const;
  const reference::Tensor& output(const StepData& step) const;
  int32_t rank(size_t slice, int32_t slot, int32_t expert) const {
    return slices[slice].ranks[size_t(slot) * size_t(shape.num_experts) + size_t(expert)];
  }

  Case shape;
  BeyondRank beyond;
  std::vector<SliceData> slices;
  std::optional<reference::Tensor> stacked_a, stacked_b;
  int64_t a_block_n = 0, a_block_k = 0, b_block_n = 0, b_block_k = 0;
  StepData step;
};

/// The adapter that `from` has in a slot comes into that slot of `to`: weights, rank, scaling.
/// Both have the same sizes.
void copy_slot(const CaseData& from, CaseData& to, int64_t slot);

/// The adapter of slot s moves to slot to[s]; the step stays as it is.
void move_slots(CaseData& data, std::span<const int64_t> to);

/// The slots of a step's tokens.
std::vector<int32_t> draw_slots(Mapping mapping, int64_t num_slots, int64_t num_tokens,
                                uint64_t seed);

/// A permutation of 0..size-1.
std::vector<int64_t> shuffled(int64_t size, uint64_t seed);

}  // namespace loratory::check
