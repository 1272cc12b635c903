// Attention on a GPU: numbers against float64, and bits that do not depend on how a token came in.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "attention_case.hpp"
#include "captured_graph.hpp"
#include "fuzz/support/lora_case.hpp"
#include "suite.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

class PagedAttention : public OnGpu {};

Sequences sequences_of(const Trial& trial, const AttentionShape& shape, AttentionFill fill) {
  return sequences_of(
      trial, shape, fill,
      {.num_queries = Trial::size(800'000, 200'000), .longest = Trial::size(1600, 280)});
}

void lies_within_the_bound(const Trial& trial, const AttentionShape& shape, AttentionPath path) {
  const Sequences s = sequences_of(trial, shape, real_fill(trial));
  const AttentionOnGpu batch(s, cut(trial, 1, s), layout_of(trial, 50, path));
  ASSERT_EQ(batch.path(), path);
  judge(trial, batch, batch.run(), Trial::size(60, 10));
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
    expect_bits_of(trial, parts, parts.run(), all, expected);
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

// All weights are 1 and values integers; then one weight is 1 and the others 0.
TEST_F(PagedAttention, ExactWhereWeightsAre) {
  for_all_seeds(20, [](Trial& trial) {
    const Sequences s = sequences_of(trial, tensor_core_shape(trial), exact_fill(trial));
    const AttentionOnGpu batch(s, cut(trial, 1, s), {.seed = trial.seed()});
    expect_exact(trial, batch, batch.run());
  });
}

// A decode graph is replayed for other rows, contexts and blocks than it was captured with.
TEST_F(PagedAttention, AGraphFollowsTheBatch) {
  for_all_seeds(10, [](Trial& trial) {
    const Sequences s = sequences_of(trial, tensor_core_shape(trial), AttentionFill::reals);
    BatchLayout layout{.seed = 1, .max_context = *std::ranges::max_element(s.lengths)};
    const AttentionOnGpu captured(s, decode_rows(trial, 100, s), layout);
    const CapturedGraph graph([&](cudaStream_t stream) { captured.enqueue(stream); });
    for (uint64_t i = 2; i < 5; ++i) {
      layout.seed = i;
      const AttentionOnGpu other(s, decode_rows(trial, 100 * i, s), layout);
      captured.become(other);
      graph.replay();
      const Tensor replayed = captured.read(), eager = other.run();
      for (size_t row = 0; row < other.chunks().size(); ++row) {
        const auto token = int64_t(row);
        ASSERT_EQ(bits_of(replayed, token), bits_of(eager, token)) << "row " << row;
        trial.count(eager.shape()[1]);
      }
    }
  });
}

}  // namespace
}  // namespace loratory::gpu
