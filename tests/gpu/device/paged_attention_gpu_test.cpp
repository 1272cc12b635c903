// Attention on a GPU: numbers against float64, and bits that do not depend on how a token came in.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "attention_case.hpp"
#include "fuzz/support/lora_case.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

class PagedAttention : public OnGpu {};

template <typename T, size_t n>
T one_of(const Trial& trial, uint64_t index, const T (&values)[n]) {
  return values[trial.pick(index, int64_t(n))];
}

AttentionShape tensor_core_shape(const Trial& trial) {
  constexpr int32_t kGroups[] = {1, 2, 3, 4, 4, 5, 7, 8, 16};
  const int32_t group = one_of(trial, 1, kGroups), kv_heads = int32_t(1 + trial.pick(2, 3));
  const int32_t head_dim = trial.pick(3, 2) == 0 ? 64 : 128;
  trial.classify(head_dim == 64, "head_dim 64");
  trial.classify(128 % group != 0, "groups that tiles cut");
  trial.classify(group > 8, "more than 8 heads for a kv head");
  return {.dtype = trial.pick(4, 2) == 0 ? Dtype::bf16 : Dtype::f16,
          .num_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(float(head_dim))};
}

AttentionShape plain_shape(const Trial& trial) {
  constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::f16};
  constexpr int32_t kHeadDims[] = {1, 8, 20, 32, 96, 130};
  const int32_t group = int32_t(1 + trial.pick(1, 4)), kv_heads = int32_t(1 + trial.pick(2, 2));
  return {.dtype = one_of(trial, 3, kDtypes),
          .num_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = one_of(trial, 4, kHeadDims),
          .scale = 0.3F};
}

/// Up to four sequences; lengths around the tiles' and pieces' ends are common.
Sequences sequences_of(const Trial& trial, const AttentionShape& shape, AttentionFill fill) {
  constexpr int32_t kLengths[] = {1, 2, 16, 63, 64, 65, 128, 200, 255, 256, 257, 320, 511, 513};
  Sequences out{.shape = shape, .fill = fill, .seed = trial.seed()};
  const int64_t per_token = int64_t{shape.num_heads} * shape.head_dim;
  int64_t left = Trial::size(800'000, 200'000) / per_token;
  const int64_t most = std::min<int64_t>(left, Trial::size(1600, 280));
  const int64_t count = 1 + trial.pick(10, 4);
  for (uint64_t i = 0; i < uint64_t(count) && left > 0; ++i) {
    const bool is_round = trial.pick(20 + i, 3) > 0;
    const int64_t length =
        is_round ? one_of(trial, 30 + i, kLengths) : 1 + trial.pick(30 + i, most);
    out.lengths.push_back(int32_t(std::min(length, left)));
    left -= length;
  }
  trial.classify(*std::ranges::max_element(out.lengths) > kPieceKeys, "several pieces");
  out.draw();
  return out;
}

BatchLayout layout_of(const Trial& trial, uint64_t index, AttentionPath path) {
  constexpr int32_t kPowers[] = {1, 8, 16, 16, 32, 64, 256}, kAny[] = {1, 3, 5, 16, 100};
  const bool tensor_cores = path == AttentionPath::tensor_core;
  return {.seed = trial.seed() + index,
          .block_size = tensor_cores ? one_of(trial, index, kPowers) : one_of(trial, index, kAny),
          .num_padding = int32_t(trial.pick(index + 1, 4)),
          .q_gap = 8 * trial.pick(index + 2, 3)};
}

/// Whole sequences.
std::vector<Chunk> whole(const Sequences& s) {
  std::vector<Chunk> out;
  for (size_t i = 0; i < s.lengths.size(); ++i) out.push_back({int32_t(i), 0, s.lengths[i]});
  return out;
}

/// Sequences in chunks, many of one token, between padded rows, in any order.
std::vector<Chunk> cut(const Trial& trial, uint64_t index, const Sequences& s) {
  std::vector<Chunk> out;
  auto next = [i = index * 1000]() mutable { return ++i; };
  for (size_t i = 0; i < s.lengths.size(); ++i) {
    for (int32_t first = 0; first < s.lengths[i];) {
      const int64_t left = s.lengths[i] - first;
      const bool one = trial.pick(next(), 2) == 0;
      const auto count = int32_t(one ? 1 : 1 + trial.pick(next(), left));
      out.push_back({int32_t(i), first, count});
      // Not every token of a long sequence, so that batches stay small.
      first += one ? count + int32_t(trial.pick(next(), 40)) : count;
    }
    if (trial.pick(next(), 2) == 0) out.push_back({});
  }
  for (size_t i = out.size(); i-- > 1;) {
    std::swap(out[i], out[size_t(trial.pick(next(), int64_t(i) + 1))]);
  }
  return out;
}

AttentionFill real_fill(const Trial& trial) {
  const bool peaked = trial.pick(5, 3) == 0;
  trial.classify(peaked, "peaked weights");
  return peaked ? AttentionFill::peaked : AttentionFill::reals;
}

void lies_within_the_bound(const Trial& trial, const AttentionShape& shape, AttentionPath path) {
  const Sequences s = sequences_of(trial, shape, real_fill(trial));
  const AttentionOnGpu batch(s, cut(trial, 1, s), layout_of(trial, 50, path));
  ASSERT_EQ(batch.path(), path);
  judge(trial, s, batch, batch.run(), Trial::size(60, 10));
}

TEST_F(PagedAttention, LiesWithinTheBound) {
  for_all_seeds(40, [](Trial& trial) {
    lies_within_the_bound(trial, tensor_core_shape(trial), AttentionPath::tensor_core);
  });
}

TEST_F(PagedAttention, PlainLiesWithinTheBound) {
  for_all_seeds(30, [](Trial& trial) {
    lies_within_the_bound(trial, plain_shape(trial), AttentionPath::plain);
  });
}

/// The bits of each token in a batch of whole sequences, and in batches that cut them.
void bits_are_the_tokens_own(const Trial& trial, const AttentionShape& shape, AttentionPath path) {
  const Sequences s = sequences_of(trial, shape, real_fill(trial));
  const AttentionOnGpu all(s, whole(s), {.seed = 1});
  const Tensor expected = all.run();
  for (uint64_t batch = 1; batch <= 2; ++batch) {
    const AttentionOnGpu parts(s, cut(trial, batch, s), layout_of(trial, 50 * batch, path));
    const Tensor got = parts.run();
    for (size_t row = 0; row < parts.chunks().size(); ++row) {
      const Chunk& c = parts.chunks()[row];
      for (int32_t i = 0; c.sequence >= 0 && i < c.count; ++i) {
        const int64_t in_whole = all.first_token(size_t(c.sequence)) + c.first + i;
        ASSERT_EQ(bits_of(got, parts.first_token(row) + i), bits_of(expected, in_whole))
            << "sequence " << c.sequence << ", position " << c.first + i << ", in a chunk of "
            << c.count;
        trial.count(got.shape()[1]);
      }
    }
  }
}

// Decode or a chunk, any neighbours, blocks, strides, padding.
TEST_F(PagedAttention, ATokensBitsAreItsOwn) {
  for_all_seeds(40, [](Trial& trial) {
    bits_are_the_tokens_own(trial, tensor_core_shape(trial), AttentionPath::tensor_core);
  });
}

TEST_F(PagedAttention, PlainATokensBitsAreItsOwn) {
  for_all_seeds(20, [](Trial& trial) {
    bits_are_the_tokens_own(trial, plain_shape(trial), AttentionPath::plain);
  });
}

/// The mean of the values up to a position, as an exact sum gives it.
double mean(const Sequences& s, const Chunk& c, int32_t token, int64_t kv_head, int64_t column) {
  const int64_t d = s.shape.head_dim;
  const int32_t count = c.first + token + 1;
  float sum = 0;
  for (int64_t p = 0; p < count; ++p) {
    sum += s.v[size_t(c.sequence)][size_t((p * s.shape.kv_heads + kv_head) * d + column)];
  }
  return round_to(s.shape.dtype, double{sum * (1.0F / float(count))});
}

// All weights are 1 and values integers; then one weight is 1 and the others 0.
TEST_F(PagedAttention, ExactWhereWeightsAre) {
  for_all_seeds(20, [](Trial& trial) {
    const bool is_uniform = trial.pick(6, 2) == 0;
    trial.classify(is_uniform, "equal weights");
    const Sequences s = sequences_of(trial, tensor_core_shape(trial),
                                     is_uniform ? AttentionFill::uniform : AttentionFill::one_hot);
    const AttentionOnGpu batch(s, cut(trial, 1, s), {.seed = trial.seed()});
    const Tensor out = batch.run();
    for (size_t row = 0; row < batch.chunks().size(); ++row) {
      const Chunk& c = batch.chunks()[row];
      for (int64_t n = 0; c.sequence >= 0 && n < out.shape()[1]; ++n) {
        const int32_t token = int32_t(trial.pick(uint64_t(2000 + n), c.count));
        const int64_t head = n / s.shape.head_dim / s.group(), column = n % s.shape.head_dim;
        const double expected =
            is_uniform ? mean(s, c, token, head, column)
                       : double{s.v[size_t(c.sequence)][size_t(head * s.shape.head_dim + column)]};
        ASSERT_EQ(out.get(batch.first_token(row) + token, n), expected)
            << "row " << row << ", token " << token << ", column " << n;
        trial.count(1);
      }
    }
  });
}

/// One token of each sequence, the last one or one before it; some rows padded.
std::vector<Chunk> decode_rows(const Trial& trial, uint64_t index, const Sequences& s) {
  std::vector<Chunk> out;
  for (size_t i = 0; i < s.lengths.size(); ++i) {
    const bool last = trial.pick(index + 3 * i, 2) == 0;
    const auto at = last ? s.lengths[i] - 1 : int32_t(trial.pick(index + 3 * i + 1, s.lengths[i]));
    const bool padded = trial.pick(index + 3 * i + 2, 5) == 0;
    out.push_back(padded ? Chunk{} : Chunk{int32_t(i), at, 1});
  }
  return out;
}

// A decode graph is replayed for other rows, contexts and blocks than it was captured with.
TEST_F(PagedAttention, AGraphFollowsTheBatch) {
  for_all_seeds(10, [](Trial& trial) {
    const Sequences s = sequences_of(trial, tensor_core_shape(trial), AttentionFill::reals);
    BatchLayout layout{.seed = 1, .max_context = *std::ranges::max_element(s.lengths)};
    const AttentionOnGpu captured(s, decode_rows(trial, 100, s), layout);
    cudaStream_t stream = nullptr;
    LORATORY_CUDA_CHECK(cudaStreamCreate(&stream));
    LORATORY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    captured.enqueue(stream);
    cudaGraph_t graph = nullptr;
    LORATORY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = nullptr;
    LORATORY_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t i = 2; i < 5; ++i) {
      layout.seed = i;
      const AttentionOnGpu other(s, decode_rows(trial, 100 * i, s), layout);
      captured.become(other);
      LORATORY_CUDA_CHECK(cudaGraphLaunch(exec, stream));
      LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream));
      const Tensor replayed = captured.read(), eager = other.run();
      for (size_t row = 0; row < other.chunks().size(); ++row) {
        const auto token = int64_t(row);
        ASSERT_EQ(bits_of(replayed, token), bits_of(eager, token)) << "row " << row;
        trial.count(eager.shape()[1]);
      }
    }
    LORATORY_CUDA_CHECK(cudaGraphExecDestroy(exec));
    LORATORY_CUDA_CHECK(cudaGraphDestroy(graph));
    LORATORY_CUDA_CHECK(cudaStreamDestroy(stream));
  });
}

}  // namespace
}  // namespace loratory::gpu
