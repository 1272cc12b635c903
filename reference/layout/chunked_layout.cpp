#include "reference/layout/chunked_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

void check(std::span<const RequestTokens> requests, int32_t segment_size, size_t num_ranks,
           size_t num_scalings) {
  if (segment_size < 1) throw InputError("segment_size", "less than 1");
  if (num_ranks != num_scalings) {
    throw InputError("lora_ranks, scalings", "have different lengths");
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].slot >= 0 && size_t(requests[i].slot) < num_ranks) continue;
    throw InputError(fmt::format("requests[{}]", i),
                     fmt::format("slot {} has no rank", requests[i].slot),
                     "give the base model a slot of rank 0");
  }
}

}  // namespace

void build(std::span<const RequestTokens> requests, int32_t segment_size,
           std::span<const int32_t> lora_ranks, std::span<const float> scalings,
           ChunkedLayout& layout) {
  check(requests, segment_size, lora_ranks.size(), scalings.size());
  const std::vector<int32_t> row_slot = token_slots(requests);
  const auto num_tokens = int32_t(row_slot.size());

  layout.permutation.resize(row_slot.size());
  std::iota(layout.permutation.begin(), layout.permutation.end(), 0);
  std::stable_sort(layout.permutation.begin(), layout.permutation.end(),
                   [&](int32_t a, int32_t b) { return row_slot[a] < row_slot[b]; });

  layout.weight_indices.clear();
  layout.seg_indptr.assign(1, 0);
  for (int32_t begin = 0; begin < num_tokens;) {
    const int32_t slot = row_slot[layout.permutation[begin]];
    int32_t end = begin;
    while (end < num_tokens && end - begin < segment_size &&
           row_slot[layout.permutation[end]] == slot) {
      ++end;
    }
    layout.weight_indices.push_back(slot);
    layout.seg_indptr.push_back(end);
    begin = end;
  }
  layout.lora_ranks.assign(lora_ranks.begin(), lora_ranks.end());
  layout.scalings.assign(scalings.begin(), scalings.end());
}

std::vector<RequestTokens> with_base_slot(std::span<const RequestTokens> requests,
                                          int32_t base_slot) {
  std::vector<RequestTokens> moved(requests.begin(), requests.end());
  for (RequestTokens& r : moved) {
    if (r.slot == kBaseSlot) r.slot = base_slot;
  }
  return moved;
}

}  // namespace loratory::reference
