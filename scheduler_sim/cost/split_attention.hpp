#pragma once

#include <cstdint>

namespace loratory::sim {

/// One call of FlashAttention 3 on one of `tp` GPUs over decoding rows and prompts together.
struct AttentionCall {
  int64_t heads = 0, kv_heads = 0;  ///< of this GPU
  int64_t rows = 0;
  int64_t longest_query = 0;    ///< tokens of one row in this step
  int64_t longest_context = 0;  ///< KV entries of one row
};

/// Into how many parts a row's KV cache may be cut. vllm-project/flash-attention 8798f277, which
/// vLLM 0.8.5 has: get_num_splits (hopper/flash_api.cpp) for pages of 16 tokens and a head_dim of
/// 128, num_splits_heuristic (hopper/heuristics.h), on 132 multiprocessors. It looks at the longest
/// row as if it were alone, so that few rows of a large batch are really cut.
int64_t num_kv_splits(const AttentionCall& call);

/// Has the call tiles of 128 queries, decoding rows too? There are 64 where the longest row has no
/// more: queries, or queries x heads of a KV head if rows may be cut (hopper/heuristics.h,
/// use_one_mma_wg, for a head_dim of 128; flash_api.cpp sets pack_gqa so before it is asked).
bool has_wide_tiles(const AttentionCall& call);

/// Blocks of the kernel that joins the parts, 0 if nothing may be cut:
/// ceil(longest query x heads / 8) for every row (hopper/flash_fwd_combine_launch_template.h). All
/// but those of rows that were cut end at once. vllm-project/vllm 18619 has what it costs, and
/// vllm-project/flash-attention 70 launches only what is needed.
int64_t combine_blocks(const AttentionCall& call);

}  // namespace loratory::sim
