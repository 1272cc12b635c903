#pragma once

#include <cstdint>
#include <string_view>

#include "gpu/attention/attention_params.hpp"
#include "gpu/model/batch_view.hpp"
#include "gpu/model/kv_view.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/numerics/dtype.hpp"

struct CUstream_st;

// Causal attention of a step's tokens over the paged keys and values of a layer.
//
//   out[t, h] = sum_{j <= p} w_j v_j,   w = softmax_j(scale · q[t, h] · k_j),   j = 0 .. p
//
// where p is the position of token t, and k_j, v_j are those of head h / group at position j of the
// token's row. The last tokens of a row's context are its tokens of this step; their keys and
// values lie in the blocks already.
//
// Rounds   tensor_core path: scores in fp32; the weights 2^(log2(e)·scale·q·k - shift) in fp32 (the
//          exponential to 2^-22), rounded to the model dtype before the product with v; their sum
//          takes them as they were; sums in fp32; out rounded once. plain path: all in fp32, out
//          rounded once. docs/error_bounds.md has the bounds.
// Repeats  Bitwise. A token's result depends on its q, its row's keys and values up to p, and p
//          alone: not on the batch, the chunk that it came in, blocks, strides, or whether a graph
//          replays the launch. What lies in blocks beyond a row's context never enters; a number
//          that is not finite in v of a later token of the same chunk may.
// Cost     Decode reads each key and value once for all heads that share it. A chunk of n tokens
//          takes 4 · head_dim · num_heads operations for each pair of a token and a position.
// Source   The pieces and their merge are FlashDecoding's, the order of a piece FlashAttention-2's.

namespace loratory::gpu {

/// Which implementation computes attention. tensor_core: bf16 and f16, head_dim 64 and 128, up to
/// 16 heads for each kv head, sm_90. plain, on CUDA cores and slow: everything else.
enum class AttentionPath : uint8_t { tensor_core, plain };

std::string_view name(AttentionPath path);

/// What all layers of a model have in common.
struct AttentionShape {
  reference::Dtype dtype = reference::Dtype::bf16;  ///< of q, k, v and out
  int32_t num_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;  ///< tokens of a KV block; a power of two on the tensor_core path
  float scale = 0;         ///< usually 1 / sqrt(head_dim)
};

/// The largest step.
struct AttentionLimits {
  int64_t max_tokens = 0;
  int32_t max_rows = 0;
  int32_t max_context = 0;  ///< of any row
};

/// The tensors of one layer. Rows of q and out are 16-byte aligned on the tensor_core path.
struct AttentionTensors {
  DeviceView q;    ///< [T, num_heads · head_dim]; rows may have gaps, as in a packed q|k|v
  DeviceView out;  ///< [T, num_heads · head_dim]; rows of padding tokens become 0
  KvView kv;
};

/// Attention of one model: checked once, launched for every layer of every step.
class AttentionPlan {
 public:
  /// Errors   InputError naming the argument: sizes out of range, heads that do not divide.
  AttentionPlan(const AttentionShape& shape, const AttentionLimits& limits);

  AttentionPath path() const { return path_; }

  /// Of device memory, aligned to 256 bytes. Steps may share it, one after the other.
  int64_t workspace_bytes() const { return layout_.num_bytes; }

  /// Once for each step, before its first layer: what the kernels go through, from row_starts and
  /// contexts on the device. Never allocates, never waits, may be captured.
  /// Errors   InputError: more tokens or rows than the limits; std::runtime_error from CUDA.
  void build_work(const BatchView& batch, void* workspace, CUstream_st* stream) const;

  /// One layer, after build_work() of the same batch. No row has more than `max_row_tokens` tokens,
  /// which the host knows; 1 says that the step is all decode. Contexts up to max_context are the
  /// caller's duty. Never allocates, never waits, may be captured: the grid follows from the counts
  /// of `batch` and from max_row_tokens alone.
  /// With LaunchOrder::overlaps_previous, keys of decode rows may be read before the previous
  /// kernel has ended, all but those of this step's tokens: earlier steps have written them. The
  /// batch and the work are older than the kernels that may be overlapped. The plain path never
  /// overlaps. Errors   InputError for a tensor or a count; std::runtime_error from CUDA.
  void launch(const AttentionTensors& tensors, const BatchView& batch, int32_t max_row_tokens,
              void* workspace, CUstream_st* stream,
              LaunchOrder order = LaunchOrder::after_previous) const;

 private:
  AttentionShape shape_;
  AttentionLimits limits_;
  AttentionPath path_;
  WorkspaceLayout layout_;

  void check_batch(const BatchView& batch, const void* workspace) const;
  void check_rows(const char* place, const DeviceView& rows, int32_t num_tokens) const;
  void check_kv(const KvView& kv) const;
  AttentionParams params(const BatchView& batch, void* workspace) const;
};

}  // namespace loratory::gpu
