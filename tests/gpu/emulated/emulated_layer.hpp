#pragma once

#include "fuzz/support/layer_case.hpp"
#include "gpu/api/lora_layer.hpp"
#include "tests/gpu/emulated/emulated_memory.hpp"

namespace loratory::gpu::emulated {

/// A linear of these weights, with a workspace and split sums of its own. `data` outlives it.
inline LoraLayerDesc put_linear(Memory& memory, const reference::LayerData& data) {
  LoraLayerDesc out{.slices = {},
                    .offset_start = data.shape.offset_start,
                    .add_inputs = data.shape.add_inputs,
                    .mode = data.shape.mode};
  out.workspace_bytes =
      workspace_bytes(data.shape.num_tokens, int64_t(data.slices.size()), data.shape.max_rank);
  out.workspace = memory.room(out.workspace_bytes);
  out.split_sums_bytes =
      split_sums_bytes(data.shape.num_tokens, int64_t(data.slices.size()), data.shape.max_rank);
  out.split_sums = memory.zeros(out.split_sums_bytes);
  for (const reference::LayerSlice& slice : data.slices) {
    out.slices.push_back({.a = memory.put(slice.a),
                          .b = memory.put(slice.b),
                          .ranks = slice.ranks.data(),
                          .scalings = slice.scalings.data()});
  }
  return out;
}

}  // namespace loratory::gpu::emulated
