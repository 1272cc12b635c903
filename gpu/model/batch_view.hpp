#pragma once

#include <cstdint>

namespace loratory::gpu {

/// The tokens of one step, as every kernel of a model sees them. A row is one sequence; its tokens
/// lie side by side, in the order of their positions. All arrays are in device memory. Grids follow
/// from the counts here alone, so a captured graph may be replayed after the arrays have changed.
struct BatchView {
  int32_t num_tokens = 0;  ///< T, padding included
  int32_t num_rows = 0;    ///< R: rows that the arrays have room for, padded ones included
  /// [T]. Below 0, the token has yet to come from the GPU itself: last_sampled[-1 - id], what that
  /// row of the step before has sampled.
  const int32_t* token_ids = nullptr;
  const int32_t* last_sampled = nullptr;
  const int32_t* positions = nullptr;  ///< [T] of a token in its sequence, from 0
  /// [T] the row of a token, -1 = padding. A padding token writes no K and V, and no result follows
  /// from its activations: finite numbers, but for its rows of experts, where anything may lie.
  const int32_t* token_rows = nullptr;
  const int32_t* row_starts = nullptr;  ///< [R + 1] the first token of a row
  /// [R] tokens of the row that have K and V once this step's are written; 0 = a padded row.
  const int32_t* contexts = nullptr;
  const int32_t* block_tables = nullptr;  ///< [R, max_blocks]
  int32_t max_blocks = 0;
  int32_t block_size = 0;  ///< tokens of a KV block: a power of two
};

}  // namespace loratory::gpu
