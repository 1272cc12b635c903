#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/lora/linear.hpp"
#include "reference/model/packed_linear.hpp"

namespace loratory::reference {

/// What a slot holds; a slot that is being filled, or never was, holds nothing (uid 0).
struct SlotContent {
  uint64_t uid = 0;         ///< of the adapter
  uint64_t generation = 0;  ///< how often the slot had been given to an adapter, this one included

  friend bool operator==(const SlotContent&, const SlotContent&) = default;
};

/// The weights of max_loras adapters, stacked as the kernels want them. For every projection of
/// every layer (and expert), for embed_tokens and lm_head, for routers where they have LoRA:
///   A [max_loras, max_rank, K], B [max_loras, N, max_rank], f32; ranks and scalings [max_loras].
/// Slots of f8_e4m3fn have the numbers that an engine's slots of fp8 hold [1.50a], as f32.
///
/// A fill writes all of the slot [5.9]: rank 0 for what the adapter does not change; NaN beyond the
/// rank and in absent modules. So nothing of the slot's last owner can reach a result.
/// Errors   asserted: a slot outside [0, max_loras), what fits() refuses.
/// Cost     a fill: O(weights of the slot).
class SlotWeights {
 public:
  /// `dtype` is f32 or f8_e4m3fn.
  SlotWeights(const BaseModelShapes& shapes, int32_t max_loras, int64_t max_rank,
              Dtype dtype = Dtype::f32);

  /// Is there a place for every module, and is no rank too large?
  bool fits(const Adapter& adapter) const;

  /// The slot holds nothing from here to the fill; all of it is NaN.
  void begin_fill(int32_t slot);
  /// Weights are cast to float, fp8 ones dequantised.
  void fill(int32_t slot, const Adapter& adapter, const SlotContent& content);

  int32_t max_loras() const { return int32_t(contents_.size()); }
  const SlotContent& content(int32_t slot) const;

  /// The slices of a layer in their order. The views see every later fill.
  std::vector<LoraSlice> slices(const LinearRef& linear) const;
  LoraSlice embedding() const;

 private:
  struct Module {
    Tensor a, b;
    std::vector<int32_t> ranks;
    std::vector<float> scalings;

    LoraSlice slice() const { return {a.view(), b.view(), ranks, scalings, {}}; }
  };

  void add_module(const BaseModelShapes& shapes, const ModuleId& id);
  void clear(Module& module, int32_t slot);

  int64_t max_rank_;
  Dtype dtype_;
  std::vector<SlotContent> contents_;
  std::map<ModuleId, Module> modules_;
};

}  // namespace loratory::reference
