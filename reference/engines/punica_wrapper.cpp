#include "reference/engines/punica_wrapper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/layout/sampler_mapping.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/row_arithmetic.hpp"

namespace loratory::reference {
namespace {

int32_t slot_of(const PunicaRequest& request, std::span<const PunicaSlot> slots) {
  if (!request.adapter) return kBaseSlot;
  const auto holds = [&](const PunicaSlot& s) { return s.adapter == request.adapter; };
  const auto found = std::find_if(slots.begin(), slots.end(), holds);
  const std::string place = fmt::format("adapter {}", *request.adapter);
  if (found == slots.end()) throw InputError(place, "is in no slot of this step");
  if (std::find_if(found + 1, slots.end(), holds) != slots.end()) {
    throw InputError(place, "is in two slots");
  }
  return int32_t(found - slots.begin());
}

std::vector<SampledRequest> resolve(std::span<const PunicaRequest> requests,
                                    std::span<const PunicaSlot> slots) {
  std::vector<SampledRequest> resolved;
  for (const PunicaRequest& r : requests) {
    if (r.num_tokens < 0) throw InputError("requests", "have a negative number of tokens");
    resolved.push_back({{slot_of(r, slots), r.num_tokens}, r.samples, r.prompt_logprobs});
  }
  return resolved;
}

// function(slot, rows) for each group of tokens with an adapter.
template <typename Function>
void for_each_adapter(const BatchLayout& layout, Function function) {
  for (int32_t i = 0; i < layout.num_active; ++i) {
    const int32_t slot = layout.active_lora_ids[size_t(i)];
    if (slot == kBaseSlot) continue;  // the base tokens' group, or padding of the list
    const auto begin = size_t(layout.lora_token_start_loc[size_t(i)]);
    const auto count = size_t(layout.num_tokens_per_lora[size_t(i)]);
    function(slot, std::span(layout.token_indices_sorted).subspan(begin, count));
  }
}

void shrink_over(const BatchLayout& layout, ShrinkArgs args) {
  args.slots = layout.token_lora_mapping;
  check_shrink(args);
  if (layout.no_lora) return;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ShrinkSlice& slice = args.slices[i];
    for_each_adapter(layout, [&](int32_t slot, std::span<const int32_t> rows) {
      if (slice.ranks[size_t(slot)] == 0) return;
      shrink_rows({args.x, slice.a[slot], slice.ranks[size_t(slot)], args.h[int64_t(i)]}, rows);
    });
  }
}

}  // namespace

bool PunicaWrapper::update_metadata(std::span<const PunicaRequest> requests,
                                    std::span<const PunicaSlot> slots, int32_t num_padded_tokens,
                                    int64_t vocab_size, int64_t extra_vocab_size) {
  Key key{{requests.begin(), requests.end()}, {}, num_padded_tokens, vocab_size, extra_vocab_size};
  for (const PunicaSlot& s : slots) key.generations.push_back(s.generation);
  if (key_ == key) return false;

  if (int64_t(slots.size()) > max_loras_) throw InputError("slots", "are more than max_loras");
  const std::vector<SampledRequest> resolved = resolve(requests, slots);
  std::vector<RequestTokens> request_tokens;
  for (const SampledRequest& r : resolved) request_tokens.push_back(r.tokens);
  build(token_slots(request_tokens), max_loras_, num_padded_tokens, tokens_);
  SamplerMapping mapping = make_sampler_mapping(resolved);
  logits_ = make_batch_layout(mapping.row_slots, max_loras_);
  logits_tokens_ = std::move(mapping.row_tokens);
  sampler_indices_padded_ = padded_sampler_indices(mapping.row_slots, max_loras_);
  fill_embedding_indices(key);
  key_ = std::move(key);
  return true;
}

void PunicaWrapper::fill_embedding_indices(const Key& key) {
  for (std::vector<int64_t>& row : embedding_indices_) row.clear();
  for (const int32_t slot : tokens_.token_lora_mapping) {
    const int64_t gathered_slot = std::max(slot, 0);
    embedding_indices_[0].push_back(gathered_slot * key.extra_vocab_size);
    embedding_indices_[1].push_back(gathered_slot * (key.vocab_size + key.extra_vocab_size));
  }
}

void PunicaWrapper::add_shrink(const ConstTensorView& x, std::span<const ShrinkSlice> slices,
                               const TensorView& h) const {
  shrink_over(tokens_, {.x = x, .slots = {}, .slices = {slices.begin(), slices.end()}, .h = h});
}

void PunicaWrapper::expand_over(const BatchLayout& layout, ExpandArgs args,
                                const Biases& biases) const {
  args.slots = layout.token_lora_mapping;
  check_expand(args);
  if (layout.no_lora) return;
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpandSlice& slice = args.slices[i];
    for_each_adapter(layout, [&](int32_t slot, std::span<const int32_t> rows) {
      const int32_t rank = slice.ranks[size_t(slot)];
      if (rank == 0) return;
      if (!biases.empty() && biases[i]) add_bias_rows((*biases[i])[slot], offset, rows, args.y);
      expand_rows({.h = args.h[int64_t(i)],
                   .b = slice.b[slot],
                   .rank = rank,
                   .scaling = slice.scalings[size_t(slot)],
                   .offset = offset,
                   .add_inputs = args.add_inputs,
                   .mode = args.mode,
                   .y = args.y},
                  rows);
    });
    offset += slice.b.size(1);
  }
}

void PunicaWrapper::add_expand(const ConstTensorView& h, std::span<const ExpandSlice> slices,
                               int64_t offset_start, bool add_inputs, const NumericMode& mode,
                               const TensorView& y, const Biases& biases) const {
  if (!biases.empty() && biases.size() != slices.size()) {
    throw InputError("biases", "must be one per slice");
  }
  for (size_t i = 0; i < biases.size(); ++i) {
    if (!biases[i]) continue;
    if (!add_inputs) throw InputError("biases", "need add_inputs");
    check_shape("bias", *biases[i], {slices[i].b.size(0), slices[i].b.size(1)});
    check_same_dtype("bias", biases[i]->dtype, "y", y.dtype);
  }
  const ExpandArgs args{.h = h,
                        .slots = {},
                        .slices = {slices.begin(), slices.end()},
                        .offset_start = offset_start,
                        .add_inputs = add_inputs,
                        .mode = mode,
                        .y = y};
  expand_over(tokens_, args, biases);
}

void PunicaWrapper::linear_over(const BatchLayout& layout, LinearArgs args) const {
  args.slots = layout.token_lora_mapping;
  check_linear(args);
  ShrinkArgs down{.x = args.x, .slots = {}, .slices = {}, .h = {}};
  ExpandArgs up{.h = {},
                .slots = {},
                .slices = {},
                .offset_start = args.offset_start,
                .add_inputs = args.add_inputs,
                .mode = args.mode,
                .y = args.y};
  Biases biases;
  int64_t max_rank = 0;
  for (const LoraSlice& slice : args.slices) {
    max_rank = std::max(max_rank, slice.a.size(1));
    down.slices.push_back({slice.a, slice.ranks});
    up.slices.push_back({slice.b, slice.ranks, slice.scalings});
    biases.push_back(slice.bias);
  }
  const bool as_x = args.mode.h == IntermediateMode::store_as_x;
  Tensor h(as_x ? args.x.dtype : Dtype::f32,
           {int64_t(args.slices.size()), int64_t(args.slots.size()), max_rank});
  down.h = h.view();
  up.h = h.view();
  shrink_over(layout, down);
  expand_over(layout, up, biases);
}

void PunicaWrapper::add_lora_linear(const ConstTensorView& x, std::span<const LoraSlice> slices,
                                    int64_t offset_start, bool add_inputs, const NumericMode& mode,
                                    const TensorView& y) const {
  linear_over(tokens_, {.x = x,
                        .slots = {},
                        .slices = {slices.begin(), slices.end()},
                        .offset_start = offset_start,
                        .add_inputs = add_inputs,
                        .mode = mode,
                        .y = y});
}

void PunicaWrapper::add_lora_logits(const ConstTensorView& hidden, const LoraSlice& lm_head,
                                    const NumericMode& mode, const TensorView& logits) const {
  linear_over(logits_, {.x = hidden, .slots = {}, .slices = {lm_head}, .mode = mode, .y = logits});
}

void PunicaWrapper::add_lora_embedding(std::span<const int64_t> token_ids,
                                       const ConstTensorView& a_transposed,
                                       const ExpandSlice& slice, bool add_inputs,
                                       const NumericMode& mode, const TensorView& y) const {
  if (!key_) throw InputError("add_lora_embedding", "needs a step first");
  const int64_t num_rows = key_->vocab_size + key_->extra_vocab_size;
  check_shape("a_transposed", a_transposed, {max_loras_, num_rows, kAnySize});
  check_wide_dtype("a_transposed", a_transposed.dtype);
  if (token_ids.size() != tokens_.token_lora_mapping.size()) {
    throw InputError("token_ids", "must be one per token");
  }
  Tensor h(a_transposed.dtype, {1, int64_t(token_ids.size()), a_transposed.size(2)});
  for (size_t t = 0; t < token_ids.size(); ++t) {
    if (token_ids[t] < 0 || token_ids[t] >= key_->vocab_size) {
      throw InputError(fmt::format("token_ids[{}]", t), "is outside the vocabulary");
    }
    const int64_t row = embedding_indices_[1][t] + token_ids[t];
    for (int64_t j = 0; j < a_transposed.size(2); ++j) {
      h.set(a_transposed.get(row / num_rows, row % num_rows, j), 0, int64_t(t), j);
    }
  }
  add_expand(h.view(), std::span(&slice, 1), 0, add_inputs, mode, y);
}

}  // namespace loratory::reference
