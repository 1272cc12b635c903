#pragma once

#include <optional>
#include <vector>

#include "reference/lora/linear.hpp"
#include "reference/numerics/error_bound.hpp"

namespace loratory::reference {

/// What an operation should give, element by element in float64, and what error_bound() needs.
struct Oracle {
  int64_t num_columns = 0;
  std::vector<std::optional<DeltaFacts>> elements;  ///< row-major; nothing where not covered

  const std::optional<DeltaFacts>& at(int64_t row, int64_t column) const {
    return elements[size_t(row * num_columns + column)];
  }
};

/// The formula of lora_linear without any rounding but float64's; mode and bias are not looked
/// at. args.y is read as base and not written.
/// Errors, repeatability: as lora_linear.   Cost  O(T·S·R·(K + N)).
Oracle linear_oracle(const LinearArgs& args);

/// Likewise of expand: h is exact as it is given.
Oracle expand_oracle(const ExpandArgs& args);

/// Likewise of lora_embedding.
Oracle embedding_oracle(const EmbeddingArgs& args);

/// How lora_linear computes with these arguments; for error_bound().
Arithmetic arithmetic_of(const LinearArgs& args);
/// h is exact here, which the bound of a mode that rounds h does not know: it is wider then.
Arithmetic arithmetic_of(const EmbeddingArgs& args);

}  // namespace loratory::reference
