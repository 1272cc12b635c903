#pragma once

#include <optional>
#include <vector>

#include "reference/numerics/matrix.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::reference {

/// 8-bit weights of one slot, cut into the groups of columns that have factors of their own: all
/// columns if there are no blocks.
struct ScaledWeights {
  struct Group {
    Matrix<float> bits;     ///< [rows, columns of this group]
    Vector<float> factors;  ///< [rows]
  };
  std::vector<Group> groups;
  bool is_block = false;
  Dtype dtype = Dtype::f8_e4m3fn;

  int64_t num_products() const;  ///< of one multiply_scaled
};

/// The leading `num_rows` x `num_columns` of `bits`; `scale` is that of the slot: [], [rows] or
/// [groups of rows, groups of columns]. No factor of another group is read.
ScaledWeights read_scaled(const ConstTensorView& bits, const ConstTensorView& scale,
                          int64_t num_rows, int64_t num_columns, const BlockSize& block);

/// weights · v[t] as shrink_quantized defines it. v [T, >= columns], v_scale [], [T, 1] or [T, G].
Vector<float> multiply_scaled(const ScaledWeights& weights, const ConstTensorView& v,
                              const std::optional<ConstTensorView>& v_scale, int64_t t);

}  // namespace loratory::reference
