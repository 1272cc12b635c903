// The order of the arithmetic, and that no way of cutting a batch changes it.
// Method: scalar loops that say the order outright; segments computed one after the other from
// the arrays of a layout, row by row, against the whole batch at once. All bit for bit.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/layout/chunked_layout.hpp"

namespace loratory::reference {
namespace {

/// One covered element as [1.16] has it, in the default mode.
double in_index_order(const LoraData& data, size_t i, int64_t t, int64_t n, int64_t column) {
  const int32_t slot = data.slot(t);
  float sum = 0;
  for (int64_t j = 0; j < data.ranks[i][size_t(slot)]; ++j) {
    float h = 0;
    for (int64_t k = 0; k < data.x.shape()[1]; ++k) {
      const float product = float(data.a[i].get(slot, j, k)) * float(data.x.get(t, k));
      h += product;
    }
    const float product = h * float(data.b[i].get(slot, n, j));
    sum += product;
  }
  const float delta = data.scalings[i][size_t(slot)] * sum;
  return round_to(data.y.dtype(), float(data.y.get(t, column)) + delta);
}

// [1.1] [1.16]
RC_GTEST_PROP(LoraOrder, SumsAreInIndexOrder, ()) {
  LoraCase c = any_lora_case();
  c.num_in += int(random_bits(c.seed, 900, 0) % 60);  // orders differ where sums are long
  LoraData data(c, Fill::reals);
  const Tensor y = data.run(kDefaultMode);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    int64_t column = 0;
    for (size_t i = 0; i < data.num_out.size(); ++i) {
      for (int64_t n = 0; n < data.num_out[i]; ++n, ++column) {
        if (!data.covered(t, column)) continue;
        RC_ASSERT(y.get(t, column) == in_index_order(data, i, t, n, column));
      }
    }
  }
}

/// Runs of equal slots as requests.
std::vector<RequestTokens> requests_of(const std::vector<int32_t>& slots) {
  std::vector<RequestTokens> requests;
  for (const int32_t slot : slots) {
    if (requests.empty() || requests.back().slot != slot) requests.push_back({slot, 0});
    ++requests.back().num_tokens;
  }
  return requests;
}

/// y of the batch, segment by segment: position i of a segment reads and writes row
/// permutation[i] and takes the slot of the segment.
Tensor run_in_segments(const LoraData& data, const ChunkedLayout& layout, int32_t base_slot) {
  Tensor y = data.y;
  for (size_t s = 0; s < layout.weight_indices.size(); ++s) {
    const auto positions = layout.permutation.begin();
    const std::vector<int64_t> rows(positions + layout.seg_indptr[s],
                                    positions + layout.seg_indptr[s + 1]);
    LoraData segment = with_tokens(data, rows);
    const int32_t slot = layout.weight_indices[s];
    std::fill(segment.slots.begin(), segment.slots.end(), slot == base_slot ? kBaseSlot : slot);
    const Tensor part = segment.run();
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t n = 0; n < y.shape()[1]; ++n) y.set(part.get(int64_t(i), n), rows[i], n);
    }
  }
  return y;
}

// [2.21] [2.22] P11: segments of any size, taken through the permutation.
RC_GTEST_PROP(LoraOrder, SegmentsOfAnySizeGiveTheSameBits, ()) {
  LoraCase c = any_lora_case();
  c.num_tokens += int(random_bits(c.seed, 900, 1) % 40);
  const LoraData data(c, Fill::reals);
  const Tensor y = data.run();
  const std::vector<int32_t> ranks(size_t(c.max_loras) + 1, c.max_rank);
  const std::vector<float> scalings(ranks.size(), 1);
  const int32_t base_slot = c.max_loras;
  const auto requests = with_base_slot(requests_of(data.slots), base_slot);
  for (const int32_t size : {1, 3, 16, 128}) {
    ChunkedLayout layout;
    build(requests, size, ranks, scalings, layout);
    RC_CLASSIFY(layout.weight_indices.size() > ranks.size(), "a slot has several segments");
    RC_ASSERT(same_bits(run_in_segments(data, layout, base_slot), y));
  }
}

}  // namespace
}  // namespace loratory::reference
