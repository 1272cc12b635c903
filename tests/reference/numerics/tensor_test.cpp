#include "reference/numerics/tensor.hpp"

#include <gtest/gtest.h>

namespace loratory::reference {
namespace {

TEST(Tensor, RowMajorByDefault) {
  Tensor t(Dtype::bf16, {2, 3, 4});
  EXPECT_EQ(t.strides(), (Extents{12, 4, 1}));
  EXPECT_EQ(t.bytes().size(), 48U);
  t.set(1.5, 1, 2, 3);
  EXPECT_EQ(t.get(1, 2, 3), 1.5);
  EXPECT_EQ(t.view()[1][2].get(3), 1.5);
  EXPECT_EQ(t.bytes()[46], std::byte{0xC0});
}

TEST(Tensor, StridesLeaveGaps) {
  Tensor t(Dtype::f32, {3, 2}, {5, 2});
  EXPECT_EQ(t.bytes().size(), 4U * 13);
  t.set(7, 2, 1);
  EXPECT_EQ(load(Dtype::f32, t.bytes().data() + 4 * 12), 7);
  EXPECT_TRUE(Tensor(Dtype::f16, {0, 4}).bytes().empty());
}

TEST(Tensor, StoreRoundsToNearestEven) {
  Tensor t(Dtype::bf16, {2});
  t.set(1 + 0x1p-8, 0);
  t.set(1 + 0x1p-8 * 1.01, 1);
  EXPECT_EQ(t.get(0), 1.0);
  EXPECT_EQ(t.get(1), 1 + 0x1p-7);
}

TEST(TensorDeathTest, IndexOutsideIsAProgrammerError) {
  Tensor t(Dtype::f32, {2, 2});
  EXPECT_DEATH(t.get(0, 2), "inside its axis");
  EXPECT_DEATH(t.get(0), "one index for each axis");
}

}  // namespace
}  // namespace loratory::reference
