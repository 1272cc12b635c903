// The kernels between the products q|k|v and o, launched so that each may start before the one
// before it has ended: the same bits as one after the other.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "captured_graph.hpp"
#include "gpu/attention/paged_attention.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/model/rotary.hpp"
#include "guarded_tensor.hpp"
#include "model_case.hpp"
#include "suite.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

constexpr int32_t kBlockSize = 16, kMostContext = 400;
constexpr int kLayers = 4;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class LayerOverlap : public OnGpu {};

struct Heads {
  Dtype dtype;
  int32_t num_heads, kv_heads, head_dim;

  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t qkv_size() const { return q_size() + int64_t{2} * kv_heads * head_dim; }
};

Heads heads_of(const Trial& trial) {
  const auto kv_heads = int32_t(1 + trial.pick(1, 2));
  return {.dtype = trial.pick(2, 2) == 0 ? Dtype::bf16 : Dtype::f16,
          .num_heads = kv_heads * int32_t(1 + trial.pick(3, 4)),
          .kv_heads = kv_heads,
          .head_dim = trial.pick(4, 2) == 0 ? 64 : 128};
}

// Rows of one token, some of them padding; contexts of one piece and of two.
StepCase decode_step(const Trial& trial) {
  StepCase out;
  out.num_rows = int32_t(1 + trial.pick(10, 8));
  out.block_size = kBlockSize;
  out.max_blocks = kMostContext / kBlockSize;
  out.num_blocks = 1 + int64_t{out.num_rows} * out.max_blocks;
  out.row_starts = {0};
  for (int32_t row = 0; row < out.num_rows; ++row) {
    const bool is_padding = trial.pick(uint64_t(20 + row), 6) == 0;
    const auto context = int32_t(is_padding ? 0 : 1 + trial.pick(uint64_t(40 + row), kMostContext));
    out.token_ids.push_back(0);
    out.positions.push_back(std::max(0, context - 1));
    out.token_rows.push_back(is_padding ? -1 : row);
    out.contexts.push_back(context);
    out.row_starts.push_back(row + 1);
    // The last block first, so that neighbours in a row are no neighbours in memory.
    for (int32_t i = 0; i < out.max_blocks; ++i) {
      out.block_tables.push_back((row + 1) * out.max_blocks - i);
    }
  }
  return out;
}

// Keys or values: NaN where this step's tokens will be.
Tensor cache_before(const Heads& heads, const StepCase& step, uint64_t seed) {
  const int64_t block = int64_t{kBlockSize} * heads.head_dim;
  const Tensor numbers =
      random_matrix(heads.dtype, step.num_blocks * heads.kv_heads, block, seed, 2);
  Tensor out(heads.dtype, {step.num_blocks * heads.kv_heads, block});
  out.bytes() = numbers.bytes();
  for (int64_t t = 0; t < step.num_tokens(); ++t) {
    if (step.token_rows[size_t(t)] < 0) continue;
    for (int64_t head = 0; head < heads.kv_heads; ++head) {
      const int64_t row = step.block_of(t) * heads.kv_heads + head;
      for (int64_t i = 0; i < heads.head_dim; ++i) {
        out.set(kNan, row, step.place_of(t) * heads.head_dim + i);
      }
    }
  }
  return out;
}

// What a layer reads and writes.
struct LayerTensors {
  GuardedTensor qkv, out, k, v;
};

class Chain {
 public:
  Chain(const Trial& trial, const Heads& heads, const StepCase& step)
      : heads_(heads),
        step_(step),
        plan_({.dtype = heads.dtype,
               .num_heads = heads.num_heads,
               .kv_heads = heads.kv_heads,
               .head_dim = heads.head_dim,
               .block_size = kBlockSize,
               .scale = float(1 / std::sqrt(double(heads.head_dim)))},
              {.max_tokens = step.num_tokens(),
               .max_rows = step.num_rows,
               .max_context = kMostContext}),
        workspace_(make_device_buffer(size_t(plan_.workspace_bytes()))),
        gates_(
            random_matrix(heads.dtype, step.num_tokens(), 2 * heads.qkv_size(), trial.seed(), 3)),
        keys_(cache_before(heads, step, trial.seed() + 1)),
        values_(cache_before(heads, step, trial.seed() + 2)),
        on_gpu_(step),
        gates_on_gpu_(gates_) {
    const RopeTables tables = make_rope_tables({}, heads.head_dim, kMostContext);
    cos_ = upload(tables.cos);
    sin_ = upload(tables.sin);
  }

  /// Results, keys and values of the layers.
  std::vector<Tensor> run(LaunchOrder order) const {
    const Tensor qkv =
        poisoned(random_matrix(heads_.dtype, step_.num_tokens(), heads_.qkv_size(), 0));
    const Tensor out =
        poisoned(random_matrix(heads_.dtype, step_.num_tokens(), heads_.q_size(), 0));
    std::vector<std::unique_ptr<LayerTensors>> layers;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(std::make_unique<LayerTensors>(LayerTensors{
          GuardedTensor(qkv), GuardedTensor(out), GuardedTensor(keys_), GuardedTensor(values_)}));
    }
    const CapturedGraph graph([&](cudaStream_t stream) {
      plan_.build_work(on_gpu_.view(), workspace_.get(), stream);
      for (int i = 0; i < kLayers; ++i) {
        const LaunchOrder first = i == 0 ? LaunchOrder::after_previous : order;
        enqueue(*layers[size_t(i)], first, order, stream);
      }
    });
    graph.replay();
    std::vector<Tensor> results;
    for (const auto& layer : layers) {
      EXPECT_TRUE(layer->out.guards_are_intact());
      for (const GuardedTensor* t : {&layer->out, &layer->k, &layer->v}) {
        results.push_back(t->read());
      }
    }
    return results;
  }

 private:
  void enqueue(const LayerTensors& layer, LaunchOrder first, LaunchOrder order,
               cudaStream_t stream) const {
    const int32_t half = heads_.head_dim / 2;
    const KvView kv{.dtype = heads_.dtype,
                    .k = layer.k.view().data,
                    .v = layer.v.view().data,
                    .num_blocks = step_.num_blocks,
                    .kv_heads = heads_.kv_heads,
                    .block_size = kBlockSize,
                    .head_dim = heads_.head_dim};
    silu_mul(gates_on_gpu_.view(), layer.qkv.view(), stream, first);
    const RotaryArgs args{.qkv = layer.qkv.view(),
                          .num_heads = heads_.num_heads,
                          .cos = device_view(Dtype::f32, cos_.get(), {kMostContext, half}),
                          .sin = device_view(Dtype::f32, sin_.get(), {kMostContext, half}),
                          .eps = 1e-6,
                          .kv = kv};
    rotary(on_gpu_.view(), args, stream, order);
    DeviceView q = layer.qkv.view();
    q.shape[1] = heads_.q_size();
    plan_.launch({.q = q, .out = layer.out.view(), .kv = kv}, on_gpu_.view(), /*max_row_tokens=*/1,
                 workspace_.get(), stream, order);
  }

  Heads heads_;
  StepCase step_;
  AttentionPlan plan_;
  DeviceBuffer workspace_, cos_, sin_;
  Tensor gates_, keys_, values_;
  StepOnGpu on_gpu_;
  GuardedTensor gates_on_gpu_;
};

// Attention may copy keys and values of earlier steps while the kernel before it still runs, and
// neither the query nor the key of this step: both are NaN until that kernel has written them.
TEST_F(LayerOverlap, DecodeAttentionWaitsForItsQueryAndItsKey) {
  for_all_seeds(Trial::size(12, 2), [](const Trial& trial) {
    const Heads heads = heads_of(trial);
    const StepCase step = decode_step(trial);
    const Chain chain(trial, heads, step);
    const std::vector<Tensor> expected = chain.run(LaunchOrder::after_previous);
    for (size_t i = 0; i < expected.size(); i += 3) {
      for (int64_t t = 0; t < step.num_tokens(); ++t) {
        ASSERT_TRUE(std::isfinite(expected[i].get(t, 0))) << "token " << t;
      }
    }
    for (int repeat = 0; repeat < 6; ++repeat) {
      const std::vector<Tensor> got = chain.run(LaunchOrder::overlaps_previous);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(have_same_bits(got[i], expected[i]))
            << "layer " << i / 3 << ", tensor " << i % 3;
      }
    }
    trial.classify(heads.head_dim == 64, "head_dim 64");
    trial.count(6 * kLayers * step.num_tokens() * heads.q_size());
  });
}

}  // namespace
}  // namespace loratory::gpu
