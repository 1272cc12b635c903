#pragma once

#include <cstdint>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/moe/expert_lora.hpp"

namespace loratory::reference {

struct ExpertBufferSizes {
  int64_t max_loras = 1, num_experts = 1, max_rank = 1;
  int64_t num_in = 1, num_out = 1;  ///< K, N of one expert's projection
};

/// The weights of one projection of the experts of one layer, for all slots: A [L, E, R, K] and
/// B [L, E, N, R]. How a checkpoint laid them out (expert by expert, 3-D, shared by all experts,
/// PEFT's target_parameters, interleaved gate and up) is settled in load_adapter(), whose views
/// are copied from. Ranks and scalings are kept for each expert: patterns may tell them apart, and
/// an expert that the adapter does not name has rank 0.
class ExpertLoraBuffer {
 public:
  ExpertLoraBuffer(Dtype dtype, const ExpertBufferSizes& sizes);

  /// The experts first_expert, ..., first_expert + E - 1 of `adapter` into a slot; zeros beyond
  /// their ranks. Numbers are rounded once to the buffer's dtype.
  /// Errors   InputError: a slot that does not exist, shapes of another model, a rank above R, fp8
  ///          weights. The slot keeps what it had.
  void load(int32_t slot, const Adapter& adapter, int64_t layer, Projection projection,
            int64_t first_expert = 0);

  /// Rank 0 everywhere.
  void clear(int32_t slot);

  /// Shows this object: do not move or destroy it meanwhile.
  ExpertLoraSlice slice() const { return {a_.view(), b_.view(), ranks_, scalings_}; }

 private:
  void check(int32_t slot) const;
  void check(int32_t slot, const LoraModule& module) const;
  void write(int32_t slot, int64_t expert, const LoraModule* module);

  ExpertBufferSizes sizes_;
  Tensor a_, b_;
  std::vector<int32_t> ranks_;
  std::vector<float> scalings_;
};

}  // namespace loratory::reference
