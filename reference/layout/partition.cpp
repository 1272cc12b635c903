#include "reference/layout/partition.hpp"

namespace loratory::reference {

Partition partition(const BatchLayout& layout) {
  Partition tokens_of;
  for (size_t i = 0; i < layout.active_lora_ids.size(); ++i) {
    const int32_t slot = layout.active_lora_ids[i];
    if (slot == kBaseSlot) continue;
    const auto begin = layout.token_indices_sorted.begin() + layout.lora_token_start_loc[i];
    tokens_of[slot].assign(begin, begin + layout.num_tokens_per_lora[i]);
  }
  return tokens_of;
}

Partition partition(const ChunkedLayout& layout, int32_t base_slot) {
  Partition tokens_of;
  for (size_t s = 0; s < layout.weight_indices.size(); ++s) {
    const int32_t slot = layout.weight_indices[s];
    if (slot == base_slot) continue;
    auto& tokens = tokens_of[slot];
    tokens.insert(tokens.end(), layout.permutation.begin() + layout.seg_indptr[s],
                  layout.permutation.begin() + layout.seg_indptr[s + 1]);
  }
  return tokens_of;
}

Partition partition(const RequestLayout& layout) {
  Partition tokens_of;
  if (layout.max_len == 1) {
    for (int32_t g = 0; g < layout.num_groups; ++g) {
      auto& tokens = tokens_of[layout.group_slots[g]];
      for (int32_t i = 0; i < layout.group_sizes[g]; ++i) {
        const int32_t request = layout.sort_order[layout.group_starts[g] + i];
        tokens.push_back(layout.seg_indptr[request]);
      }
    }
    return tokens_of;
  }
  for (size_t r = 0; r < layout.weight_indices.size(); ++r) {
    const int32_t slot = layout.weight_indices[r];
    if (slot == kBaseSlot || layout.seg_lens[r] == 0) continue;
    for (int32_t t = layout.seg_indptr[r]; t < layout.seg_indptr[r + 1]; ++t) {
      tokens_of[slot].push_back(t);
    }
  }
  return tokens_of;
}

}  // namespace loratory::reference
