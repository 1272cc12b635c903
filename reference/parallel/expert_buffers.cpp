#include "reference/parallel/expert_buffers.hpp"

#include <fmt/format.h>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

// [L·E', rows, columns] as [L, E', rows, columns].
ConstTensorView by_expert(const Tensor& t, int64_t num_experts) {
  ConstTensorView view = t.view();
  const int64_t of_expert = view.strides[0];
  view.shape = {view.shape[0] / num_experts, num_experts, view.shape[1], view.shape[2]};
  view.strides = {of_expert * num_experts, of_expert, view.strides[1], view.strides[2]};
  return view;
}

int64_t experts_here(const ExpertLayer& layer, const MoeParallel& how) {
  if (!how.expert_parallel) return layer.num_experts;
  if (how.fully_sharded) {
    throw InputError("fully_sharded", "is not possible with expert parallelism",
                     "turn one of the two off");
  }
  if (how.tp_size < 1 || layer.num_experts % how.tp_size != 0) {
    throw InputError("experts",
                     fmt::format("{} tp_ranks do not divide {}", how.tp_size, layer.num_experts));
  }
  return layer.num_experts / how.tp_size;
}

// Of the slices of w13, then of w2. Whole experts are those of one process.
std::vector<LayerShards> expert_shards(const ExpertLayer& layer, const MoeParallel& how,
                                       int64_t max_lora_rank) {
  const ParallelConfig parallel{.tp_size = how.expert_parallel ? 1 : how.tp_size,
                                .fully_sharded = how.fully_sharded,
                                .max_lora_rank = max_lora_rank};
  const int64_t inner = layer.intermediate;
  std::vector<LayerShards> shards;
  if (!layer.gated) {
    shards.push_back(column_shards(parallel, layer.hidden, inner));
  } else if (!layer.fused_w13) {
    shards.assign(2, column_shards(parallel, layer.hidden, inner));
  } else if (layer.fused_rows == GateUpLayout::halves) {
    shards.push_back(fused_column_shards(parallel, layer.hidden, {inner, inner}));
  } else {
    // Rows 2n and 2n + 1 stand side by side, so that the part of both halves is one range [1.39].
    column_shards(parallel, layer.hidden, inner);  // P divides I
    shards.push_back(column_shards(parallel, layer.hidden, 2 * inner));
  }
  shards.push_back(row_shards(parallel, inner, layer.hidden));
  return shards;
}

}  // namespace

LocalExpertBuffers::LocalExpertBuffers(const ExpertLayer& layer, const MoeParallel& how,
                                       int64_t max_lora_rank, int64_t tp_rank, int64_t max_loras,
                                       Dtype dtype)
    : layer_(layer),
      tp_rank_(how.expert_parallel ? 0 : tp_rank),
      num_experts_(experts_here(layer, how)),
      first_expert_(how.expert_parallel ? tp_rank * num_experts_ : 0),
      shards_(expert_shards(layer, how, max_lora_rank)) {
  for (const LayerShards& shards : shards_) {
    buffers_.emplace_back(shards, tp_rank_, max_loras * num_experts_, dtype);
  }
}

void LocalExpertBuffers::write_slot(int32_t slot, const ExpertPairs& adapter) {
  if (int64_t(adapter.size()) != layer_.num_experts) {
    throw InputError("expert_pairs", fmt::format("{} experts, the layer has {}", adapter.size(),
                                                 layer_.num_experts));
  }
  const Dtype dtype = buffers_[0].slices[0].a.dtype();
  std::vector<std::vector<LocalPairs>> parts;  // [E'][S + 1], before anything is written
  for (int64_t e = 0; e < num_experts_; ++e) {
    const LoraPairs& pairs = adapter[size_t(first_expert_ + e)];
    const std::string place = fmt::format("expert_pairs[{}]", first_expert_ + e);
    if (pairs.size() != shards_.size()) {
      throw InputError(place, fmt::format("{} pairs for {}", pairs.size(), shards_.size()));
    }
    parts.emplace_back();
    for (size_t i = 0; i < shards_.size(); ++i) {
      try {
        parts.back().push_back(slice_pairs(shards_[i], tp_rank_, {pairs[i]}, dtype));
      } catch (const InputError& error) {
        throw InputError(fmt::format("{}[{}]", place, i), error.what());
      }
    }
  }
  for (int64_t e = 0; e < num_experts_; ++e) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i].write_slot(int32_t(slot * num_experts_ + e), parts[size_t(e)][i]);
    }
  }
}

void LocalExpertBuffers::clear_slot(int32_t slot) {
  for (LocalBuffers& buffers : buffers_) {
    for (int64_t e = 0; e < num_experts_; ++e) {
      buffers.clear_slot(int32_t(slot * num_experts_ + e));
    }
  }
}

std::vector<ExpertLoraSlice> LocalExpertBuffers::slices(bool of_shrink) const {
  std::vector<ExpertLoraSlice> out;
  for (const LocalBuffers& buffers : buffers_) {
    const LocalSlice& slice = buffers.slices[0];
    out.push_back({.a = by_expert(slice.a, num_experts_),
                   .b = by_expert(slice.b, num_experts_),
                   .ranks = of_shrink ? slice.shrink_ranks : slice.expand_ranks,
                   .scalings = slice.scalings});
  }
  return out;
}

}  // namespace loratory::reference
