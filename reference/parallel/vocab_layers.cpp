#include "reference/parallel/vocab_layers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"

namespace loratory::reference {
namespace {

// Row t is row token_ids[t] of the weight if that lies in `shard`, else 0.
Tensor masked_lookup(const EmbeddingLayer::Input& in, const Range& shard) {
  const auto num_tokens = int64_t(in.token_ids.size());
  Tensor y(in.weight.dtype, {num_tokens, in.weight.size(1)});
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t id = in.token_ids[size_t(t)];
    if (id < shard.begin || id >= shard.end()) continue;
    for (int64_t n = 0; n < in.weight.size(1); ++n) y.set(in.weight.get(id, n), t, n);
  }
  return y;
}

void check_ids(std::span<const int64_t> ids, int64_t vocab) {
  for (size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] >= 0 && ids[t] < vocab) continue;
    throw InputError(fmt::format("token_ids[{}]", t),
                     fmt::format("id {} is outside the vocabulary of {}", ids[t], vocab));
  }
}

LoraSlice lora_slice(const LocalSlice& slice) {
  return {slice.a.view(), slice.b.view(), slice.expand_ranks, slice.scalings, std::nullopt};
}

Tensor leading_columns(const Tensor& y, int64_t count) {
  Tensor cut(y.dtype(), {y.shape()[0], count});
  const int64_t to = count * int64_t(size_bytes(y.dtype()));
  const int64_t from = y.shape()[1] * int64_t(size_bytes(y.dtype()));
  for (int64_t row = 0; row < y.shape()[0]; ++row) {
    std::copy_n(y.bytes().begin() + row * from, to, cut.bytes().begin() + row * to);
  }
  return cut;
}

}  // namespace

EmbeddingLayer::EmbeddingLayer(const ParallelConfig& parallel, int64_t vocab, int64_t hidden,
                               int64_t num_padded)
    : shards(replicated_shards(parallel, vocab, hidden)), padded_vocab(num_padded) {
  vocab_shards(parallel, hidden, vocab, padded_vocab);  // checks the cut
}

std::vector<Tensor> EmbeddingLayer::run(const Input& in) const {
  check_shape("embedding: weight", in.weight, {shards.num_in, shards.total_out()});
  check_ids(in.token_ids, shards.num_in);
  std::vector<Tensor> y;
  for (int64_t p = 0; p < shards.tp_size(); ++p) {
    const int64_t count = padded_vocab / shards.tp_size();
    y.push_back(masked_lookup(in, {p * count, count}));
  }
  y = all_reduce(y);
  for (size_t p = 0; p < y.size(); ++p) {
    lora_embedding({.token_ids = in.token_ids,
                    .slots = in.slots,
                    .slice = lora_slice(in.buffers[p].slices[0]),
                    .mode = in.mode,
                    .y = y[p].view()});
  }
  return y;
}

LogitsLayer::LogitsLayer(LogitsForm logits_form, const ParallelConfig& parallel, int64_t hidden,
                         int64_t vocab, int64_t padded_vocab)
    : form(logits_form),
      base(vocab_shards(parallel, hidden, vocab, padded_vocab)),
      shards(form == LogitsForm::by_shard ? base : replicated_shards(parallel, hidden, vocab)) {}

std::vector<Tensor> LogitsLayer::run(const LayerInput& in) const {
  check_layer_input(base, in);
  if (in.skip_bias_add) throw InputError("logits: skip_bias_add", "lm_head adds its bias itself");
  std::vector<Tensor> y;
  for (size_t p = 0; p < in.x.size(); ++p) {
    y.push_back(local_base(in.x[p], in, base.shards[p][0].b_rows, {0, base.num_in}, true));
    if (form == LogitsForm::by_shard) {
      local_expand(local_shrink(in.x[p], in.buffers[p], in), in.buffers[p], in, 0, y[p]);
    }
  }
  y = all_gather(y, 1);
  for (size_t p = 0; p < y.size(); ++p) {
    if (form == LogitsForm::after_gather) {
      local_expand(local_shrink(in.x[p], in.buffers[p], in), in.buffers[p], in, 0, y[p]);
    }
    y[p] = leading_columns(y[p], shards.total_out());
  }
  return y;
}

}  // namespace loratory::reference
