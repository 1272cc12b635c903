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
#include "tests/gpu/support/rotary_step.hpp"
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

/// A decode step on the GPU, its heads as the product leaves them.
class RotaryOnGpu {
 public:
  RotaryOnGpu(const AttentionBatch& batch, const RotaryStep& step) : batch_(batch), step_(step) {
    for (int i = 0; i < AttentionBatch::kNumArrays; ++i) {
      arrays_.push_back(upload(batch.array(AttentionBatch::Array(i))));
    }
    positions_ = upload(step.positions());
    workspace_ = make_device_buffer(size_t(batch.plan().workspace_bytes()));
    LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, size_t(plan().workspace_bytes())));
  }

  /// q|k|v, keys, values and results, by one kernel or by two.
  std::array<Tensor, 4> run(bool in_one, LaunchOrder order) const {
    std::vector<GuardedTensor> on_gpu;
    for (int i = 0; i < RotaryStep::kNumTensors; ++i) {
      on_gpu.emplace_back(step_.tensor(RotaryStep::Role(i)));
    }
    const GuardedTensor out(batch_.tensor(AttentionBatch::kOut));
    DeviceView views[RotaryStep::kNumTensors];
    for (size_t i = 0; i < on_gpu.size(); ++i) views[i] = on_gpu[i].view();
    const RotaryArgs args = step_.args(views);
    const BatchView batch = view();
    plan().build_work(batch, workspace_.get(), nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());  // the work is older than what overlaps
    if (in_one) {
      plan().launch_with_rotary(args, out.view(), batch, workspace_.get(), nullptr, order);
    } else {
      rotary(batch, args, nullptr, order);
      plan().launch({.q = step_.query(args.qkv), .out = out.view(), .kv = args.kv}, batch,
                    batch_.most_tokens(), workspace_.get(), nullptr, order);
    }
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(out.guards_are_intact()) << "written around the results";
    for (const GuardedTensor& t : on_gpu) EXPECT_TRUE(t.guards_are_intact());
    return {on_gpu[RotaryStep::kQkv].read(), on_gpu[RotaryStep::kKeys].read(),
            on_gpu[RotaryStep::kValues].read(), out.read()};
  }

 private:
  const AttentionBatch& batch_;
  const RotaryStep& step_;
  std::vector<DeviceBuffer> arrays_;
  DeviceBuffer positions_, workspace_;

  const AttentionPlan& plan() const { return batch_.plan(); }
  BatchView view() const {
    const int32_t* at[AttentionBatch::kNumArrays];
    for (size_t i = 0; i < arrays_.size(); ++i) {
      at[i] = reinterpret_cast<const int32_t*>(arrays_[i].get());
    }
    BatchView out = batch_.batch(at);
    out.positions = reinterpret_cast<const int32_t*>(positions_.get());
    out.token_ids = out.positions;  // which no kernel here reads
    return out;
  }
};

// One kernel does the work of two: results, keys and values have the same bits, and q|k|v stays as
// it was.
TEST_F(PagedAttention, RotatesWithTheBitsOfRotary) {
  for_all_seeds(16, [](Trial& trial) {
    const Sequences s = sequences_of(trial, tensor_core_shape(trial), real_fill(trial));
    std::vector<Chunk> rows;
    for (uint64_t i = 0; i < uint64_t(1 + trial.pick(7200, 60)); ++i) {
      for (const Chunk& c : decode_rows(trial, 7300 + 100 * i, s)) rows.push_back(c);
    }
    const AttentionBatch batch(s, rows, layout_of(trial, 50, AttentionPath::tensor_core));
    ASSERT_TRUE(batch.plan().rotates(batch.most_tokens()));
    const bool has_norms = trial.pick(7100, 2) == 0;
    const RotaryStep step(batch, has_norms, 8 * trial.pick(7101, 3));
    const RotaryOnGpu on_gpu(batch, step);
    const auto expected = on_gpu.run(/*in_one=*/false, LaunchOrder::after_previous);
    for (const auto order : {LaunchOrder::after_previous, LaunchOrder::overlaps_previous}) {
      const auto got = on_gpu.run(/*in_one=*/true, order);
      EXPECT_TRUE(have_same_bits(got[0], step.tensor(RotaryStep::kQkv))) << "q|k|v";
      for (size_t i = 1; i < got.size(); ++i) {
        EXPECT_TRUE(have_same_bits(got[i], expected[i])) << "tensor " << i;
      }
    }
    trial.classify(has_norms, "norms of heads");
    trial.count(2 * int64_t(rows.size()) * expected[3].shape()[1]);
  });
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
