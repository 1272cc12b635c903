#include "reference/moe/expert_lora.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"

namespace loratory::reference {
namespace {

std::string slice_place(const char* operation, size_t i) {
  return fmt::format("{}: slices[{}]", operation, i);
}

void check_tiles(const std::vector<ExpertTile>& tiles, int64_t max_loras, int64_t num_experts,
                 int64_t num_rows) {
  for (const ExpertTile& tile : tiles) {
    const bool slot_exists = tile.slot >= 0 && tile.slot < max_loras;
    if (!slot_exists || tile.expert < 0 || tile.expert >= num_experts) {
      throw InputError("moe: tiles",
                       fmt::format("slot {}, expert {} do not exist", tile.slot, tile.expert));
    }
    for (const int64_t row : tile.rows) {
      if (row >= 0 && row < num_rows) continue;
      throw InputError("moe: tiles", fmt::format("row {} does not exist", row));
    }
  }
}

// The weights [1, ...] of one slot and expert, as those of a layer with one slot.
ConstTensorView of_expert(const ConstTensorView& weights, const ExpertTile& tile) {
  ConstTensorView one = weights[tile.slot][tile.expert];
  one.shape.insert(one.shape.begin(), 1);
  one.strides.insert(one.strides.begin(), 0);
  return one;
}

size_t index_of(const ExpertTile& tile, int64_t num_experts) {
  return size_t(tile.slot * num_experts + tile.expert);
}

void check_shrink(const ExpertShrinkArgs& args) {
  const int64_t num_rows = args.rows.num_rows(), max_loras = args.adapters.max_loras();
  const int64_t num_experts = args.slices.empty() ? 0 : args.slices[0].a.size(1);
  check_rows(args.rows, num_experts);
  check_adapters(args.adapters, args.rows);
  check_shape("expert_shrink: x", args.x, {kAnySize, kAnySize});
  if (args.x.size(0) != num_rows && args.x.size(0) != args.rows.num_tokens()) {
    throw InputError("expert_shrink: x", fmt::format("has {} rows", args.x.size(0)),
                     "one for each token, or one for each expert of each token");
  }
  check_wide_dtype("expert_shrink: x", args.x.dtype);
  check_wide_dtype("expert_shrink: h", args.h.dtype);
  check_shape("expert_shrink: h", args.h, {int64_t(args.slices.size()), num_rows, kAnySize});
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpertLoraSlice& slice = args.slices[i];
    const std::string place = slice_place("expert_shrink", i);
    check_shape(place + ".a", slice.a, {max_loras, num_experts, kAnySize, args.x.size(1)});
    check_same_dtype(place + ".a", slice.a.dtype, "x", args.x.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras * num_experts,
                std::min(slice.a.size(2), args.h.size(2)));
  }
}

void shrink_tile(const ExpertShrinkArgs& args, size_t i, const ExpertTile& tile) {
  const ExpertLoraSlice& slice = args.slices[i];
  const int32_t rank = slice.ranks[index_of(tile, slice.a.size(1))];
  const auto num_rows = int64_t(tile.rows.size());
  const int64_t num_in = args.x.size(1);
  const bool x_is_by_row = args.x.size(0) == args.rows.num_rows();
  Tensor x(args.x.dtype, {num_rows, num_in}), h(args.h.dtype, {1, num_rows, rank});
  for (int64_t m = 0; m < num_rows; ++m) {
    const int64_t row = tile.rows[size_t(m)];
    const int64_t from = x_is_by_row ? row : args.rows.token(row);
    for (int64_t c = 0; c < num_in; ++c) x.set(args.x.get(from, c), m, c);
  }
  const std::vector<int32_t> slots(tile.rows.size(), 0), ranks{rank};
  shrink({x.view(), slots, {{of_expert(slice.a, tile), ranks}}, h.view()});
  for (int64_t m = 0; m < num_rows; ++m) {
    for (int64_t j = 0; j < rank; ++j) {
      args.h.set(h.get(0, m, j), int64_t(i), tile.rows[size_t(m)], j);
    }
  }
}

}  // namespace

void expert_shrink(const ExpertShrinkArgs& args, const std::vector<ExpertTile>& tiles) {
  check_shrink(args);
  const int64_t num_experts = args.slices.empty() ? 0 : args.slices[0].a.size(1);
  check_tiles(tiles, args.adapters.max_loras(), num_experts, args.rows.num_rows());
  for (const ExpertTile& tile : tiles) {
    if (!args.adapters.is_enabled(tile.slot)) continue;
    for (size_t i = 0; i < args.slices.size(); ++i) shrink_tile(args, i, tile);
  }
}

namespace {

void check_expert_expand(const ExpertExpandArgs& args) {
  const int64_t num_rows = args.rows.num_rows(), max_loras = args.adapters.max_loras();
  const int64_t num_experts = args.slices.empty() ? 0 : args.slices[0].b.size(1);
  check_rows(args.rows, num_experts);
  check_adapters(args.adapters, args.rows);
  check_shape("expert_expand: h", args.h, {int64_t(args.slices.size()), num_rows, kAnySize});
  check_wide_dtype("expert_expand: h", args.h.dtype);
  if (!args.router_weights.empty() && int64_t(args.router_weights.size()) != num_rows) {
    throw InputError("expert_expand: router_weights", "must be one per row");
  }
  int64_t num_columns = 0;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpertLoraSlice& slice = args.slices[i];
    const std::string place = slice_place("expert_expand", i);
    check_shape(place + ".b", slice.b, {max_loras, num_experts, kAnySize, kAnySize});
    check_wide_dtype(place + ".b", slice.b.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras * num_experts,
                std::min(slice.b.size(3), args.h.size(2)));
    check_scalings(place + ".scalings", slice.scalings, max_loras * num_experts);
    num_columns += slice.b.size(2);
  }
  check_output("expert_expand", args.y, num_rows, args.offset_start, num_columns);
}

// scaling · sum h B of the rows of a tile, in fp32 and not yet rounded any further.
Tensor tile_delta(const ExpertExpandArgs& args, size_t i, const ExpertTile& tile) {
  const ExpertLoraSlice& slice = args.slices[i];
  const size_t index = index_of(tile, slice.b.size(1));
  const auto num_rows = int64_t(tile.rows.size());
  const std::vector<int32_t> slots(tile.rows.size(), 0), ranks{slice.ranks[index]};
  const std::vector<float> scalings{slice.scalings[index]};
  Tensor h(args.h.dtype, {1, num_rows, ranks[0]}), d(Dtype::f32, {num_rows, slice.b.size(2)});
  for (int64_t m = 0; m < num_rows; ++m) {
    for (int64_t j = 0; j < ranks[0]; ++j) {
      h.set(args.h.get(int64_t(i), tile.rows[size_t(m)], j), 0, m, j);
    }
  }
  expand({.h = h.view(),
          .slots = slots,
          .slices = {{of_expert(slice.b, tile), ranks, scalings}},
          .add_inputs = false,
          .mode = {args.mode.h, SumMode::one_round, args.mode.scale},
          .y = d.view()});
  return d;
}

void expand_tile(const ExpertExpandArgs& args, size_t i, const ExpertTile& tile, int64_t offset) {
  const ExpertLoraSlice& slice = args.slices[i];
  if (slice.ranks[index_of(tile, slice.b.size(1))] == 0) return;
  const Tensor d = tile_delta(args, i, tile);
  const bool as_weight = args.mode.h == IntermediateMode::cast_to_weight;
  const Dtype delta_dtype = as_weight ? slice.b.dtype : args.y.dtype;
  for (int64_t m = 0; m < d.shape()[0]; ++m) {
    const int64_t row = tile.rows[size_t(m)];
    for (int64_t n = 0; n < d.shape()[1]; ++n) {
      auto v = float(d.get(m, n));
      if (!args.router_weights.empty()) v = args.router_weights[size_t(row)] * v;
      if (args.mode.sum == SumMode::two_round) v = float(round_to(delta_dtype, v));
      args.y.set(float(args.y.get(row, offset + n)) + v, row, offset + n);
    }
  }
}

}  // namespace

void expert_expand(const ExpertExpandArgs& args, const std::vector<ExpertTile>& tiles) {
  check_expert_expand(args);
  const int64_t num_experts = args.slices.empty() ? 0 : args.slices[0].b.size(1);
  check_tiles(tiles, args.adapters.max_loras(), num_experts, args.rows.num_rows());
  for (const ExpertTile& tile : tiles) {
    if (!args.adapters.is_enabled(tile.slot)) continue;
    int64_t offset = args.offset_start;
    for (size_t i = 0; i < args.slices.size(); ++i) {
      expand_tile(args, i, tile, offset);
      offset += args.slices[i].b.size(2);
    }
  }
}

Tensor expert_h_buffer(const ConstTensorView& x, const ExpertRows& rows,
                       const std::vector<ExpertLoraSlice>& slices, const NumericMode& mode) {
  int64_t max_rank = 0;
  for (const ExpertLoraSlice& slice : slices) max_rank = std::max(max_rank, slice.a.size(2));
  const bool as_x = mode.h == IntermediateMode::store_as_x;
  return {as_x ? x.dtype : Dtype::f32, {int64_t(slices.size()), rows.num_rows(), max_rank}};
}

void expert_lora(const ExpertLoraArgs& args, const std::vector<ExpertTile>& tiles) {
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const std::string place = slice_place("expert_lora", i);
    check_shape(place + ".a", args.slices[i].a, {kAnySize, kAnySize, kAnySize, kAnySize});
    check_same_dtype(place + ".b", args.slices[i].b.dtype, "a", args.slices[i].a.dtype);
  }
  Tensor h = expert_h_buffer(args.x, args.rows, args.slices, args.mode);
  expert_shrink({args.x, args.rows, args.adapters, args.slices, h.view()}, tiles);
  expert_expand({.h = h.view(),
                 .rows = args.rows,
                 .adapters = args.adapters,
                 .slices = args.slices,
                 .router_weights = args.router_weights,
                 .mode = args.mode,
                 .y = args.y},
                tiles);
}

}  // namespace loratory::reference
