#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reference/lora/linear.hpp"
#include "reference/numerics/sum_error.hpp"

namespace loratory::reference {

/// One output element as a random number: y = round(base + round?(delta + error)). Unlike
/// DeltaFacts, which is the same for every implementation, it knows how one computes.
struct DeltaModel {
  double base = 0;
  double delta = 0;  ///< in float64 from numbers rounded where the mode rounds them: h, scaling·B
  double mean = 0;   ///< |mean of the error| <= this
  double deviation = 0;  ///< the rest is sub-Gaussian: P(|.| > z·deviation) <= 2·exp(-z²/2)

  double result() const { return base + delta; }
};

/// The models of one slice's columns for one adapter, row by row.
/// Cost of a row  O(R·(K + N)), about ten times that of computing it.
class SliceModel {
 public:
  /// a is [K][r], empty where h is given exactly; b is [r][N], both row-major; numbers of the
  /// dtypes of `arithmetic`, so that fp32 holds them exactly. Spans must outlive the object.
  /// factor: of delta, besides scaling; it may meet h before h is rounded (router weights).
  SliceModel(std::span<const float> a, std::span<const float> b, int64_t rank, float scaling,
             const Arithmetic& arithmetic, std::optional<float> factor = std::nullopt);
  SliceModel(const SliceModel&) = delete;
  SliceModel& operator=(const SliceModel&) = delete;

  int64_t num_columns() const { return num_columns_; }
  /// x [K]. Base is left 0.
  std::vector<DeltaModel> of_row(std::span<const double> x) const;
  /// h [r], exact.
  std::vector<DeltaModel> of_h(std::span<const double> h) const;

 private:
  struct RandomH;

  std::span<const float> a_;
  int64_t rank_, num_columns_;
  double scaling_;  // times factor; without it if it is in b_
  bool has_factor_;
  Arithmetic arithmetic_;
  Accumulators accumulators_;
  std::vector<float> folded_;     // storage of b_ if folded
  std::span<const float> b_;      // scaling·B if folded
  std::vector<double> doubtful_;  // |.| by which b_ may differ if folding rounds to fp32 first
  std::vector<double> sum_b_;     // sum_j |B_nj|

  void fold(std::span<const float> b, float scaling, float factor);
  void round_h(RandomH& h) const;
  void round_one_h(double& value, double partial, RandomError& error) const;
  std::vector<DeltaModel> expand(const RandomH& h) const;
};

/// The models of all elements, and which rows err independently of each other.
struct DeltaModels {
  int64_t num_columns = 0;
  std::vector<std::optional<DeltaModel>> elements;  ///< row-major; nothing where not covered
  /// Of each row: rows of the same numbers and the same slot have the same errors, and one group.
  std::vector<int64_t> groups;

  const std::optional<DeltaModel>& at(int64_t row, int64_t column) const {
    return elements[size_t(row * num_columns + column)];
  }
};

/// Of lora_linear as `arithmetic` computes it; args.mode and the bias are not looked at. args.y is
/// read as base and not written. factor: as in SliceModel.   Cost  O(T·S·R·(K + N)).
DeltaModels delta_models(const LinearArgs& args, const Arithmetic& arithmetic,
                         std::optional<float> factor = std::nullopt);

/// Likewise of lora_embedding.
DeltaModels delta_models(const EmbeddingArgs& args, const Arithmetic& arithmetic);

/// Of shrink alone, h[i, t, j] at row i·T + t, column j; base is 0. To judge it,
/// `arithmetic.out` is h's dtype and mode.sum one_round.
DeltaModels delta_models(const ShrinkArgs& args, const Arithmetic& arithmetic);

/// Of expand alone, from the numbers that are in args.h.
DeltaModels delta_models(const ExpandArgs& args, const Arithmetic& arithmetic,
                         std::optional<float> factor = std::nullopt);

}  // namespace loratory::reference
