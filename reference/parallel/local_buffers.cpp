#include "reference/parallel/local_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

std::string text(int64_t rows, int64_t columns) { return fmt::format("[{}, {}]", rows, columns); }

void check_pair(const std::string& place, const LayerShards& layer, const LoraPair& pair,
                int64_t num_out) {
  const auto fits = [](const ConstTensorView& m, int64_t rows, int64_t columns) {
    return m.num_axes() == 2 && m.size(0) == rows && m.size(1) == columns;
  };
  const int64_t rank = pair.a.num_axes() == 2 ? pair.rank() : 0;
  if (rank < 1 || rank > layer.parallel.max_lora_rank) {
    throw InputError(place + ".a",
                     fmt::format("rank {} is outside [1, {}]", rank, layer.parallel.max_lora_rank));
  }
  if (!fits(pair.a, rank, layer.num_in)) {
    throw InputError(place + ".a", "is not " + text(rank, layer.num_in));
  }
  if (!fits(pair.b, num_out, rank)) {
    throw InputError(place + ".b", "is not " + text(num_out, rank));
  }
  if (!std::isfinite(pair.scaling)) throw InputError(place + ".scaling", "is not finite");
}

LocalPair empty_pair(const LayerShards& layer, const SliceShard& shard, Dtype dtype) {
  return {.a = Tensor(dtype, {shard.a_rows.count, shard.a_columns.count}),
          .b = Tensor(dtype, {shard.num_b_rows(), layer.parallel.max_lora_rank})};
}

LocalPair slice_pair(const LayerShards& layer, const SliceShard& shard, const LoraPair& pair,
                     Dtype dtype) {
  LocalPair local = empty_pair(layer, shard, dtype);
  local.shrink_rank = int32_t(shard.local_rank(pair.rank()));
  local.expand_rank = int32_t(pair.rank());
  local.scaling = pair.scaling;
  for (int64_t j = 0; j < local.shrink_rank; ++j) {
    for (int64_t c = 0; c < shard.a_columns.count; ++c) {
      local.a.set(pair.a.get(shard.a_rows.begin + j, shard.a_columns.begin + c), j, c);
    }
  }
  const Tensor rows = take_rows(pair.b, shard.b_rows);
  for (int64_t n = 0; n < shard.num_b_rows(); ++n) {
    for (int64_t j = 0; j < local.expand_rank; ++j) local.b.set(rows.get(n, j), n, j);
  }
  return local;
}

void copy_into_slot(const Tensor& from, int64_t slot, Tensor& to) {
  const size_t size = from.bytes().size();
  LORATORY_ASSERT((slot >= 0 && slot < to.shape()[0]), "a slot of these buffers");
  LORATORY_ASSERT((size * size_t(to.shape()[0]) == to.bytes().size()), "pairs of this layer");
  std::copy(from.bytes().begin(), from.bytes().end(), to.bytes().begin() + int64_t(size) * slot);
}

}  // namespace

std::vector<BufferShape> buffer_shapes(const LayerShards& layer, int64_t tp_rank,
                                       int64_t max_loras) {
  std::vector<BufferShape> shapes;
  for (const SliceShard& shard : layer.shards[size_t(tp_rank)]) {
    shapes.push_back({{max_loras, shard.a_rows.count, shard.a_columns.count},
                      {max_loras, shard.num_b_rows(), layer.parallel.max_lora_rank}});
  }
  return shapes;
}

Tensor take_rows(const ConstTensorView& source, const std::vector<Range>& ranges) {
  Extents shape = source.shape;
  shape[0] = 0;
  for (const Range& range : ranges) shape[0] += range.count;
  Tensor rows(source.dtype, shape);
  int64_t to = 0;
  for (const Range& range : ranges) {
    for (int64_t from = range.begin; from < range.end(); ++from, ++to) {
      if (from >= source.size(0)) continue;
      if (shape.size() == 1) rows.set(source.get(from), to);
      for (int64_t c = 0; shape.size() == 2 && c < shape[1]; ++c) {
        rows.set(source.get(from, c), to, c);
      }
    }
  }
  return rows;
}

LocalPairs slice_pairs(const LayerShards& layer, int64_t tp_rank, const LoraPairs& pairs,
                       Dtype dtype) {
  if (pairs.size() != layer.num_slices()) {
    throw InputError("lora_pairs",
                     fmt::format("{} pairs for {} slices", pairs.size(), layer.num_slices()));
  }
  LocalPairs local;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const SliceShard& shard = layer.shards[size_t(tp_rank)][i];
    if (pairs[i]) {
      check_pair(fmt::format("lora_pairs[{}]", i), layer, *pairs[i], layer.num_out[i]);
      local.push_back(slice_pair(layer, shard, *pairs[i], dtype));
    } else {
      local.push_back(empty_pair(layer, shard, dtype));
    }
  }
  return local;
}

LocalBuffers::LocalBuffers(const LayerShards& layer, int64_t tp_rank, int64_t max_loras,
                           Dtype dtype) {
  const std::vector<int32_t> no_ranks(size_t(max_loras), 0);
  for (const BufferShape& shape : buffer_shapes(layer, tp_rank, max_loras)) {
    slices.push_back({Tensor(dtype, shape.a), Tensor(dtype, shape.b), no_ranks, no_ranks,
                      std::vector<float>(size_t(max_loras), 0.0F)});
  }
}

void LocalBuffers::write_slot(int32_t slot, const LocalPairs& pairs) {
  LORATORY_ASSERT(pairs.size() == slices.size(), "a pair for each slice");
  for (size_t i = 0; i < slices.size(); ++i) {
    copy_into_slot(pairs[i].a, slot, slices[i].a);
    copy_into_slot(pairs[i].b, slot, slices[i].b);
    slices[i].shrink_ranks[size_t(slot)] = pairs[i].shrink_rank;
    slices[i].expand_ranks[size_t(slot)] = pairs[i].expand_rank;
    slices[i].scalings[size_t(slot)] = pairs[i].scaling;
  }
}

void LocalBuffers::clear_slot(int32_t slot) {
  for (LocalSlice& slice : slices) {
    slice.shrink_ranks[size_t(slot)] = slice.expand_ranks[size_t(slot)] = 0;
    slice.scalings[size_t(slot)] = 0;
  }
}

std::vector<ShrinkSlice> LocalBuffers::shrink_slices() const {
  std::vector<ShrinkSlice> out;
  for (const LocalSlice& slice : slices) out.push_back({slice.a.view(), slice.shrink_ranks});
  return out;
}

std::vector<ExpandSlice> LocalBuffers::expand_slices() const {
  std::vector<ExpandSlice> out;
  for (const LocalSlice& slice : slices) {
    out.push_back({slice.b.view(), slice.expand_ranks, slice.scalings});
  }
  return out;
}

}  // namespace loratory::reference
