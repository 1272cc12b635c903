#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loratory::reference {

/// The slot of tokens without adapter.
inline constexpr int32_t kBaseSlot = -1;

/// The tokens that one request has in a step, all of one slot.
struct RequestTokens {
  int32_t slot = kBaseSlot;
  int32_t num_tokens = 0;  ///< scheduled in this step: of a chunk, not of the whole prompt
};

/// InputError where a request has less than no tokens, or all together more than an int32 counts.
void check_requests(std::span<const RequestTokens> requests);

/// token_slots[t] for a flattened batch: the tokens of the requests in their order [2.13].
/// Errors   as check_requests().
std::vector<int32_t> token_slots(std::span<const RequestTokens> requests);

/// Which tokens belong to which slot, sorted once for every kernel of the step; the arrays of
/// vLLM's LoRAKernelMeta.
///
/// Shapes   T tokens with padding, L = max_loras, everything int32.
/// Trap     active_lora_ids holds -1 twice: first for the group of base tokens, if there are any,
///          and then as padding. A loop over groups skips a -1, it does not stop there [2.7].
/// Source   statements [2.1]-[2.9]; vLLM, lora/ops/triton_ops/lora_kernel_metadata.py.
struct BatchLayout {
  std::vector<int32_t> token_lora_mapping;    ///< [T] slot of each token, -1 for base and padding
  std::vector<int32_t> token_indices_sorted;  ///< [T] stable sort by slot, base tokens first
  std::vector<int32_t> active_lora_ids;       ///< [L+1] the distinct slots ascending, then -1
  std::vector<int32_t> num_tokens_per_lora;   ///< [L+1] of each active id, then 0
  std::vector<int32_t> lora_token_start_loc;  ///< [L+2] into token_indices_sorted, then 0
  bool no_lora = true;                        ///< every token is a base token
  int32_t num_active = 0;                     ///< extent of the kernel's grid over ids: L+1

  friend bool operator==(const BatchLayout&, const BatchLayout&) = default;
};

/// Writes every element of every array, whatever `layout` held before; the vectors keep their
/// memory. Tokens from slots.size() to num_padded_tokens are padding: base tokens.
/// Errors   InputError: max_loras < 0 or 2^31 - 1, a slot outside [-1, max_loras),
///          num_padded_tokens < slots.size().
/// Cost     O(T + L).
void build(std::span<const int32_t> slots, int32_t max_loras, int32_t num_padded_tokens,
           BatchLayout& layout);

/// Without padding.
BatchLayout make_batch_layout(std::span<const int32_t> slots, int32_t max_loras);

/// InputError unless every slot lies in [-1, max_loras), and 0 <= max_loras.
void check_slots(std::span<const int32_t> slots, int32_t max_loras);

}  // namespace loratory::reference
