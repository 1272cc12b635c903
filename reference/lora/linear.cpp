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

// lora_linear() in two steps, with the buffer h between them.
struct Steps {
  ShrinkArgs down;
  ExpandArgs up;
};

Steps steps_of(const LinearArgs& args, const TensorView& h) {
  Steps steps{.down = {.x = args.x, .slots = args.slots, .slices = {}, .h = h},
              .up = {.h = h,
                     .slots = args.slots,
                     .slices = {},
                     .offset_start = args.offset_start,
                     .add_inputs = args.add_inputs,
                     .mode = args.mode,
                     .y = args.y}};
  for (const LoraSlice& slice : args.slices) {
    steps.down.slices.push_back({slice.a, slice.ranks});
    steps.up.slices.push_back({slice.b, slice.ranks, slice.scalings});
  }
  return steps;
}

// Dtype and shape of h without memory, which is all that checks look at.
TensorView h_of(const LinearArgs& args) {
  int64_t max_rank = 0;
  for (const LoraSlice& slice : args.slices) max_rank = std::max(max_rank, slice.a.size(1));
  const bool as_x = args.mode.h == IntermediateMode::store_as_x;
  const Extents shape{int64_t(args.slices.size()), int64_t(args.slots.size()), max_rank};
  return {as_x ? args.x.dtype : Dtype::f32, nullptr, shape, row_major_strides(shape)};
}

void check_slices(const LinearArgs& args) {
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
}

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

void check_linear(const LinearArgs& args) {
  check_slices(args);
  check_shape("lora_linear: y", args.y, {int64_t(args.slots.size()), kAnySize});
  const Steps steps = steps_of(args, h_of(args));
  check_shrink(steps.down);
  check_expand(steps.up);
}

void lora_linear(const LinearArgs& args) {
  check_linear(args);  // before the bias changes y
  const TensorView described = h_of(args);
  Tensor h(described.dtype, described.shape);
  const Steps steps = steps_of(args, h.view());
  shrink(steps.down);
  add_bias(args);
  expand(steps.up);
}

void lora_logits(const ConstTensorView& hidden, std::span<const int32_t> row_slots,
                 const LoraSlice& lm_head, const NumericMode& mode, const TensorView& logits) {
  lora_linear({.x = hidden, .slots = row_slots, .slices = {lm_head}, .mode = mode, .y = logits});
}

namespace {

// lora_embedding() once h, the gathered columns of A, is there.
ExpandArgs expand_of(const EmbeddingArgs& args, const ConstTensorView& h) {
  const LoraSlice& slice = args.slice;
  return {.h = h,
          .slots = args.slots,
          .slices = {{slice.b, slice.ranks, slice.scalings}},
          .mode = args.mode,
          .y = args.y};
}

Extents h_shape(const EmbeddingArgs& args) {
  return {1, int64_t(args.slots.size()), args.slice.a.size(1)};
}

void check_ids(const EmbeddingArgs& args) {
  const int64_t num_ids = args.slice.a.size(2);
  for (size_t t = 0; t < args.token_ids.size(); ++t) {
    const int64_t id = args.token_ids[t];
    if (id >= 0 && id < num_ids) continue;
    throw InputError(fmt::format("lora_embedding: token_ids[{}]", t),
                     fmt::format("id {} is outside the vocabulary of {}", id, num_ids));
  }
}

}  // namespace

void check_embedding(const EmbeddingArgs& args) {
  const LoraSlice& slice = args.slice;
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
  check_ids(args);
  const Extents shape = h_shape(args);
  check_expand(expand_of(args, {slice.a.dtype, nullptr, shape, row_major_strides(shape)}));
}

void lora_embedding(const EmbeddingArgs& args) {
  check_embedding(args);
  const LoraSlice& slice = args.slice;
  Tensor h(slice.a.dtype, h_shape(args));
  for (int64_t t = 0; t < h.shape()[1]; ++t) {
    const int32_t slot = args.slots[t];
    const int32_t rank = slot == kBaseSlot ? 0 : slice.ranks[slot];
    for (int64_t j = 0; j < rank; ++j) h.set(slice.a.get(slot, j, args.token_ids[t]), 0, t, j);
  }
  expand(expand_of(args, h.view()));
}

}  // namespace loratory::reference
