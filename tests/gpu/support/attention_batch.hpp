#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/attention/paged_attention.hpp"
#include "reference/numerics/attention_bound.hpp"
#include "reference/numerics/tensor.hpp"
#include "tests/gpu/support/trial.hpp"

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

/// A batch in the host's memory. What no row owns, and the results, are NaN.
class AttentionBatch {
 public:
  AttentionBatch(const Sequences& sequences, std::vector<Chunk> chunks, const BatchLayout& layout);

  const Sequences& sequences() const { return sequences_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const AttentionPlan& plan() const { return plan_; }
  AttentionPath path() const { return plan_.path(); }
  int64_t first_token(size_t chunk) const { return row_starts_[chunk]; }
  int32_t most_tokens() const { return most_tokens_; }  ///< of a row
  bool is_padding(size_t token) const { return token_rows_[token] < 0; }

  enum Array : uint8_t { kRowStarts, kContexts, kTokenRows, kTables, kNumArrays };
  const std::vector<int32_t>& array(Array which) const;
  enum Role : uint8_t { kQuery, kOut, kKeys, kValues, kNumTensors };
  const reference::Tensor& tensor(Role which) const { return tensors_[which]; }
  /// What a launch takes, with the arrays and tensors where they lie on a device.
  BatchView batch(const int32_t* const (&arrays)[kNumArrays]) const;
  AttentionTensors tensors(const DeviceView (&views)[kNumTensors]) const;

  /// Error / bound of one head of a token of a chunk.
  double ratio_of(const reference::Tensor& out, size_t chunk, int32_t token, int32_t head) const;

 private:
  const Sequences& sequences_;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> row_starts_, contexts_, token_rows_, tables_;
  int32_t max_blocks_ = 1, most_tokens_ = 1;
  BatchLayout layout_;
  AttentionPlan plan_;
  std::vector<reference::Tensor> tensors_;

  AttentionPlan make_plan();
  std::vector<int32_t> shuffled_blocks() const;
  void make_tables();
  void make_tensors();
};

/// The bits of one token's results, all heads.
std::vector<std::byte> bits_of(const reference::Tensor& out, int64_t token);

/// The first padding token that is not 0, or -1.
int64_t padding_with_numbers(const AttentionBatch& batch, const reference::Tensor& out);

/// Error / bound of the token and head that the seed picks of each of some chunks; the worst.
/// Fails above 1.
double judge(const Trial& trial, const AttentionBatch& batch, const reference::Tensor& out,
             int64_t num_judged);

/// Of a token of each row, that results are what exact weights give; the sequences have
/// exact_fill().
void expect_exact(const Trial& trial, const AttentionBatch& batch, const reference::Tensor& out);

/// That every token has the bits of the same token in `all`, a batch of whole sequences.
void expect_bits_of(const Trial& trial, const AttentionBatch& batch, const reference::Tensor& out,
                    const AttentionBatch& all, const reference::Tensor& expected);

/// Which arithmetic a path has.
reference::AttentionArithmetic arithmetic_of(AttentionPath path, reference::Dtype dtype);

// --- random cases --------------------------------------------------------------------------------

AttentionShape tensor_core_shape(const Trial& trial);
AttentionShape plain_shape(const Trial& trial);
AttentionFill real_fill(const Trial& trial);
AttentionFill exact_fill(const Trial& trial);

/// Up to four sequences; lengths around the tiles' and pieces' ends are common. `num_queries`:
/// numbers of q, all together.
struct SequenceLimits {
  int64_t num_queries, longest;
};
Sequences sequences_of(const Trial& trial, const AttentionShape& shape, AttentionFill fill,
                       const SequenceLimits& limits);
BatchLayout layout_of(const Trial& trial, uint64_t index, AttentionPath path);

/// Whole sequences.
std::vector<Chunk> whole(const Sequences& s);
/// Sequences in chunks, many of one token, between padded rows, in any order.
std::vector<Chunk> cut(const Trial& trial, uint64_t index, const Sequences& s);
/// One token of each sequence, the last one or one before it; some rows padded.
std::vector<Chunk> decode_rows(const Trial& trial, uint64_t index, const Sequences& s);

}  // namespace loratory::gpu
