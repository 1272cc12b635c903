#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string_view>
#include <vector>

#include "fuzz/support/draw.hpp"
#include "reference/lora/linear.hpp"
#include "reference/parallel/linear_layers.hpp"

namespace loratory::reference {

/// The kinds of linear layers that a tensor-parallel group cuts in different ways.
enum class LayerKind : uint8_t { column, fused_column, merged, qkv, fused_qkv, row, replicated };
inline constexpr int kNumLayerKinds = 7;
std::string_view name(LayerKind kind);

/// Integers: exact everywhere. Reals: in (-2, 2), in one case of four around the smallest numbers
/// of f16, in one of four such that the halves of every h nearly cancel.
enum class ParallelFill : uint8_t { integers, reals };

/// One layer with adapters in its slots. Everything follows from the seed and the number of tokens.
///
/// Integers are chosen so small that every partial sum is exact in `dtype` wherever it is rounded:
/// values in {-1, 0, 1}, scalings in {0.5, 1, -1}, K·R <= 128 for bf16 and 384 otherwise, so that
/// no sum exceeds 256 (bf16) or 2048 (f16) halves.
struct ParallelCase {
  ParallelCase(uint64_t seed, int num_tokens, ParallelFill numbers,
               std::optional<LayerKind> kind_wanted = std::nullopt);

  LayerShards shards() const { return shards_of(parallel); }
  /// The layer on one tp_rank or on several.
  LayerShards shards_of(const ParallelConfig& config) const;
  std::vector<LoraPairs> adapters() const;

  /// What one process without any cutting computes: lora_linear on buffers of rank R with NaN in
  /// everything that may not be read.
  Tensor whole_result() const;
  /// y of the base layer alone, on one process.
  Tensor whole_base() const;

  LayerKind kind{};
  ParallelConfig parallel;
  Dtype dtype{};
  NumericMode mode;
  bool has_bias = false, gather_output = false, input_is_parallel = false;
  RowOutput row_output{};
  ReduceRounding rounding{};
  QkvSizes qkv;
  int64_t num_in = 0, max_loras = 0;
  std::vector<int64_t> output_sizes;  ///< of the base layer; those of the slices unless fused
  std::vector<int64_t> num_out;       ///< of each slice
  Tensor x{Dtype::f32, {0}}, weight{Dtype::f32, {0}}, bias{Dtype::f32, {0}};
  std::vector<int32_t> slots;
  std::vector<std::vector<int64_t>> ranks;  ///< [L][S], 0: the adapter lacks the slice
  std::vector<std::vector<float>> scalings;
  std::vector<std::vector<Tensor>> a, b;  ///< [L][S], of the adapter's own rank

 private:
  void draw_sizes(sim::Draw& draw, ParallelFill numbers);
  void draw_outputs(sim::Draw& draw);
  void draw_adapters(sim::Draw& draw, ParallelFill numbers);

  double magnitude_ = 1;
  bool cancels_ = false;
};

std::ostream& operator<<(std::ostream& out, const ParallelCase& c);

}  // namespace loratory::reference
