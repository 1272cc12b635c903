#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/attention/paged_attention.hpp"
#include "guarded_tensor.hpp"
#include "reference/numerics/attention_bound.hpp"
#include "reference/numerics/tensor.hpp"
#include "suite.hpp"

// Attention as sequences see it, and as a batch lays it out.

namespace loratory::gpu {

/// What the numbers of a case are: multiples of 1/128 in (-2, 2), exact in every dtype; with q
/// times 8, so that few weights count; with q = 0 and integers in v, so that sums are exact; with
/// one key whose weight is 1 and all others' 0.
enum class AttentionFill : uint8_t { reals, peaked, uniform, one_hot };

/// Whole sequences: the queries, keys and values of every position.
struct Sequences {
  AttentionShape shape;
  AttentionFill fill = AttentionFill::reals;
  uint64_t seed = 0;
  std::vector<int32_t> lengths = {};
  /// Of each sequence: [length, heads, head_dim].
  std::vector<std::vector<float>> q = {}, k = {}, v = {};

  /// Fills q, k and v.
  void draw();
  int32_t group() const { return shape.num_heads / shape.kv_heads; }
};

/// Tokens [first, first + count) of a sequence in a batch; -1: a padded row of one token.
struct Chunk {
  int32_t sequence = -1;
  int32_t first = 0, count = 0;
};

/// How a batch lies in memory, which no result may depend on.
struct BatchLayout {
  uint64_t seed = 0;  ///< of the order of blocks
  int32_t block_size = 16;
  int32_t num_padding = 0;  ///< tokens behind the last row
  int32_t max_context = 0;  ///< what is planned for, if no row is longer
  int64_t q_gap = 0;        ///< between rows of q, as in a packed q|k|v
};

/// A batch on the GPU. What no row owns, and the results before a launch, are NaN.
class AttentionOnGpu {
 public:
  AttentionOnGpu(const Sequences& sequences, std::vector<Chunk> chunks, const BatchLayout& layout);

  /// Enqueues build_work() and the launch; a captured graph may contain it.
  void enqueue(CUstream_st* stream) const;
  /// Enqueues them, waits and reads; fails if something was written around the results, or a
  /// padding token is not 0.
  reference::Tensor run() const;
  /// Results as they are now, after the device has finished.
  reference::Tensor read() const;

  /// Makes this batch another one of the same sizes, in place: what a graph sees when it is
  /// replayed.
  void become(const AttentionOnGpu& other) const;

  const std::vector<Chunk>& chunks() const { return chunks_; }
  int64_t first_token(size_t chunk) const { return row_starts_[chunk]; }
  AttentionPath path() const { return plan_.path(); }

 private:
  const Sequences& sequences_;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> row_starts_, contexts_, token_rows_, tables_;
  int32_t max_blocks_ = 1, most_tokens_ = 1;
  BatchLayout layout_;
  AttentionPlan plan_;
  std::vector<GuardedTensor> tensors_;  // q, out, k, v
  std::vector<DeviceBuffer> arrays_;    // row_starts, contexts, token_rows, tables, workspace

  AttentionPlan make_plan();
  std::vector<int32_t> shuffled_blocks() const;
  void upload_arrays();
  void upload_tensors();
  BatchView batch() const;
};

/// The bits of one token's results, all heads.
std::vector<std::byte> bits_of(const reference::Tensor& out, int64_t token);

/// Of a token and head that the seed picks of each of some chunks, error / bound; the worst. Fails
/// above 1.
double judge(const Trial& trial, const Sequences& sequences, const AttentionOnGpu& batch,
             const reference::Tensor& out, int64_t num_judged);

/// Which arithmetic a path has.
reference::AttentionArithmetic arithmetic_of(AttentionPath path, reference::Dtype dtype);

}  // namespace loratory::gpu
