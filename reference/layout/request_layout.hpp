#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {

/// One segment a request, in request order, and for decode steps the requests grouped by slot;
/// the arrays of TokenSpeed.
///
/// The last five fields are launch hints for kernels that do without per-segment look-ups. No
/// result may depend on them [2.26].
/// Source   statements [2.24]-[2.26].
struct RequestLayout {
  std::vector<int32_t> seg_lens;        ///< [R]
  std::vector<int32_t> seg_indptr;      ///< [R + 1]
  std::vector<int32_t> weight_indices;  ///< [R] slot or -1
  int32_t max_len = 0;

  // Decode only (max_len == 1), else empty: the requests with an adapter, grouped by slot.
  std::vector<int32_t> sort_order;    ///< request indices, stable by slot
  std::vector<int32_t> group_slots;   ///< [num_groups]
  std::vector<int32_t> group_starts;  ///< [num_groups] into sort_order
  std::vector<int32_t> group_sizes;   ///< [num_groups]
  int32_t num_groups = 0;
  int32_t max_group_size = 0;

  int32_t single_lora_slot = -1;  ///< every segment is of this slot; -1: not so
  int32_t single_lora_rank = 0;
  int32_t multi_lora_start_slot = -1;  ///< segment i is of start_slot + i; -1: not so
  int32_t multi_lora_count = 0;
  int32_t multi_lora_segment_len = 0;  ///< of every segment, > 32
  int32_t multi_lora_rank = 0;         ///< of every segment

  friend bool operator==(const RequestLayout&, const RequestLayout&) = default;
};

/// Writes every field whatever `layout` held before. lora_ranks and scalings: [max_loras].
/// Errors   InputError: a slot outside [-1, max_loras), ranks and scalings of different lengths; as
///          check_requests().
/// Cost     O(R log R).
void build(std::span<const RequestTokens> requests, std::span<const int32_t> lora_ranks,
           std::span<const float> scalings, RequestLayout& layout);

}  // namespace loratory::reference
