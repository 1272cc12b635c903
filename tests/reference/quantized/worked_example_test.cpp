// The worked numbers of an fp8 expand.
#include <gtest/gtest.h>

#include "reference/quantized/quantized_linear.hpp"
#include "tests/reference/tensors.hpp"

namespace loratory::reference {
namespace {

// y of h = [1, 1, 1, 1] and B = [1, 2, 4, 1] under these factors.
double expanded(Dtype dtype, const Tensor& b_scale, BlockSize block) {
  const Tensor h = tensor(Dtype::f32, {1, 1, 4}, {1, 1, 1, 1});
  const Tensor b = tensor(dtype, {1, 1, 4}, {1, 2, 4, 1});
  Tensor y(Dtype::f32, {1, 1});
  const std::vector<int32_t> slots{0}, ranks{4};
  const std::vector<float> scalings{1};
  QuantizedExpandArgs args;
  args.h = h.view();
  args.slots = slots;
  args.slices = {{b.view(), b_scale.view(), ranks, scalings}};
  args.block = block;
  args.y = y.view();
  expand_quantized(args);
  return y.get(0, 0);
}

// A.5, [1.44] [1.46]: 3 · 0.5 + 5 · 2 by block, 8 · 0.5 by tensor.
TEST(QuantizedExpand, WorkedExample) {
  for (const Dtype dtype : {Dtype::f8_e4m3fn, Dtype::f8_e5m2}) {
    EXPECT_EQ(expanded(dtype, tensor(Dtype::f32, {1, 1, 2}, {0.5, 2}), {1, 2}), 11.5);
    EXPECT_EQ(expanded(dtype, tensor(Dtype::f32, {1}, {0.5}), {0, 0}), 4);
  }
}

}  // namespace
}  // namespace loratory::reference
