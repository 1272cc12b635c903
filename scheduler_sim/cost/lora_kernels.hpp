#pragma once

#include <cstdint>
#include <vector>

namespace loratory::sim {

/// Whose LoRA kernels a step runs: ours, vLLM's of two versions, SGLang's default.
enum class LoraKernels : uint8_t { loratory, vllm_08, vllm, sglang };

/// A packed layer on one GPU: slices, B each of its own width, that read one input.
struct LoraLayer {
  int64_t in = 0;  ///< 0: no shrink (an embedding gathers columns of A)
  std::vector<int64_t> widths;
};

/// A layer as its launches see it, counted once.
struct LoraGeometry {
  explicit LoraGeometry(const LoraLayer& layer);

  int64_t in;
  int64_t slices, columns;     ///< columns of all slices
  double tiles_64, tiles_128;  ///< of so many columns, of all slices
  int64_t widest;              ///< columns of a slice
};

/// What a launch sees of a batch.
struct LoraBatch {
  int64_t grid_tokens = 0;       ///< rows of the input, padding of a CUDA graph and all
  int64_t grid_slots = 0;        ///< that the grid is for: those of the batch, or all and one more
  double decode_tokens = 0;      ///< that have an adapter
  double prefill_tokens = 0;     ///< the same, of rows that are not decoding
  double decode_adapters = 0;    ///< distinct
  double prefill_adapters = 0;   ///< distinct, of rows that are not decoding
  double rank = 0;               ///< of each adapter
  double weight_bytes_each = 2;  ///< of a number of A or B

  double adapters() const { return decode_adapters + prefill_adapters; }
  double tokens() const { return decode_tokens + prefill_tokens; }
  /// Tiles of up to `rows` tokens of one adapter, the tokens of adapters being alike: an adapter
  /// has one even for a single token.
  double row_tiles(double rows) const;
};

/// A GPU beside the measured one.
struct LoraScale {
  double blocks = 1;        ///< its time for the same thread blocks
  double bytes = 1;         ///< its time for the same bytes
  double byte_ns = 2.3e-4;  ///< of device memory: the H200 at 4.3 TB/s
};

/// Nanoseconds of shrink and expand of one layer within a CUDA graph, weights cold.
///
/// vLLM's Triton kernels: fixed + (latency^4 + work^4)^(1/4) for each of the two launches, where
/// work = active blocks x their cost (+ idle ones x theirs), at least the weights' bytes:
///   shrink  LoraTiles' splits x slices x ranks / 16 x tiles of 32 rows; latency and cost grow with
///           the iterations over K
///   expand  tiles of columns x tiles of 64 rows; latency and cost grow with the rank
/// A block costs two to four times as much in a layer of several slices, whose pointers the kernel
/// reads from a table, so that it cannot tell that they are aligned.
/// Ours and SGLang's: the same form for the pair, work = bytes + FLOPs + tiles of 16 x 64, where a
/// rank below 16 costs what 16 does. Ours of up to 8 tokens and rank 16 take one launch, whose time
/// is a sum of latencies. Ours of 8 bits take longer for the same bytes.
/// The constants: scripts/fit_lora_kernels.py, from bench/results (one H100, one H200).
/// docs/cost_model.md has the errors.
double lora_pair_ns(LoraKernels kernels, const LoraGeometry& layer, const LoraBatch& batch,
                    const LoraScale& scale);
inline double lora_pair_ns(LoraKernels kernels, const LoraLayer& layer, const LoraBatch& batch,
                           const LoraScale& scale) {
  return lora_pair_ns(kernels, LoraGeometry(layer), batch, scale);
}

/// A thread block that finds no work and ends, of a kernel whose grid covers every slot.
double idle_shrink_block_ns(bool several_slices, bool small_batch);
double idle_expand_block_ns(bool several_slices);

/// The host's time for the launches of a pair outside of CUDA graphs.
double lora_pair_launch_ns(LoraKernels kernels, double kernel_launch_ns);

}  // namespace loratory::sim
