#pragma once

#include <cstdint>

namespace loratory::sim {

/// What a step takes beside its measured operators. docs/cost_model.md has the sources.
struct StepOverheads {
  /// One of the kernels that the tables lack (norms, rotary embedding, cache write, activation),
  /// beside its bytes.
  double small_kernel_ns = 3000;
  double sampler_ns = 25e3;  ///< the sampler's kernels, beside its bytes per row
  /// Bytes that the sampler moves for each logit to penalise tokens that the request has already;
  /// 0 = no request asks for that.
  double penalty_bytes_per_logit = 0;
  /// The host's tensor of all prompts, which penalties need anew when rows change: for each row.
  double penalty_host_row_ns = 0;

  /// A block of the kernel that joins split attention (combine_blocks), for engines that launch it
  /// for every token that the longest prompt of the step has, in every row; 0 = for none.
  double combine_block_ns = 0;

  /// Attention of decoding rows and prompts in one call, for engines that make one; 0 = each alone.
  /// Tiles of 128 queries (has_wide_tiles) take this much longer than those of 64, for each KV head
  /// of each decoding row; and one call is this much shorter than two.
  double wide_tile_ns = 0;
  double shared_call_ns = 0;

  /// Scheduling, input tensors, outputs: for each step, for each row of it, and for each waiting
  /// request that the walk looks at.
  double host_ns = 0;
  double host_row_ns = 0;
  double host_waiting_ns = 0;
  bool host_overlaps = true;  ///< the host prepares the next step while the GPU computes this one

  /// Steps of up to this many tokens are CUDA graphs, padded to a captured size: 1, 2, 4, then
  /// multiples of 8, and beyond 256 of `graph_stride`.
  int64_t graph_tokens = 512;
  int64_t graph_stride = 16;
  bool graphs_prefill = true;  ///< steps with prefill are graphs too
  double launch_ns = 5000;     ///< the host's time for one kernel outside of graphs
};

/// The tokens that a step of `tokens` computes.
int64_t padded_tokens(const StepOverheads& overheads, int64_t tokens);

}  // namespace loratory::sim
