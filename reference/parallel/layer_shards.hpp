#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Which part of a layer's weights each tp_rank keeps. Letters: P tp_ranks, p one of them,
// R = max_lora_rank, r rank of an adapter, base weight [N, K], A [r, K], B [N, r].
//
// Errors   InputError naming both numbers, for all functions here: a size that P does not divide,
//          a size below 1; fully_sharded without R % P = 0.
// Cost     O(P · slices).
// Source   statements [3.1]-[3.15]; vLLM lora/layers; S-LoRA (arXiv 2311.03285) for fully_sharded.

namespace loratory::reference {

/// Indices begin, ..., begin + count - 1.
struct Range {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  friend bool operator==(const Range&, const Range&) = default;
};

struct ParallelConfig {
  int64_t tp_size = 1;         ///< P
  bool fully_sharded = false;  ///< the other matrix is sharded too: S-LoRA
  int64_t max_lora_rank = 16;  ///< R, of the buffers

  /// Rs = R / P, of the buffer and not of the adapter [3.4].
  int64_t rank_shard() const { return max_lora_rank / tp_size; }
};

/// What one tp_rank keeps of one slice. Rows of A at or beyond r, and rows of B at or beyond N
/// (padding of a vocabulary), are zeros in its buffers.
struct SliceShard {
  Range a_rows;               ///< of R
  Range a_columns;            ///< of K
  std::vector<Range> b_rows;  ///< of N, in the order of the local buffer

  int64_t num_b_rows() const;  ///< N_i of the local buffer
  /// r_p: the adapter's rows of A that lie here. Shrink takes it, expand takes r [1.7].
  int64_t local_rank(int64_t rank) const;
  friend bool operator==(const SliceShard&, const SliceShard&) = default;
};

struct LayerShards {
  ParallelConfig parallel;
  int64_t num_in = 0;                           ///< K
  std::vector<int64_t> num_out;                 ///< N_i of each slice, unsharded
  std::vector<std::vector<SliceShard>> shards;  ///< [P][S]

  int64_t tp_size() const { return parallel.tp_size; }
  size_t num_slices() const { return num_out.size(); }
  int64_t total_out() const;  ///< N
  /// The columns of the unsharded y, rows of the base weight, that tp_rank p's B rows stand for,
  /// in the order of its local y. Row-parallel layers: those it adds a delta to.
  std::vector<Range> y_columns(int64_t p) const;
};

/// Heads of an attention layer. q_size is the base layer's real q output: twice
/// num_heads·head_dim with an output gate [1.27].
struct QkvSizes {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t q_size = 0;
  int64_t kv_size() const { return num_kv_heads * head_dim; }
};

/// B_p = B[p·N/P : (p+1)·N/P); A whole, fully sharded A[p·Rs : (p+1)·Rs) [3.1] [3.4].
LayerShards column_shards(const ParallelConfig& parallel, int64_t num_in, int64_t num_out);

/// One pair for several outputs side by side (gate and up): B_p joins tp_rank p's part of each;
/// one contiguous part would be wrong for P > 1 [3.3]. Two equal halves: shard = N/P/2.
LayerShards fused_column_shards(const ParallelConfig& parallel, int64_t num_in,
                                const std::vector<int64_t>& output_sizes);

/// One pair for each output, each as column_shards [3.5]; after expand_packed() also for one
/// adapter tensor over n outputs [3.6].
LayerShards merged_column_shards(const ParallelConfig& parallel, int64_t num_in,
                                 const std::vector<int64_t>& output_sizes);

/// q, k, v. q: part p of q_size / P rows. k, v: P <= Hkv: part p of kv_size / P; else head
/// p / rep, rep = P / Hkv [3.7]. Also InputError: P does not divide Hq, nor P Hkv, nor Hkv P.
LayerShards qkv_shards(const ParallelConfig& parallel, int64_t num_in, const QkvSizes& sizes);

/// One pair over q | k | v: B_p joins the rows that qkv_shards gives the three [3.8].
LayerShards fused_qkv_shards(const ParallelConfig& parallel, int64_t num_in, const QkvSizes& sizes);

/// A_p = A[:, p·K/P : (p+1)·K/P); B whole, fully sharded B[p·N/P : (p+1)·N/P) [3.9] [3.10].
LayerShards row_shards(const ParallelConfig& parallel, int64_t num_in, int64_t num_out);

/// Everything on every tp_rank, fully sharded or not: replicated linear layers, embeddings (K the
/// vocabulary, N the hidden size), logits added after the gather [3.13]-[3.15].
LayerShards replicated_shards(const ParallelConfig& parallel, int64_t num_in, int64_t num_out);

/// lm_head by vocabulary shard: A whole, B rows [p·Vp, (p+1)·Vp), Vp = padded_vocab / P; rows from
/// `vocab` on are zeros [3.15]. Also InputError: padded_vocab < vocab.
LayerShards vocab_shards(const ParallelConfig& parallel, int64_t hidden, int64_t vocab,
                         int64_t padded_vocab);

}  // namespace loratory::reference
