#include "reference/lora/linear.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/row_arithmetic.hpp"

namespace loratory::reference {
namespace {

std::vector<ExpandSlice> expand_slices(std::span<const LoraSlice> slices) {
  std::vector<ExpandSlice> out;
  for (const LoraSlice& s : slices) out.push_back({s.b, s.ranks, s.scalings});
  return out;
}

}  // namespace

void check_linear(const LinearArgs& args) {
  const auto num_tokens = int64_t(args.slots.size());
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const LoraSlice& slice = args.slices[i];
    const std::string place = fmt::format("lora_linear: slices[{}]", i);
    check_shape(place + ".a", slice.a, {int64_t(slice.ranks.size()), kAnySize, kAnySize});
    check_shape(place + ".b", slice.b, {int64_t(slice.ranks.size()), kAnySize, kAnySize});
    check_same_dtype(place + ".b", slice.b.dtype, "a", slice.a.dtype);
    if (!slice.bias) continue;
    if (!args.add_inputs) throw InputError(place + ".bias", "needs add_inputs");
    check_shape(place + ".bias", *slice.bias, {slice.a.size(0), slice.b.size(1)});
    check_same_dtype(place + ".bias", slice.bias->dtype, "y", args.y.dtype);
  }
  check_shape("lora_linear: y", args.y, {num_tokens, kAnySize});
}

namespace {

void add_bias(const LinearArgs& args) {
  int64_t offset = args.offset_start;
  for (const LoraSlice& slice : args.slices) {
    for (int32_t t = 0; slice.bias && t < int32_t(args.slots.size()); ++t) {
      const int32_t slot = args.slots[t];
      if (slot == kBaseSlot || slice.ranks[slot] == 0) continue;
      add_bias_rows((*slice.bias)[slot], offset, std::span(&t, 1), args.y);
    }
    offset += slice.b.size(1);
  }
}

}  // namespace

void lora_linear(const LinearArgs& args) {
  check_linear(args);
  int64_t max_rank = 0;
  ShrinkArgs down{.x = args.x, .slots = args.slots, .slices = {}, .h = {}};
  for (const LoraSlice& slice : args.slices) {
    max_rank = std::max(max_rank, slice.a.size(1));
    down.slices.push_back({slice.a, slice.ranks});
  }
  const bool as_x = args.mode.h == IntermediateMode::store_as_x;
  Tensor h(as_x ? args.x.dtype : Dtype::f32,
           {int64_t(args.slices.size()), int64_t(args.slots.size()), max_rank});
  down.h = h.view();
  shrink(down);
  const ExpandArgs up{.h = h.view(),
                      .slots = args.slots,
                      .slices = expand_slices(args.slices),
                      .offset_start = args.offset_start,
                      .add_inputs = args.add_inputs,
                      .mode = args.mode,
                      .y = args.y};
  check_expand(up);  // before the bias changes y
  add_bias(args);
  expand(up);
}

void lora_logits(const ConstTensorView& hidden, std::span<const int32_t> row_slots,
                 const LoraSlice& lm_head, const NumericMode& mode, const TensorView& logits) {
  lora_linear({.x = hidden, .slots = row_slots, .slices = {lm_head}, .mode = mode, .y = logits});
}

void lora_embedding(const EmbeddingArgs& args) {
  const LoraSlice& slice = args.slice;
  const auto num_tokens = int64_t(args.slots.size());
  if (args.token_ids.size() != args.slots.size()) {
    throw InputError("lora_embedding: token_ids", "must be one per slot");
  }
  if (slice.bias) throw InputError("lora_embedding: slice.bias", "embeddings have none");
  const auto max_loras = int64_t(slice.ranks.size());
  check_shape("lora_embedding: slice.a", slice.a, {max_loras, kAnySize, kAnySize});
  check_wide_dtype("lora_embedding: slice.a", slice.a.dtype);
  check_shape("lora_embedding: slice.b", slice.b, {max_loras, kAnySize, kAnySize});
  check_same_dtype("lora_embedding: slice.b", slice.b.dtype, "a", slice.a.dtype);
  check_ranks("lora_embedding: slice.ranks", slice.ranks, max_loras, slice.a.size(1));
  check_slots(args.slots, int32_t(max_loras));
  Tensor h(slice.a.dtype, {1, num_tokens, slice.a.size(1)});
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t id = args.token_ids[t];
    if (id < 0 || id >= slice.a.size(2)) {
      throw InputError(fmt::format("lora_embedding: token_ids[{}]", t),
                       fmt::format("id {} is outside the vocabulary of {}", id, slice.a.size(2)));
    }
    const int32_t slot = args.slots[t];
    const int32_t rank = slot == kBaseSlot ? 0 : slice.ranks[slot];
    for (int64_t j = 0; j < rank; ++j) h.set(slice.a.get(slot, j, id), 0, t, j);
  }
  expand({.h = h.view(),
          .slots = args.slots,
          .slices = {{slice.b, slice.ranks, slice.scalings}},
          .mode = args.mode,
          .y = args.y});
}

}  // namespace loratory::reference
