#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "reference/base/check.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::reference {

/// Sizes or strides, outermost axis first.
using Extents = std::vector<int64_t>;

/// Strides in elements of a row-major tensor without gaps.
Extents row_major_strides(const Extents& shape);

/// One element at `address`.
double load(Dtype dtype, const std::byte* address);
/// Rounds once, to nearest even.
void store(Dtype dtype, std::byte* address, double value);

/// Somebody else's numbers: address, dtype, shape and strides in elements. Offsets are 64-bit.
/// Element [i, j, ...] lies at data + size_bytes(dtype)·(i·strides[0] + j·strides[1] + ...).
/// Lifetime: the owner's. Indices are asserted.
template <typename Byte>
struct BasicTensorView {
  Dtype dtype = Dtype::f32;
  Byte* data = nullptr;
  Extents shape;
  Extents strides;

  size_t num_axes() const { return shape.size(); }
  int64_t size(size_t axis) const { return shape[axis]; }

  template <typename... Index>
  Byte* address(Index... index) const {
    LORATORY_ASSERT(sizeof...(Index) == shape.size(), "one index for each axis");
    int64_t offset = 0;
    size_t axis = 0;
    ((offset += checked(index, axis) * strides[axis], ++axis), ...);
    return data + offset * int64_t(size_bytes(dtype));
  }
  template <typename... Index>
  double get(Index... index) const {
    return load(dtype, address(index...));
  }
  template <typename... Index>
  void set(double value, Index... index) const {
    static_assert(!std::is_const_v<Byte>, "this view only reads");
    store(dtype, address(index...), value);
  }

  /// The part with index `i` on the outermost axis.
  BasicTensorView operator[](int64_t i) const {
    LORATORY_ASSERT(!shape.empty(), "a number has no parts");
    return {dtype, data + checked(i, 0) * strides[0] * int64_t(size_bytes(dtype)),
            Extents(shape.begin() + 1, shape.end()), Extents(strides.begin() + 1, strides.end())};
  }

  /// [begin, end) of one axis, the others whole.
  BasicTensorView part(size_t axis, int64_t begin, int64_t end) const {
    LORATORY_ASSERT(0 <= begin && begin <= end && end <= shape[axis], "a part of its axis");
    BasicTensorView out = *this;
    if (begin < end) out.data += begin * strides[axis] * int64_t(size_bytes(dtype));
    out.shape[axis] = end - begin;
    return out;
  }

  operator BasicTensorView<const std::byte>() const requires(!std::is_const_v<Byte>) {
    return {dtype, data, shape, strides};
  }

 private:
  int64_t checked(int64_t index, size_t axis) const {
    LORATORY_ASSERT(index >= 0 && index < shape[axis], "an index lies inside its axis");
    return index;
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// Owns its bytes. Row-major without gaps unless strides are given (each >= 0). Starts as zeros.
class Tensor {
 public:
  Tensor(Dtype dtype, Extents shape) : Tensor(dtype, shape, row_major_strides(shape)) {}
  Tensor(Dtype dtype, Extents shape, Extents strides);

  Dtype dtype() const { return dtype_; }
  const Extents& shape() const { return shape_; }
  const Extents& strides() const { return strides_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte>& bytes() { return bytes_; }

  TensorView view() { return {dtype_, bytes_.data(), shape_, strides_}; }
  ConstTensorView view() const { return {dtype_, bytes_.data(), shape_, strides_}; }

  template <typename... Index>
  double get(Index... index) const {
    return view().get(index...);
  }
  template <typename... Index>
  void set(double value, Index... index) {
    view().set(value, index...);
  }

 private:
  Dtype dtype_;
  Extents shape_;
  Extents strides_;
  std::vector<std::byte> bytes_;
};

}  // namespace loratory::reference
