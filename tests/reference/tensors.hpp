// Small tensors by hand.
#pragma once

#include <utility>
#include <vector>

#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

inline Tensor tensor(Dtype dtype, Extents shape, const std::vector<double>& values) {
  Tensor t(dtype, std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    store(dtype, t.bytes().data() + i * size_bytes(dtype), values[i]);
  }
  return t;
}

/// The same number everywhere.
inline Tensor filled(Dtype dtype, Extents shape, double value) {
  Tensor t(dtype, std::move(shape));
  const size_t size = size_bytes(dtype);
  for (size_t i = 0; i < t.bytes().size(); i += size) store(dtype, t.bytes().data() + i, value);
  return t;
}

inline std::vector<double> values(const Tensor& t) {
  std::vector<double> out;
  for (size_t i = 0; i < t.bytes().size(); i += size_bytes(t.dtype())) {
    out.push_back(load(t.dtype(), t.bytes().data() + i));
  }
  return out;
}

}  // namespace loratory::reference
