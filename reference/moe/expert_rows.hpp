#pragma once

#include <cstdint>
#include <span>
#include <vector>

// A mixture-of-experts layer works on rows: row t·k + i is token t at its i-th expert. Letters: T
// tokens, k experts of a token, E experts held here, L slots.

namespace loratory::reference {

/// Which expert each row goes to.
struct ExpertRows {
  int64_t experts_per_token = 1;        ///< k
  std::span<const int32_t> experts;     ///< [T·k], those of one token distinct
  std::span<const int32_t> expert_map;  ///< [all experts] -> 0..E-1, or -1: lies elsewhere (expert
                                        ///< parallel); empty: all are here, under their number

  int64_t num_rows() const { return int64_t(experts.size()); }
  int64_t num_tokens() const { return num_rows() / experts_per_token; }
  int64_t token(int64_t row) const { return row / experts_per_token; }
  /// -1: not here.
  int32_t local_expert(int64_t row) const;
};

/// Which adapter each token has.
struct TokenAdapters {
  std::span<const int32_t> slots;            ///< [T]
  std::span<const int32_t> adapter_enabled;  ///< [L + 1], 0: off; [L] belongs to slot -1, which
                                             ///< has no delta whatever it says

  int32_t max_loras() const { return int32_t(adapter_enabled.size()) - 1; }
  bool is_enabled(int32_t slot) const { return adapter_enabled[size_t(slot)] != 0; }
};

/// Errors   InputError: k < 1, rows that are no multiple of k, an expert outside the map (or [0,
///          E)), a map to an expert outside [-1, E), the same expert twice for one token.
void check_rows(const ExpertRows& rows, int64_t num_experts);
/// Errors   InputError: not one slot for each token, a slot outside [-1, L).
void check_adapters(const TokenAdapters& adapters, const ExpertRows& rows);

/// Rows of one slot and one local expert, computed together.
struct ExpertTile {
  int32_t slot = 0, expert = 0;
  std::vector<int64_t> rows;
};

/// One tile for each row with an adapter, in order: the obvious way.
std::vector<ExpertTile> single_row_tiles(const ExpertRows& rows, const TokenAdapters& adapters);

/// The arrays that a kernel walks: for each slot the rows sorted by expert, every expert's rows
/// filled up to whole blocks.
struct AlignedRows {
  int64_t block_size = 1, max_loras = 0, num_rows = 0;
  int64_t max_padded = 0;                       ///< a multiple of block_size
  std::vector<int32_t> sorted_token_ids;        ///< [L, max_padded] rows; >= T·k: padding
  std::vector<int32_t> expert_ids;              ///< [L, max_padded / block_size] -1: skip the block
  std::vector<int32_t> num_tokens_post_padded;  ///< [L] entries of sorted_token_ids in use

  int64_t max_blocks() const { return max_padded / block_size; }
};

/// Experts ascending (by their number in the whole model; then mapped, so that blocks of experts
/// elsewhere remain, as -1), rows of one expert ascending. Slots that are off have no rows.
/// What is not in use holds T·k and -1.
/// Errors   check_rows, check_adapters, block_size < 1.
/// Source   vLLM moe_lora_align_block_size.   Cost  O(L·(T·k + E)).
AlignedRows align_rows(const ExpertRows& rows, const TokenAdapters& adapters, int64_t num_experts,
                       int64_t block_size);

/// One tile for each block that has rows. Entries beyond num_tokens_post_padded and blocks of
/// expert -1 are never looked at: they may be left over from an earlier step.
std::vector<ExpertTile> block_tiles(const AlignedRows& aligned);

}  // namespace loratory::reference
