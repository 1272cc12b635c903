#include "reference/numerics/tensor.hpp"

#include <cstring>

namespace loratory::reference {
namespace {

// Little-endian, as safetensors and every supported machine.
template <typename Bits>
uint32_t load_bits(const std::byte* address) {
  Bits bits;
  std::memcpy(&bits, address, sizeof bits);
  return bits;
}

int64_t num_spanned_elements(const Extents& shape, const Extents& strides) {
  int64_t last = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    LORATORY_ASSERT(shape[axis] >= 0 && strides[axis] >= 0, "sizes and strides of a tensor");
    if (shape[axis] == 0) return 0;
    last += (shape[axis] - 1) * strides[axis];
  }
  return last + 1;
}

}  // namespace

Extents row_major_strides(const Extents& shape) {
  Extents strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

double load(Dtype dtype, const std::byte* address) {
  switch (size_bytes(dtype)) {
    case 4:
      return decode(dtype, load_bits<uint32_t>(address));
    case 2:
      return decode(dtype, load_bits<uint16_t>(address));
    default:
      return decode(dtype, load_bits<uint8_t>(address));
  }
}

void store(Dtype dtype, std::byte* address, double value) {
  const uint32_t bits = encode(dtype, value);
  std::memcpy(address, &bits, size_bytes(dtype));
}

Tensor::Tensor(Dtype dtype, Extents shape, Extents strides)
    : dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)) {
  LORATORY_ASSERT(shape_.size() == strides_.size(), "one stride for each axis");
  bytes_.resize(size_t(num_spanned_elements(shape_, strides_)) * size_bytes(dtype_));
}

}  // namespace loratory::reference
