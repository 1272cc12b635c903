#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "scheduler_sim/cost/curve.hpp"
#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/operator_table.hpp"

namespace loratory::sim {

/// The table whose operators a GPU's come from: its own, its nearest relative's, or, of a GPU that
/// is numbers alone, the one with the most similar bandwidth and FLOP/s. Empty if it has none.
std::string_view operator_table_of(const GpuSpec& gpu);

/// Is it the very card that was measured, with its bandwidth, FLOP/s and links?
bool is_measured_card(const OperatorTable& table, const GpuSpec& gpu);

/// Heads of attention on one GPU.
struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool fp8_kv = false;
};

/// The experts of one layer, whole (tp = 1). A token goes through `k` of them.
struct ExpertShape {
  int64_t hidden = 0, intermediate = 0, k = 0, experts = 0;
  enum class Type : uint8_t { bf16, fp8, fp8_block } type = Type::bf16;  ///< of the weights
};

/// Prefill attention of `rows` prompts of `tokens` tokens each. Between the measured lengths it is
/// linear in tokens (tokens + 1000), which a sum of a linear and a quadratic term is nearly.
class PrefillTimes {
 public:
  PrefillTimes() = default;
  explicit PrefillTimes(Surface ns) : ns_(std::move(ns)) {}
  static double scaled(double tokens) { return tokens * (tokens + 1000); }
  double operator()(double rows, double tokens) const { return ns_(rows, scaled(tokens)); }

 private:
  Surface ns_;
};

/// The operators of a table for the shapes of a model, in nanoseconds on a GPU.
///
/// A shape between measured ones is interpolated, linear in each of its sizes: a time is nearly
/// linear in bytes and FLOPs. Beyond them it grows with its bytes and FLOPs.
/// A GPU that is not the measured card gets the card's times taken apart and put together again:
/// time = 3 us + sqrt(read^2 + flops^2 + rest^2), where read = bytes / (0.94 bandwidth) follows the
/// bandwidth, flops = FLOPs / peak the peak, and the rest the multiprocessors x clock (of a GPU of
/// numbers alone: the peak). No time is below the bytes and FLOPs at the peaks of the GPU's
/// datasheet.
class OperatorTimes {
 public:
  OperatorTimes(const OperatorTable& table, const GpuSpec& gpu);

  /// [tokens, k] x [k, n] of bf16, or of FP8 with its activations quantised already, by tokens.
  /// Nothing if the table has none of the type.
  std::optional<Curve> gemm(int64_t n, int64_t k, bool fp8) const;

  /// Decode by rows and mean context. A table times the same small caches again and again, which
  /// then are in the L2; a model's are not. So no time is below the first row's and the bytes at
  /// the bandwidth that the operator reaches where no L2 helps.
  /// `tile_ns` is what each KV head of each row takes beyond the table.
  std::optional<Surface> decode_attention(const AttentionShape& shape, double tile_ns = 0) const;

  /// Whole prompts.
  std::optional<PrefillTimes> prefill_attention(const AttentionShape& shape) const;

  /// Gate, up and down of the experts of one layer on one of `tp` GPUs, by tokens. A shape that was
  /// not measured gets the times of the most similar one x its roofline / the other's.
  std::optional<Curve> experts(const ExpertShape& shape, int tp) const;
  bool has_experts(const ExpertShape& shape, int tp) const;

  /// The sum of `gpus` tensors, by bytes, within a CUDA graph or not. Nothing for numbers of GPUs
  /// that were not measured.
  std::optional<Curve> allreduce(int gpus) const;

 private:
  struct Work;
  double roofline_ns(const GpuSpec& gpu, const Work& work) const;
  double moved_to_gpu(double ns, const Work& work) const;
  double on_gpu(double ns, const Work& work) const;
  void add_ratios(const OperatorGrid& grid, const AttentionShape& neighbour, double weight,
                  bool decode, std::span<const double> rows, std::span<double> ratios) const;
  const OperatorGrid* expert_grid(const ExpertShape& shape) const;
  Work expert_work(const ExpertShape& shape, int tp, double tokens) const;
  Work attention_work(const AttentionShape& shape, double rows, double tokens, bool decode) const;
  std::optional<std::vector<double>> attention(const AttentionShape& shape, bool decode,
                                               std::vector<double>& rows,
                                               std::vector<double>& tokens) const;
  void keep_caches_cold(const AttentionShape& shape, std::span<const double> rows,
                        std::span<const double> tokens, std::vector<double>& ns) const;

  const OperatorTable& table_;
  GpuSpec gpu_, card_;
  bool is_card_ = false;
};

}  // namespace loratory::sim
