#include "reference/layout/request_layout.hpp"

#include <algorithm>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

constexpr int32_t kMinMultiLoraSegmentLen = 33;

void fill_segments(std::span<const RequestTokens> requests, RequestLayout& layout) {
  layout.seg_indptr.push_back(0);
  for (const RequestTokens& r : requests) {
    layout.seg_lens.push_back(r.num_tokens);
    layout.seg_indptr.push_back(layout.seg_indptr.back() + r.num_tokens);
    layout.weight_indices.push_back(r.slot);
    layout.max_len = std::max(layout.max_len, r.num_tokens);
  }
}

void fill_groups(std::span<const RequestTokens> requests, RequestLayout& layout) {
  for (size_t i = 0; i < requests.size(); ++i) {
    // Of a decode step's requests one without a token has nothing to compute.
    if (requests[i].slot != kBaseSlot && requests[i].num_tokens > 0) {
      layout.sort_order.push_back(int32_t(i));
    }
  }
  std::stable_sort(layout.sort_order.begin(), layout.sort_order.end(),
                   [&](int32_t a, int32_t b) { return requests[a].slot < requests[b].slot; });
  for (size_t i = 0; i < layout.sort_order.size(); ++i) {
    const int32_t slot = requests[layout.sort_order[i]].slot;
    if (layout.group_slots.empty() || layout.group_slots.back() != slot) {
      layout.group_slots.push_back(slot);
      layout.group_starts.push_back(int32_t(i));
      layout.group_sizes.push_back(0);
    }
    layout.max_group_size = std::max(layout.max_group_size, ++layout.group_sizes.back());
  }
  layout.num_groups = int32_t(layout.group_slots.size());
}

void fill_hints(std::span<const RequestTokens> requests, std::span<const int32_t> lora_ranks,
                std::span<const float> scalings, RequestLayout& layout) {
  if (requests.empty() || requests[0].slot == kBaseSlot) return;
  const RequestTokens& first = requests[0];
  bool single = true, multi = first.num_tokens >= kMinMultiLoraSegmentLen;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestTokens& r = requests[i];
    single &= r.slot == first.slot;
    multi = multi && r.num_tokens == first.num_tokens && r.slot == first.slot + int32_t(i) &&
            lora_ranks[r.slot] == lora_ranks[first.slot] &&
            scalings[r.slot] == scalings[first.slot];
  }
  if (single) {
    layout.single_lora_slot = first.slot;
    layout.single_lora_rank = lora_ranks[first.slot];
  }
  if (multi) {
    layout.multi_lora_start_slot = first.slot;
    layout.multi_lora_count = int32_t(requests.size());
    layout.multi_lora_segment_len = first.num_tokens;
    layout.multi_lora_rank = lora_ranks[first.slot];
  }
}

}  // namespace

void build(std::span<const RequestTokens> requests, std::span<const int32_t> lora_ranks,
           std::span<const float> scalings, RequestLayout& layout) {
  if (lora_ranks.size() != scalings.size()) {
    throw InputError("lora_ranks, scalings", "have different lengths");
  }
  check_requests(requests);
  std::vector<int32_t> slots;
  for (const RequestTokens& r : requests) slots.push_back(r.slot);
  check_slots(slots, int32_t(lora_ranks.size()));

  layout = RequestLayout{};
  fill_segments(requests, layout);
  if (layout.max_len == 1) fill_groups(requests, layout);
  fill_hints(requests, lora_ranks, scalings, layout);
}

}  // namespace loratory::reference
