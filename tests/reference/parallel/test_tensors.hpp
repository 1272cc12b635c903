#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/base/input_error.hpp"
#include "reference/parallel/local_buffers.hpp"
#include "tests/reference/tensors.hpp"

// Small tensors for the tests of this folder.

namespace loratory::reference {

/// 0, 1, 2, ...: every row and column can be told from the others.
inline Tensor counting(Extents shape) {
  Tensor t(Dtype::f32, shape);
  for (size_t i = 0; i < t.bytes().size() / 4; ++i) {
    store(Dtype::f32, t.bytes().data() + 4 * i, double(i));
  }
  return t;
}

/// The buffers of every tp_rank with one adapter for each slot (empty: none there).
inline std::vector<LocalBuffers> buffers_of(const LayerShards& layer,
                                            const std::vector<LoraPairs>& adapters, Dtype dtype) {
  std::vector<LocalBuffers> buffers;
  for (int64_t p = 0; p < layer.tp_size(); ++p) {
    buffers.emplace_back(layer, p, int64_t(adapters.size()), dtype);
    for (size_t s = 0; s < adapters.size(); ++s) {
      if (adapters[s].empty()) continue;
      buffers.back().write_slot(int32_t(s), slice_pairs(layer, p, adapters[s], dtype));
    }
  }
  return buffers;
}

/// what() of the InputError that `action` throws; "" if it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

}  // namespace loratory::reference
