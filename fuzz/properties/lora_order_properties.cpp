// The order of the arithmetic, and that no way of cutting a batch changes it.
// Method: the definition, which says the order outright; segments computed one after the other from
// the arrays of a layout, row by row, against the whole batch at once. All bit for bit.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/layout/chunked_layout.hpp"
#include "reference/lora/definition.hpp"

namespace loratory::reference {
namespace {

Tensor random_tensor(uint64_t seed, uint64_t stream, Dtype dtype, const Extents& shape) {
  Tensor t(dtype, shape);
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    set_number(t, i, double(random_bits(seed, stream, uint64_t(i)) >> 40) * 0x1p-24 - 0.5);
  }
  return t;
}

// [1.1] [1.4] [1.5] [1.8] [1.9] [1.16] [1.17]: several slices, ragged ranks, NaN beyond them, y of
// any dtype, biases in half of the cases.
RC_GTEST_PROP(LoraOrder, PackedLayersAreTheirDefinition, ()) {
  LoraCase c = any_lora_case();
  c.num_in += int(random_bits(c.seed, 900, 0) % 60);  // orders differ where sums are long
  LoraData data(c, Fill::reals);
  const auto out = Dtype(random_bits(c.seed, 900, 2) % 3);
  const bool has_bias = random_bits(c.seed, 900, 3) % 2 == 0;
  Tensor fast = random_tensor(c.seed, 901, out, data.y.shape()), plain = fast;
  LinearArgs args = data.args();
  std::vector<Tensor> biases;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    biases.push_back(random_tensor(c.seed, 902 + i, out, {c.max_loras, data.num_out[i]}));
    if (has_bias) args.slices[i].bias = std::as_const(biases.back()).view();
  }
  args.y = fast.view();
  lora_linear(args);
  args.y = plain.view();
  lora_linear_definition(args);
  RC_ASSERT(same_bits(fast, plain));
}

// Runs of equal slots as requests.
std::vector<RequestTokens> requests_of(const std::vector<int32_t>& slots) {
  std::vector<RequestTokens> requests;
  for (const int32_t slot : slots) {
    if (requests.empty() || requests.back().slot != slot) requests.push_back({slot, 0});
    ++requests.back().num_tokens;
  }
  return requests;
}

// y of the batch, segment by segment: position i of a segment reads and writes row
// permutation[i] and takes the slot of the segment.
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
