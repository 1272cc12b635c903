#pragma once

#include <vector>

#include "reference/engines/stacked.hpp"
#include "reference/layout/request_layout.hpp"

namespace loratory::reference {

/// The kernels among which TokenSpeed chooses.
enum class Dispatch : uint8_t {
  per_request,     ///< one program a request segment
  grouped,         ///< decode: one program a group of requests of one slot
  single_adapter,  ///< all rows at once, slot and rank from single_lora_*
  multi_adapter,   ///< segment i of slot multi_lora_start_slot + i, all of one length and rank
};

/// Whether the layout's arrays, not its hints alone, allow this kernel: each hint is compared with
/// the segments that it stands for. So a stale or wrong hint cannot be observed [2.26].
bool allows(const RequestLayout& layout, Dispatch dispatch, std::span<const int32_t> lora_ranks,
            std::span<const float> scalings);

/// The kernel for a step: a fast path if one is allowed, else grouped or per_request.
Dispatch choose(const RequestLayout& layout, std::span<const int32_t> lora_ranks,
                std::span<const float> scalings);

struct GroupedArgs {
  ConstTensorView x;  ///< [T, K]
  StackedWeights weights;
  std::span<const int32_t> lora_ranks;  ///< [L]
  std::span<const float> scalings;      ///< [L]
  NumericMode mode = kTokenSpeedMode;
  TensorView y;  ///< [T, >= output_offset.back()]; holds base on entry
};

/// y += delta, on the segments (or groups) that the layout names. Bits of lora_linear() in the same
/// mode, for every kernel that allows() allows.
/// Errors   InputError: a kernel that is not allowed, and as stacked_shrink, stacked_expand.
/// Source   statements [2.24]-[2.26]; TokenSpeed, lora kernels of PR #83.
void grouped_lora(const RequestLayout& layout, Dispatch dispatch, const GroupedArgs& args);

/// With choose()'s kernel.
void grouped_lora(const RequestLayout& layout, const GroupedArgs& args);

}  // namespace loratory::reference
