#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reference/parallel/collectives.hpp"
#include "reference/parallel/local_buffers.hpp"

// Linear layers on P tp_ranks, written as the steps that each tp_rank does and the collectives
// between them. The arithmetic is that of reference/lora (shrink, expand); what is new here is
// where it is cut. Letters as in layer_shards.hpp and lora/linear.hpp.
//
// Common to all layers here:
// Identity   gathered or reduced, y is that of P = 1: equal where every sum is exact, else within
//            the bound of numerics/error_bound.hpp (docs/parallel.md).
// Rounding   base: products and sums in fp32, c ascending, + bias, once to `out`; then as expand();
//            then as the collectives. h goes through collectives in its buffer's dtype: fp32, or
//            x's with store_as_x.
// Errors     InputError of the collectives and of shrink() and expand(), which name the argument.
// Repeats    bitwise, for any number of threads.
// Cost       O(T · (N·K + S·R·(K + N)) + P · T · N).

namespace loratory::reference {

struct LayerInput {
  std::vector<Tensor> x;                  ///< [P] x [T, K], alike unless a layer says otherwise
  std::span<const int32_t> slots;         ///< [T] of the tokens that the layer sees
  ConstTensorView weight;                 ///< [N, K] the base weight; each tp_rank reads its part
  std::optional<ConstTensorView> bias;    ///< [N] of the base layer
  std::span<const LocalBuffers> buffers;  ///< [P]
  NumericMode mode{};
  Dtype out = Dtype::f32;
  /// The bias is left to the caller, who gets it from returned_bias() [3.25].
  bool skip_bias_add = false;
  /// What buffers of h hold before shrink. The result does not depend on it: tests give NaN.
  double h_before = 0;
};

/// y[t, n] = round_out( sum_c weight[n, c]·x[t, c] + bias[n] ).
Tensor base_linear(const Tensor& x, const ConstTensorView& weight,
                   const std::optional<ConstTensorView>& bias, Dtype out);

/// The base layer's part on one tp_rank: rows `rows` of the weight, and of the bias if
/// `with_bias` and not in.skip_bias_add, columns `columns`. Rows past the last are 0.
Tensor local_base(const Tensor& x, const LayerInput& in, const std::vector<Range>& rows,
                  const Range& columns, bool with_bias);

/// Column-parallel: plain, merged, variable, qkv, fused; as its shards say.
///
///   local    y_p = W_p x + bias_p ; h_p = x A_p^T  [S, T, R], fully sharded [S, T, Rs]
///   gather   fully sharded only: h along the rank axis, behind a zeroed tail of every h_p
///   local    y_p += scaling · h B_p^T
///   gather   gather_output only: y along its columns, delta already in it
///
/// Source    statements [3.1]-[3.8].
struct ColumnLayer {
  LayerShards shards;
  bool gather_output = false;

  /// InputError: gather_output with several outputs, whose columns would not stand in order.
  explicit ColumnLayer(LayerShards layer, bool gathers_output = false);

  /// What expand reads on each tp_rank: [S, T, R].
  std::vector<Tensor> intermediate(const LayerInput& in) const;
  /// Of each tp_rank: y in the order of shards.y_columns(p); all of y if gathered.
  std::vector<Tensor> run(const LayerInput& in) const;
  /// What a caller with skip_bias_add adds to each row of each tp_rank's y: the bias of its
  /// columns.
  std::vector<std::optional<Tensor>> returned_bias(const LayerInput& in) const;
};

/// What a row-parallel layer does with the partial results of its tp_ranks.
enum class RowOutput : uint8_t {
  reduced,    ///< all-reduce: y on every tp_rank
  scattered,  ///< reduce-scatter along the tokens (sequence parallel): T/P rows of y each
  partial,    ///< reduce_results=false: the caller sums
};

/// Row-parallel.
///
///   local    y_p = W[:, p] x_p, + bias on tp_rank 0 alone ; h_p = x_p A_p^T  [1, T, R]
///   reduce   fully sharded only: h, so that every tp_rank has all of it
///   local    y_p += scaling · h B_p^T; fully sharded into its own N/P columns, from
///            offset_start = p·N/P on
///   reduce   y, once: base and delta together
///
/// A whole delta on every tp_rank before the reduce would be counted P times: hence partial h with
/// all of B, or whole h with a part of B.
/// Source    statements [3.9]-[3.12].
struct RowLayer {
  LayerShards shards;
  bool input_is_parallel = true;  ///< x[p] is [T, K/P]; false: [T, K], split here first
  RowOutput output = RowOutput::reduced;
  ReduceRounding rounding = ReduceRounding::at_end;  ///< of y; h is summed in fp32

  /// What each tp_rank's expand reads: [1, T, R].
  std::vector<Tensor> intermediate(const LayerInput& in) const;
  std::vector<Tensor> run(const LayerInput& in) const;
  /// With skip_bias_add, all of the bias on every tp_rank: whoever has the reduced y, or rows of
  /// it, adds it once; with RowOutput::partial behind the caller's own sum.
  std::vector<std::optional<Tensor>> returned_bias(const LayerInput& in) const;

 private:
  std::vector<Tensor> local_inputs(const LayerInput& in) const;
};

/// Replicated: every tp_rank computes all of y; no collective, no fully sharded form.
/// Source    statement [3.13].
struct ReplicatedLayer {
  LayerShards shards;

  std::vector<Tensor> run(const LayerInput& in) const;
  /// With skip_bias_add, all of the bias on every tp_rank.
  std::vector<std::optional<Tensor>> returned_bias(const LayerInput& in) const;
};

/// InputError: inputs or buffers that are not one for each tp_rank, a base layer of other sizes.
void check_layer_input(const LayerShards& layer, const LayerInput& in);

/// h of one tp_rank from its buffers, [S, T, rows of A here]. Rows of base tokens are what
/// in.h_before says; those of other tokens are zero from shrink_rank on, so that a gather carries
/// no rest of an earlier step [1.7] [1.8].
Tensor local_shrink(const Tensor& x, const LocalBuffers& buffers, const LayerInput& in);

/// y += delta, from column `offset_start` on.
void local_expand(const Tensor& h, const LocalBuffers& buffers, const LayerInput& in,
                  int64_t offset_start, Tensor& y);

}  // namespace loratory::reference
