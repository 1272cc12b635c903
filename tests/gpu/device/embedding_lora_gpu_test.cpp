// LoRA at both ends of a model: columns of A gathered for embed_tokens, rows of lm_head that follow
// the sampler's mapping, the bias that vLLM once had. Exact where nothing is computed, else within
// the bound of the reference.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "gpu/layout/device_segments.hpp"
#include "gpu/model/embedding_lora.hpp"
#include "gpu/model/lora_bias.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "layer_on_gpu.hpp"
#include "model_case.hpp"
#include "reference/lora/oracle.hpp"
#include "tests/gpu/support/judge.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LayerBatch;
using reference::LayerCase;
using reference::LayerData;
using reference::Tensor;

constexpr int64_t kLargestVocab = 262144;
constexpr double kUnit = 0x1p-22;  // of one product or sum on tensor cores

const int32_t* ints(const DeviceBuffer& buffer) {
  return reinterpret_cast<const int32_t*>(buffer.get());
}

// --- embed_tokens ---------------------------------------------------------------------------

/// A batch on an embedding layer. A is NaN beyond the ranks, h everywhere.
struct EmbeddingCase {
  Tensor a{Dtype::f32, {0}}, b{Dtype::f32, {0}}, h{Dtype::f32, {0}}, y{Dtype::f32, {0}};
  std::vector<int32_t> ranks = {}, slots = {}, ids = {};
  std::vector<float> scalings = {};
  std::vector<float> factors = {};  // of A in fp8

  int64_t num_tokens() const { return int64_t(slots.size()); }
};

void fill_random(Tensor& t, uint64_t seed) {
  const auto size = size_bytes(t.dtype());
  for (size_t i = 0; i < t.bytes().size() / size; ++i) {
    reference::store(t.dtype(), t.bytes().data() + i * size, unit_number(seed, i));
  }
}

void poison_beyond_ranks(EmbeddingCase& c) {
  for (int64_t s = 0; s < int64_t(c.ranks.size()); ++s) {
    for (int64_t j = c.ranks[size_t(s)]; j < c.a.shape()[1]; ++j) {
      for (int64_t id = 0; id < c.a.shape()[2]; ++id) c.a.set(NAN, s, j, id);
      for (int64_t n = 0; n < c.b.shape()[1]; ++n) c.b.set(NAN, s, n, j);
    }
  }
}

EmbeddingCase embedding_case(const Trial& trial) {
  constexpr int64_t kVocab[] = {1, 2, 7, 1000, 32003, 128256, kLargestVocab};
  const Dtype dtype = model_dtype(trial, 0);
  const int64_t vocab = kVocab[trial.pick(1, Trial::size(std::size(kVocab), 4))];
  const bool is_large = vocab > 10000;
  const int64_t max_rank = 1 + trial.pick(2, is_large ? 8 : Trial::size(130, 20));
  const int64_t num_slots = 1 + trial.pick(3, is_large ? 2 : 6);
  const int64_t num_tokens = trial.pick(4, 150), hidden = 8 + 8 * trial.pick(5, 30);
  EmbeddingCase c{.a = Tensor(dtype, {num_slots, max_rank, vocab}),
                  .b = Tensor(dtype, {num_slots, hidden, max_rank}),
                  .h = Tensor(Dtype::f32, {1, num_tokens, max_rank + trial.pick(6, 5)}),
                  .y = random_matrix(dtype, num_tokens, hidden, trial.seed() + 3)};
  fill_random(c.a, trial.seed()), fill_random(c.b, trial.seed() + 1);
  std::ranges::fill(c.h.bytes(), std::byte{0xFF});
  for (int64_t s = 0; s < num_slots; ++s) {
    c.ranks.push_back(int32_t(trial.pick(uint64_t(20 + s), max_rank + 1)));
    c.scalings.push_back(0.25F + 0.3F * float(trial.pick(uint64_t(30 + s), 9)));
  }
  poison_beyond_ranks(c);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto at = uint64_t(100 + 2 * t);
    const int64_t ends[] = {0, vocab - 1, trial.pick(at, vocab)};
    c.ids.push_back(int32_t(ends[size_t(std::min<int64_t>(trial.pick(at, 8), 2))]));
    c.slots.push_back(int32_t(trial.pick(at + 1, num_slots + 1)) - 1);
  }
  trial.classify(is_large, "a large vocabulary");
  trial.classify(vocab == kLargestVocab, "262,144 tokens");
  trial.classify(max_rank > 32, "several ranks for a lane");
  return c;
}

/// A case in device memory.
class EmbeddingOnGpu {
 public:
  explicit EmbeddingOnGpu(const EmbeddingCase& c)
      : c_(c),
        a_(c.a),
        b_(c.b),
        h_(c.h),
        ranks_(upload(c.ranks)),
        scalings_(upload(c.scalings)),
        slots_(upload(c.slots)),
        ids_(upload(c.ids)),
        factors_(upload(c.factors.empty() ? std::vector<float>{1} : c.factors)) {}

  Tensor shrink() const {
    launch_shrink();
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(h_.guards_are_intact()) << "written around h";
    return h_.read();
  }

  /// The shrink, and an expand that overlaps it, into y.
  Tensor run() const {
    LoraLayerDesc desc;
    desc.op = LoraOp::expand;
    desc.slices.push_back({.a = {},
                           .b = b_.view(),
                           .ranks = ints(ranks_),
                           .scalings = reinterpret_cast<const float*>(scalings_.get())});
    const LoraLayer layer(desc);
    const GuardedTensor y(c_.y);
    const LoraTensors tensors{.x = {}, .h = h_.view(), .y = y.view()};
    const auto num_slots = int32_t(c_.ranks.size());
    DeviceSegments segments(int32_t(std::max<int64_t>(1, c_.num_tokens())), num_slots,
                            layer.variant_for(tensors).segment_size());
    segments.upload(reference::make_batch_layout(c_.slots, num_slots), nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());  // segments are read early
    launch_shrink();
    layer.launch(tensors, segments.view(), nullptr, LaunchOrder::overlaps_previous);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(y.guards_are_intact()) << "written around y";
    return y.read();
  }

 private:
  void launch_shrink() const {
    const bool is_fp8 = c_.a.dtype() == Dtype::f8_e4m3fn;
    shrink_embedding({.a = a_.view(),
                      .factors = is_fp8 ? reinterpret_cast<const float*>(factors_.get()) : nullptr,
                      .ranks = ints(ranks_),
                      .slots = ints(slots_),
                      .ids = ints(ids_),
                      .h = h_.view()},
                     nullptr, LaunchOrder::overlaps_previous);
  }

  const EmbeddingCase& c_;
  GuardedTensor a_, b_, h_;
  DeviceBuffer ranks_, scalings_, slots_, ids_, factors_;
};

class EmbeddingLora : public OnGpu {};

/// Ids and slots that name nothing, here and there.
void spoil(const Trial& trial, EmbeddingCase& c) {
  const auto vocab = int32_t(c.a.shape()[2]), num_slots = int32_t(c.ranks.size());
  const int32_t ids[] = {-1, vocab, INT32_MAX, INT32_MIN};
  const int32_t slots[] = {num_slots, INT32_MAX, INT32_MIN};
  for (int64_t t = 0; t < c.num_tokens(); ++t) {
    const auto at = uint64_t(1000 + 2 * t);
    if (trial.pick(at, 6) == 0) c.ids[size_t(t)] = ids[size_t(trial.pick(at + 5000, 4))];
    if (trial.pick(at + 1, 9) == 0) c.slots[size_t(t)] = slots[size_t(trial.pick(at + 5001, 3))];
  }
}

/// A in fp8: random bits, NaN beyond the ranks, factors of every size.
void make_fp8(const Trial& trial, EmbeddingCase& c) {
  const auto& shape = c.a.shape();
  c.a = Tensor(Dtype::f8_e4m3fn, {shape[0], shape[1], shape[2]});
  for (size_t i = 0; i < c.a.bytes().size(); ++i) {
    c.a.bytes()[i] = std::byte(int(127 * std::abs(unit_number(trial.seed() + 7, i))) + i % 2 * 128);
  }
  for (size_t s = 0; s < c.ranks.size(); ++s) {
    c.factors.push_back(std::ldexp(1.3F, int(trial.pick(40 + s, 30)) - 20));
  }
  poison_beyond_ranks(c);
}

// [1.28] [1.29] [1.43] P22 P13: h is a column of A to the last bit, in fp8 times its factor. Ids
// outside of the vocabulary give zeros, and nothing but rows of tokens with a slot is written, up
// to their ranks.
TEST_F(EmbeddingLora, ShrinkIsAColumnOfA) {
  for_all_seeds(50, [](Trial& trial) {
    EmbeddingCase c = embedding_case(trial);
    spoil(trial, c);
    const bool is_fp8 = trial.pick(9, 3) == 0;
    if (is_fp8) make_fp8(trial, c);
    trial.classify(is_fp8, "fp8");
    Tensor expected = c.h;
    int64_t num_results = 0;
    for (int64_t t = 0; t < c.num_tokens(); ++t) {
      const int32_t slot = c.slots[size_t(t)], id = c.ids[size_t(t)];
      if (slot < 0 || slot >= int32_t(c.ranks.size())) continue;
      const bool exists = id >= 0 && id < c.a.shape()[2];
      for (int64_t j = 0; j < c.ranks[size_t(slot)]; ++j, ++num_results) {
        const auto number = float(exists ? c.a.get(slot, j, id) : 0);
        expected.set(is_fp8 ? number * c.factors[size_t(slot)] : number, 0, t, j);
      }
    }
    EXPECT_TRUE(have_same_bits(EmbeddingOnGpu(c).shrink(), expected));
    trial.count(num_results);
  });
}

/// The token alone.
EmbeddingCase alone(const EmbeddingCase& c, int64_t token) {
  EmbeddingCase out = c;
  out.slots = {c.slots[size_t(token)]}, out.ids = {c.ids[size_t(token)]};
  out.h = Tensor(Dtype::f32, {1, 1, c.h.shape()[2]});
  std::ranges::fill(out.h.bytes(), std::byte{0xFF});
  out.y = rows_of(c.y, {token});
  return out;
}

// [1.28] [1.2] [1.19] P5 P7 P22: shrink and expand lie within the bound of the oracle, rows that
// are not covered keep their bits, and a token alone has the bits that it has in its batch.
TEST_F(EmbeddingLora, P22LiesWithinTheBound) {
  for_all_seeds(25, [](Trial& trial) {
    EmbeddingCase c = embedding_case(trial);
    const Tensor y = EmbeddingOnGpu(c).run();
    const std::vector<int64_t> ids(c.ids.begin(), c.ids.end());
    Tensor base = c.y;
    const reference::EmbeddingArgs args{
        .token_ids = ids,
        .slots = c.slots,
        .slice = {c.a.view(), c.b.view(), c.ranks, c.scalings, std::nullopt},
        .y = base.view()};
    const reference::Oracle oracle = embedding_oracle(args);
    reference::Arithmetic arithmetic = arithmetic_of(args);
    if (c.a.dtype() != Dtype::f32) {
      arithmetic.mode.h = reference::IntermediateMode::split2;  // what the kernel keeps
      arithmetic.unit = kUnit;
    }
    double worst = 0;
    for (int64_t t = 0; t < c.num_tokens(); ++t) {
      for (int64_t n = 0; n < c.y.shape()[1]; ++n) {
        const auto& facts = oracle.at(t, n);
        if (facts) worst = std::max(worst, error_over_bound(y.get(t, n), *facts, arithmetic));
        if (!facts) {
          EXPECT_EQ(encode(y.dtype(), y.get(t, n)), encode(y.dtype(), c.y.get(t, n)));
        }
      }
    }
    EXPECT_LE(worst, 1.0);
    trial.count(reference::num_numbers(y), worst);
    if (c.num_tokens() == 0) return;
    const int64_t token = trial.pick(7, c.num_tokens());
    const EmbeddingCase one = alone(c, token);
    EXPECT_TRUE(have_same_bits(EmbeddingOnGpu(one).run(), rows_of(y, {token})));
  });
}

// --- lm_head --------------------------------------------------------------------------------

class LogitsLora : public OnGpu {};

// [1.30] [1.31] [2.14] P22 P23: rows of logits follow the sampler's mapping, not the tokens'. With
// one row or with those of all tokens (prompt logprobs), in any order, each has the same bits, and
// lies within the bound; up to the largest vocabulary.
TEST_F(LogitsLora, RowsFollowTheSamplersMapping) {
  for_all_seeds(8, [](Trial& trial) {
    constexpr int64_t kVocab[] = {1000, 32003, 128256, kLargestVocab};
    const int64_t vocab = kVocab[size_t(trial.pick(0, Trial::size(4, 1)))];
    const LayerCase c{.seed = trial.seed(),
                      .num_tokens = 2 + trial.pick(1, 11),
                      .num_in = 64,
                      .num_out = {vocab},
                      .max_loras = 3,
                      .max_rank = int32_t(1 + trial.pick(2, 20)),
                      .weight = trial.pick(3, 2) == 0 ? Dtype::bf16 : Dtype::f16,
                      .out = Dtype::f32,
                      .aligned = vocab % 8 == 0};
    const LayerData data(c);
    const LayerOnGpu on_gpu(data);
    const KernelUnderTest kernel = on_gpu.kernels(data.batch)[0];
    const Tensor all = on_gpu.run(kernel, data.batch);
    std::vector<int64_t> sampled = reference::shuffled(c.num_tokens, trial.seed());
    sampled.resize(size_t(1 + trial.pick(4, c.num_tokens)));
    const LayerBatch rows = reference::rows_of(data.batch, sampled);
    const Tensor logits = on_gpu.run(on_gpu.kernels(rows)[0], rows);
    for (size_t i = 0; i < sampled.size(); ++i) {
      EXPECT_TRUE(reference::same_row(logits, int64_t(i), all, sampled[i])) << "row " << i;
    }
    const Bounds::Verdict verdict = Bounds(data, rows, kUnit).judge(logits);
    EXPECT_LE(verdict.worst, 1.0) << "row " << verdict.row << ", column " << verdict.column;
    trial.classify(vocab == kLargestVocab, "262,144 tokens");
    trial.count(verdict.num_results, verdict.worst);
  });
}

// --- lora_bias ------------------------------------------------------------------------------

class LoraBias : public OnGpu {};

/// Biases of a layer, one a slice; every third slice has none.
struct BiasesOnGpu {
  BiasesOnGpu(const Trial& trial, const LayerData& data) {
    for (size_t i = 0; i < data.slices.size(); ++i) {
      const int64_t columns = data.shape.num_out[i];
      hosts.push_back(random_matrix(data.batch.y.dtype(), data.shape.max_loras, columns,
                                    trial.seed() + 50 + i));
      has_bias.push_back(trial.pick(60 + i, 3) != 0);
      tensors.emplace_back(hosts.back());
      ranks.push_back(upload(data.slices[i].ranks));
      LoraBiasSlice slice{.bias = tensors.back().view(), .ranks = ints(ranks.back())};
      if (!has_bias.back()) slice.bias.data = nullptr;
      slices.push_back(slice);
    }
  }

  /// y as the reference adds them.
  Tensor added(const LayerData& data, Tensor y) const {
    for (size_t i = 0; i < hosts.size(); ++i) {
      const reference::ColumnRange columns = data.columns(i);
      for (int64_t t = 0; has_bias[i] && t < data.batch.num_tokens(); ++t) {
        const int32_t slot = data.batch.slots[size_t(t)];
        if (!data.is_covered(slot, i)) continue;
        for (int64_t n = columns.begin; n < columns.end; ++n) {
          y.set(double(float(y.get(t, n)) + float(hosts[i].get(slot, n - columns.begin))), t, n);
        }
      }
    }
    return y;
  }

  std::vector<Tensor> hosts;
  std::vector<bool> has_bias;
  std::vector<GuardedTensor> tensors;
  std::vector<DeviceBuffer> ranks;
  std::vector<LoraBiasSlice> slices;
};

// [1.9] [1.6] P2 P16: covered elements get their bias by one sum, others keep their bits; and a
// linear that overlaps the launch sees it.
TEST_F(LoraBias, ComesFirstAndOnlyToCoveredElements) {
  for_all_seeds(60, [](Trial& trial) {
    LayerCase c = trial.layer({.num_products = 1 << 22, .weight_bytes = 1 << 22});
    c.add_inputs = true;
    const LayerData data(c);
    const BiasesOnGpu biases(trial, data);
    const LayerOnGpu on_gpu(data);
    const KernelUnderTest kernel = on_gpu.kernels(data.batch)[0];
    const int64_t shift = c.padded && !c.aligned ? 1 : 0;
    const DeviceBuffer slots = upload(data.batch.slots);
    const GuardedTensor x(data.batch.x, shift);
    GuardedTensor y(data.batch.y, shift);
    DeviceSegments segments(int32_t(std::max<int64_t>(1, data.batch.num_tokens())), c.max_loras,
                            kernel.segment_size);
    segments.upload(reference::make_batch_layout(data.batch.slots, c.max_loras), nullptr);
    const auto add = [&] {
      add_lora_bias({.slices = biases.slices,
                     .slots = ints(slots),
                     .offset_start = c.offset_start,
                     .y = y.view()},
                    nullptr, LaunchOrder::overlaps_previous);
    };
    const auto linear = [&](LaunchOrder order) {
      kernel.launch(x.view(), y.view(), segments.view(), nullptr, order);
      LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    };
    add();
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    const Tensor expected = biases.added(data, data.batch.y);
    EXPECT_TRUE(have_same_bits(y.read(), expected));
    EXPECT_TRUE(y.guards_are_intact());
    linear(LaunchOrder::after_previous);
    const Tensor both = y.read();
    y.write(data.batch.y);
    add();
    linear(LaunchOrder::overlaps_previous);
    EXPECT_TRUE(have_same_bits(y.read(), both)) << "overlapped";
    trial.classify(c.padded, "padded");
    trial.classify(!c.aligned, "unaligned");
    trial.count(2 * reference::num_numbers(expected));
  });
}

}  // namespace
}  // namespace loratory::gpu
