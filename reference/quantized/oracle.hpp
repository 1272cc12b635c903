#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/numerics/error_bound.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::reference {

/// What hi + lo in bf16 leave of an fp32 h: docs/error_bounds.md.
inline constexpr double kSplitOfH = 0x1p-17;

/// One element of one stage (shrink or expand) in float64, and what its error depends on. Letters
/// as in docs/error_bounds.md: terms c, bits q and p, factors α and β, groups g of n_g terms.
struct StageFacts {
  double base = 0;         ///< 0 where the old y is not read
  double delta = 0;        ///< s · sum_c q_c p_c α_g β_g; s = 1 in a shrink
  double magnitude = 0;    ///< the same of absolute values
  double underflows = 0;   ///< 1 + |s|·sum_g (1 + |β_g|·(1 + n_g·|α_g|))
  double given = 0;        ///< by how much delta is off before the stage begins: from another h
  int64_t num_terms = 0;   ///< K of a shrink, r of an expand
  bool adds_base = false;  ///< one more sum

  double result() const { return base + delta; }
};

struct StageOracle {
  int64_t num_columns = 0;
  std::vector<std::optional<StageFacts>> elements;  ///< row-major; nothing where not covered

  const std::optional<StageFacts>& at(int64_t row, int64_t column) const {
    return elements[size_t(row * num_columns + column)];
  }
};

/// h[i, t, j] lies at row i·T + t, column j. Written for reading, and apart from the code it
/// judges. Arguments that shrink_quantized accepts. Cost O(T·S·R·K).
StageOracle shrink_oracle(const QuantizedShrinkArgs& args);

/// y[t, n] of expand_quantized from h as it stands in args: already rounded or quantised [1.47].
/// args.y is read as base and not written. Cost O(T·S·R·N).
StageOracle expand_oracle(const QuantizedExpandArgs& args);

/// y[t, n] of lora_linear_quantized. Every implementation has an h of its own; `given` is what
/// those within the bound of a shrink may differ by, quantised to nearest if x is 8-bit. Of
/// `arithmetic` what counts in error_bound, for the shrink. args.y is read as base and not written.
/// Cost O(T·S·R·(K + N)).
StageOracle linear_oracle(const QuantizedLinearArgs& args, const Arithmetic& arithmetic);

/// |v - v*| for h or y in arithmetic.out. Of `arithmetic` only mode.sum, out, unit,
/// operand_rounding and flushes_subnormals count. Never 0.
/// Derivation: docs/error_bounds.md. Source: statements [1.18], [1.47].
/// Valid if no intermediate overflows.
double error_bound(const StageFacts& facts, const Arithmetic& arithmetic);

/// |got - result| / error_bound: above 1 is a wrong result; infinity and NaN as in error_over.
double error_over_bound(double got, const StageFacts& facts, const Arithmetic& arithmetic);

}  // namespace loratory::reference
