// Decode attention that does rotary()'s work, thread by thread on the CPU: results, keys, values
// and the q|k|v rows have the bits of rotary() followed by attention.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>

#include "gpu/attention/decode_items.hpp"
#include "tests/gpu/emulated/emulated_attention.hpp"
#include "tests/gpu/emulated/emulated_memory.hpp"
#include "tests/gpu/support/rotary_step.hpp"

namespace loratory::gpu {
namespace {

using reference::Tensor;

/// The steps of rotary() for one head, in their order.
class HeadOnHost {
 public:
  HeadOnHost(const RotaryStep& step, int64_t position, bool has_norm, RotaryStep::Role norm)
      : step_(step), position_(position), has_norm_(has_norm), norm_(step.tensor(norm)) {}

  void rotate(const Tensor& from, int64_t from_row, int64_t from_column, Tensor& to, int64_t to_row,
              int64_t to_column) const {
    const int64_t d = norm_.shape()[1], half = d / 2;
    std::vector<float> x(static_cast<size_t>(d));
    for (int64_t i = 0; i < d; ++i) x[size_t(i)] = float(from.get(from_row, from_column + i));
    if (has_norm_) normalize(x);
    for (int64_t i = 0; i < half; ++i) {
      const auto cos = float(step_.tensor(RotaryStep::kCos).get(position_, i));
      const auto sin = float(step_.tensor(RotaryStep::kSin).get(position_, i));
      const float a = x[size_t(i)], b = x[size_t(half + i)];
      to.set(double{std::fma(a, cos, -(b * sin))}, to_row, to_column + i);
      to.set(double{std::fma(b, cos, a * sin)}, to_row, to_column + half + i);
    }
  }

 private:
  const RotaryStep& step_;
  int64_t position_;
  bool has_norm_;
  const Tensor& norm_;

  // Sixteen squares in each sum, then sums of neighbours.
  void normalize(std::vector<float>& x) const {
    const size_t half = x.size() / 2;
    std::vector<float> sums;
    for (size_t lane = 0; lane < half / 8; ++lane) {
      float sum = 0;
      for (const size_t first : {8 * lane, half + 8 * lane}) {
        for (size_t i = first; i < first + 8; ++i) sum = std::fma(x[i], x[i], sum);
      }
      sums.push_back(sum);
    }
    while (sums.size() > 1) {
      for (size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
      sums.resize(sums.size() / 2);
    }
    const float mean = sums[0] / float(x.size()) + float(step_.eps());
    const auto scale = float(1 / std::sqrt(double{mean}));
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(norm_.get(0, int64_t(i))) * (x[i] * scale);
  }
};

struct Results {
  Tensor out, qkv, keys, values;
};

/// What rotary() leaves in q|k|v, keys and values.
Results rotated_on_host(const AttentionBatch& batch, const RotaryStep& step, bool has_norms) {
  const AttentionShape& s = batch.sequences().shape;
  Results to{batch.tensor(AttentionBatch::kOut), step.tensor(RotaryStep::kQkv),
             step.tensor(RotaryStep::kKeys), step.tensor(RotaryStep::kValues)};
  const Tensor& qkv = step.tensor(RotaryStep::kQkv);
  const int64_t d = s.head_dim;
  for (size_t row = 0; row < batch.chunks().size(); ++row) {
    if (batch.chunks()[row].sequence < 0) continue;
    const int64_t token = batch.first_token(row), position = batch.chunks()[row].first;
    const HeadOnHost query(step, position, has_norms, RotaryStep::kQNorm);
    const HeadOnHost key(step, position, has_norms, RotaryStep::kKNorm);
    for (int64_t h = 0; h < s.num_heads; ++h) query.rotate(qkv, token, h * d, to.qkv, token, h * d);
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      const int64_t at = step.newest(row, h);
      key.rotate(qkv, token, (s.num_heads + h) * d, to.keys, at, 0);
      for (int64_t i = 0; i < d; ++i) {
        to.values.set(qkv.get(token, (s.num_heads + s.kv_heads + h) * d + i), at, i);
      }
    }
  }
  return to;
}

/// A batch in memory between canaries.
class StepOnEmulatedGpu {
 public:
  StepOnEmulatedGpu(const AttentionBatch& batch, const RotaryStep& step)
      : batch_(batch), step_(step) {
    const int32_t* arrays[AttentionBatch::kNumArrays];
    for (int i = 0; i < AttentionBatch::kNumArrays; ++i) {
      const std::vector<int32_t>& from = batch.array(AttentionBatch::Array(i));
      std::byte* const to = memory_.room(from.size() * sizeof(int32_t));
      std::memcpy(to, from.data(), from.size() * sizeof(int32_t));
      arrays[i] = reinterpret_cast<const int32_t*>(to);
    }
    view_ = batch.batch(arrays);
    for (int i = 0; i < RotaryStep::kNumTensors; ++i) {
      views_[i] = memory_.put(step.tensor(RotaryStep::Role(i)));
    }
    out_ = memory_.put(batch.tensor(AttentionBatch::kOut));
    workspace_ = memory_.room(size_t(batch.plan().workspace_bytes()));
    batch.plan().build_work(view_, workspace_, nullptr);
  }

  Results rotating(LaunchOrder order) {
    reset();
    batch_.plan().launch_with_rotary(step_.args(views_), out_, view_, workspace_, nullptr, order);
    return read();
  }

  /// Of heads that are rotated.
  Results plain(const Results& rotated) {
    reset();
    const auto put = [](const DeviceView& to, const Tensor& from) {
      std::memcpy(to.data, from.bytes().data(), from.bytes().size());
    };
    put(views_[RotaryStep::kQkv], rotated.qkv);
    put(views_[RotaryStep::kKeys], rotated.keys);
    put(views_[RotaryStep::kValues], rotated.values);
    const AttentionTensors tensors{
        .q = step_.query(views_[RotaryStep::kQkv]), .out = out_, .kv = step_.args(views_).kv};
    batch_.plan().launch(tensors, view_, batch_.most_tokens(), workspace_, nullptr);
    return read();
  }

 private:
  const AttentionBatch& batch_;
  const RotaryStep& step_;
  emulated::Memory memory_;
  BatchView view_;
  DeviceView views_[RotaryStep::kNumTensors], out_;
  std::byte* workspace_ = nullptr;

  // NaN where the launch writes.
  void reset() {
    for (int i = 0; i < RotaryStep::kNumTensors; ++i) {
      const auto from = step_.tensor(RotaryStep::Role(i)).bytes();
      std::memcpy(views_[i].data, from.data(), from.size());
    }
    const auto nan = batch_.tensor(AttentionBatch::kOut).bytes();
    std::memcpy(out_.data, nan.data(), nan.size());
  }
  Results read() const {
    Results to{batch_.tensor(AttentionBatch::kOut), step_.tensor(RotaryStep::kQkv),
               step_.tensor(RotaryStep::kKeys), step_.tensor(RotaryStep::kValues)};
    emulated::Memory::get(out_, to.out);
    emulated::Memory::get(views_[RotaryStep::kQkv], to.qkv);
    emulated::Memory::get(views_[RotaryStep::kKeys], to.keys);
    emulated::Memory::get(views_[RotaryStep::kValues], to.values);
    EXPECT_TRUE(memory_.is_intact()) << "written around a tensor";
    for (const auto role :
         {RotaryStep::kCos, RotaryStep::kSin, RotaryStep::kQNorm, RotaryStep::kKNorm}) {
      const auto before = step_.tensor(role).bytes();
      EXPECT_EQ(std::memcmp(views_[role].data, before.data(), before.size()), 0) << int(role);
    }
    return to;
  }
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

void expect_bits_of_rotary(const Trial& trial, const AttentionBatch& batch) {
  ASSERT_TRUE(batch.plan().rotates(batch.most_tokens()));
  const bool has_norms = trial.pick(7100, 2) == 0;
  const RotaryStep step(batch, has_norms, 8 * trial.pick(7101, 3));
  StepOnEmulatedGpu gpu(batch, step);
  const Results rotated = rotated_on_host(batch, step, has_norms);
  const Results expected = gpu.plain(rotated);
  // The second one copies keys before it may read q|k|v.
  for (const auto order : {LaunchOrder::after_previous, LaunchOrder::overlaps_previous}) {
    const Results got = gpu.rotating(order);
    EXPECT_TRUE(same_bytes(got.out, expected.out)) << "results";
    EXPECT_TRUE(same_bytes(got.keys, rotated.keys)) << "keys";
    EXPECT_TRUE(same_bytes(got.values, rotated.values)) << "values";
    EXPECT_TRUE(same_bytes(got.qkv, step.tensor(RotaryStep::kQkv))) << "q|k|v";
    EXPECT_EQ(padding_with_numbers(batch, got.out), -1) << "a padding token has numbers";
  }
  trial.count(2 * int64_t(batch.chunks().size()) * expected.out.shape()[1]);
  trial.classify(has_norms, "norms of heads");
}

/// LORATORY_SEED=S: the case S alone.
template <typename Property>
void for_all_seeds(uint64_t num_cases, const Property& property) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one == nullptr ? 1 : std::stoull(one);
  Record record;
  for (uint64_t seed = first; seed < first + (one == nullptr ? num_cases : 1); ++seed) {
    const Trial trial(seed, record);
    try {
      property(trial);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (testing::Test::HasFailure()) {
      fmt::print("REPRO: LORATORY_SEED={}\n", seed);
      return;
    }
  }
  for (const auto& [kind, count] : record.classes) fmt::print("{}: {}\n", kind, count);
}

/// The last tokens of sequences whose ends are those of tiles and pieces, between padded rows.
/// Whether some of their items are late.
bool with_rows(const Trial& trial, int64_t num_ctas, int64_t num_rows) {
  constexpr int32_t kLengths[] = {1, 2, 63, 64, 65, 255, 256, 257, 320, 512, 513, 700};
  const bool is_round = trial.pick(7200, 3) > 0;
  Sequences s{.shape = tensor_core_shape(trial), .fill = real_fill(trial), .seed = trial.seed()};
  std::vector<Chunk> rows;
  int64_t num_tiles = 0;
  for (uint64_t i = 0; i < uint64_t(num_rows); ++i) {
    const auto length = is_round ? kLengths[trial.pick(7201 + 2 * i, std::ssize(kLengths))]
                                 : int32_t(1 + trial.pick(7201 + 2 * i, 900));
    s.lengths.push_back(length);
    num_tiles += int64_t{num_attention_tiles(length)} * s.shape.kv_heads;
    rows.push_back({int32_t(i), length - 1, 1});
    if (trial.pick(7202 + 2 * i, 4) == 0) rows.push_back({});
  }
  s.draw();
  const AttentionBatch batch(s, rows, layout_of(trial, 50, AttentionPath::tensor_core));
  emulated::set_attention(int(num_ctas), trial.seed());
  expect_bits_of_rotary(trial, batch);
  return num_tiles_in_shares(num_tiles, int32_t(num_ctas)) < num_tiles;
}

TEST(RotaryAttentionEmulated, HasTheBitsOfRotary) {
  for_all_seeds(36, [](const Trial& trial) {
    with_rows(trial, 1 + trial.pick(7000, 20), 1 + trial.pick(7001, 4));
  });
}

// Items that go to the CTA that asks first.
TEST(RotaryAttentionEmulated, OfLateItems) {
  for_all_seeds(5, [](const Trial& trial) {
    EXPECT_TRUE(with_rows(trial, 1 + trial.pick(7000, 2), 28 + trial.pick(7001, 8)));
  });
}

}  // namespace
}  // namespace loratory::gpu
