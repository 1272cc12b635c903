#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/model/forward.hpp"
#include "reference/model/slot_weights.hpp"

namespace loratory::reference {

/// LoRA of one step: every token takes its delta from its slot. Made anew for each step; a table of
/// an earlier one may name slots that have changed their owner [2.11].
class SlotLora final : public LoraTerms<float> {
 public:
  /// token_slots[t] of the batch, padding included; kBaseSlot = base model [2.16]. `weights`
  /// outlives this object.
  SlotLora(const SlotWeights& weights, std::vector<int32_t> token_slots)
      : weights_(weights), token_slots_(std::move(token_slots)) {}

  void add(const LinearRef& linear, std::span<const int64_t> tokens, const Matrix<float>& x,
           Matrix<float>& y) const override;
  void add_embedding(std::span<const int32_t> ids, Matrix<float>& y) const override;

 private:
  const SlotWeights& weights_;
  std::vector<int32_t> token_slots_;
};

}  // namespace loratory::reference
