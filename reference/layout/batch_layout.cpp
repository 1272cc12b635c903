#include "reference/layout/batch_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

// The runs of equal slots in sorted order; entries past the last run stay as assigned.
void fill_groups(BatchLayout& layout) {
  const auto& sorted = layout.token_indices_sorted;
  size_t num_groups = 0;
  for (size_t begin = 0; begin < sorted.size();) {
    const int32_t slot = layout.token_lora_mapping[sorted[begin]];
    size_t end = begin;
    while (end < sorted.size() && layout.token_lora_mapping[sorted[end]] == slot) ++end;
    layout.active_lora_ids[num_groups] = slot;
    layout.num_tokens_per_lora[num_groups] = int32_t(end - begin);
    layout.lora_token_start_loc[++num_groups] = int32_t(end);
    begin = end;
  }
}

}  // namespace

void check_requests(std::span<const RequestTokens> requests) {
  int64_t num_tokens = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int32_t of_request = requests[i].num_tokens;
    num_tokens += of_request;
    if (of_request >= 0 && num_tokens <= std::numeric_limits<int32_t>::max()) continue;
    throw InputError(fmt::format("requests[{}]", i),
                     of_request < 0 ? fmt::format("has {} tokens", of_request)
                                    : "the tokens up to here are more than 2^31 - 1");
  }
}

std::vector<int32_t> token_slots(std::span<const RequestTokens> requests) {
  check_requests(requests);
  std::vector<int32_t> slots;
  for (const RequestTokens& r : requests) slots.insert(slots.end(), size_t(r.num_tokens), r.slot);
  return slots;
}

void check_slots(std::span<const int32_t> slots, int32_t max_loras) {
  if (max_loras < 0) throw InputError("max_loras", fmt::format("{} is negative", max_loras));
  for (size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] >= kBaseSlot && slots[t] < max_loras) continue;
    throw InputError(fmt::format("slots[{}]", t),
                     fmt::format("slot {} with max_loras {}", slots[t], max_loras),
                     "use -1 for the base model or a slot below max_loras");
  }
}

void build(std::span<const int32_t> slots, int32_t max_loras, int32_t num_padded_tokens,
           BatchLayout& layout) {
  check_slots(slots, max_loras);
  if (max_loras == std::numeric_limits<int32_t>::max()) {
    throw InputError("max_loras", "with the base model, 2^31 groups", "use less than 2^31 - 1");
  }
  if (num_padded_tokens < int32_t(slots.size())) {
    throw InputError("num_padded_tokens", "smaller than the number of tokens");
  }
  layout.token_lora_mapping.assign(size_t(num_padded_tokens), kBaseSlot);
  std::copy(slots.begin(), slots.end(), layout.token_lora_mapping.begin());

  layout.token_indices_sorted.resize(size_t(num_padded_tokens));
  std::iota(layout.token_indices_sorted.begin(), layout.token_indices_sorted.end(), 0);
  std::stable_sort(layout.token_indices_sorted.begin(), layout.token_indices_sorted.end(),
                   [&](int32_t a, int32_t b) {
                     return layout.token_lora_mapping[a] < layout.token_lora_mapping[b];
                   });

  layout.active_lora_ids.assign(size_t(max_loras) + 1, kBaseSlot);
  layout.num_tokens_per_lora.assign(size_t(max_loras) + 1, 0);
  layout.lora_token_start_loc.assign(size_t(max_loras) + 2, 0);
  fill_groups(layout);
  layout.no_lora = std::all_of(slots.begin(), slots.end(), [](int32_t s) { return s < 0; });
  layout.num_active = max_loras + 1;
}

BatchLayout make_batch_layout(std::span<const int32_t> slots, int32_t max_loras) {
  BatchLayout layout;
  build(slots, max_loras, int32_t(slots.size()), layout);
  return layout;
}

}  // namespace loratory::reference
