// Attention, thread by thread on the CPU: the kernels that find a step's work, decode rows,
// prefill chunks and take any shape. Numbers against float64, and bits that do not depend on how a
// token came in.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <vector>

#include "gpu/attention/decode_items.hpp"
#include "tests/gpu/emulated/emulated_attention.hpp"
#include "tests/gpu/emulated/emulated_memory.hpp"
#include "tests/gpu/support/attention_batch.hpp"

namespace loratory::gpu {
namespace {

using reference::Tensor;

/// LORATORY_SEED=S: the case S alone.
void for_all_seeds(uint64_t num_cases, const std::function<void(const Trial&)>& property) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one == nullptr ? 1 : std::stoull(one);
  Record record;
  for (uint64_t seed = first; seed < first + (one == nullptr ? num_cases : 1); ++seed) {
    const Trial trial(seed, record);
    emulated::set_attention(int(1 + trial.pick(7000, 6)), seed);
    try {
      property(trial);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (testing::Test::HasFailure()) {
      const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
      fmt::print("REPRO: LORATORY_SEED={} <this binary> --gtest_filter={}.{}\n", seed,
                 test->test_suite_name(), test->name());
      return;
    }
  }
  for (const auto& [kind, count] : record.classes) fmt::print("{}: {}\n", kind, count);
  fmt::print("worst error / bound: {:.3f}\n", record.worst_error_over_bound);
}

/// The results of a batch, in memory between canaries, and in `num_more` launches the same.
Tensor results_of(const AttentionBatch& batch, int num_more = 1) {
  emulated::Memory memory;
  const int32_t* arrays[AttentionBatch::kNumArrays];
  for (int i = 0; i < AttentionBatch::kNumArrays; ++i) {
    const std::vector<int32_t>& from = batch.array(AttentionBatch::Array(i));
    std::byte* const to = memory.room(from.size() * sizeof(int32_t));
    std::memcpy(to, from.data(), from.size() * sizeof(int32_t));
    arrays[i] = reinterpret_cast<const int32_t*>(to);
  }
  DeviceView views[AttentionBatch::kNumTensors];
  for (int i = 0; i < AttentionBatch::kNumTensors; ++i) {
    views[i] = memory.put(batch.tensor(AttentionBatch::Role(i)));
  }
  std::byte* const workspace = memory.room(size_t(batch.plan().workspace_bytes()));
  const BatchView view = batch.batch(arrays);
  batch.plan().build_work(view, workspace, nullptr);
  const auto launch = [&](LaunchOrder order) {
    batch.plan().launch(batch.tensors(views), view, batch.most_tokens(), workspace, nullptr, order);
    Tensor out = batch.tensor(AttentionBatch::kOut);
    emulated::Memory::get(views[AttentionBatch::kOut], out);
    return out;
  };
  // Counters are 0 again after a launch. The later ones copy keys before they may read the query.
  Tensor out = launch(LaunchOrder::after_previous);
  const auto poison = batch.tensor(AttentionBatch::kOut).bytes();
  for (int i = 0; i < num_more; ++i) {
    std::memcpy(views[AttentionBatch::kOut].data, poison.data(), poison.size());
    const Tensor again = launch(LaunchOrder::overlaps_previous);
    EXPECT_TRUE(std::ranges::equal(out.bytes(), again.bytes())) << "of another launch";
  }
  EXPECT_TRUE(memory.is_intact()) << "written around a tensor";
  EXPECT_EQ(padding_with_numbers(batch, out), -1) << "a padding token has numbers";
  return out;
}

void check_case(const Trial& trial, const AttentionShape& shape, AttentionPath path,
                const SequenceLimits& limits) {
  const Sequences s = sequences_of(trial, shape, real_fill(trial), limits);
  const AttentionBatch parts(s, cut(trial, 1, s), layout_of(trial, 50, path));
  ASSERT_EQ(parts.path(), path);
  const Tensor got = results_of(parts);
  judge(trial, parts, got, 30);
  const AttentionBatch all(s, whole(s), {.seed = 1});
  expect_bits_of(trial, parts, got, all, results_of(all));
}

TEST(AttentionEmulated, OnTensorCores) {
  for_all_seeds(24, [](const Trial& trial) {
    check_case(trial, tensor_core_shape(trial), AttentionPath::tensor_core,
               {.num_queries = 150'000, .longest = 600});
  });
}

// Long contexts, cut among CTAs at any tile: the bits are those of other numbers of CTAs.
TEST(AttentionEmulated, DecodeRowsOnAnyNumberOfCtas) {
  for_all_seeds(40, [](const Trial& trial) {
    const Sequences s = sequences_of(trial, tensor_core_shape(trial), real_fill(trial),
                                     {.num_queries = 1'500'000, .longest = 1500});
    const std::vector<Chunk> rows = decode_rows(trial, 100, s);
    const AttentionBatch batch(s, rows, layout_of(trial, 50, AttentionPath::tensor_core));
    const Tensor got = results_of(batch);
    judge(trial, batch, got, 12);
    emulated::set_attention(int(7 + trial.pick(7001, 30)), trial.seed());
    const Tensor again = results_of(batch);
    for (size_t row = 0; row < rows.size(); ++row) {
      ASSERT_EQ(bits_of(got, int64_t(row)), bits_of(again, int64_t(row))) << "row " << row;
    }
  });
}

/// Decode rows of a sequence, with so many tiles of all heads or a few more.
std::vector<Chunk> rows_of(const Sequences& s, int64_t num_tiles) {
  std::vector<Chunk> out;
  for (int32_t i = 0; num_tiles > 0; ++i) {
    const int32_t last = s.lengths[0] - 1 - i * 137 % s.lengths[0];
    out.push_back({0, last, 1});
    num_tiles -= num_attention_tiles(last + 1) * s.shape.kv_heads;
  }
  return out;
}

// So much work that its last items go to the CTA that asks first. Whoever computes them, the bits
// are those of so many CTAs that no item is late, in every launch.
TEST(AttentionEmulated, LateItems) {
  for_all_seeds(12, [](const Trial& trial) {
    Sequences s{.shape = tensor_core_shape(trial),
                .fill = real_fill(trial),
                .seed = trial.seed(),
                .lengths = {int32_t(300 + trial.pick(10, 900))}};
    s.draw();
    const auto num_ctas = int32_t(1 + trial.pick(7002, 5));
    const AttentionBatch batch(s, rows_of(s, (48 + trial.pick(7003, 20)) * num_ctas),
                               layout_of(trial, 50, AttentionPath::tensor_core));
    emulated::set_attention(num_ctas, trial.seed());
    const Tensor got = results_of(batch, 3);
    emulated::set_attention(60, trial.seed());
    const Tensor expected = results_of(batch, 0);
    for (size_t row = 0; row < batch.chunks().size(); ++row) {
      ASSERT_EQ(bits_of(got, int64_t(row)), bits_of(expected, int64_t(row))) << "row " << row;
      trial.count(got.shape()[1]);
    }
    trial.classify(num_ctas > 1, "several CTAs");
  });
}

// All weights are 1 and values integers; then one weight is 1 and the others 0.
TEST(AttentionEmulated, ExactWhereWeightsAre) {
  for_all_seeds(20, [](const Trial& trial) {
    const Sequences s = sequences_of(trial, tensor_core_shape(trial), exact_fill(trial),
                                     {.num_queries = 150'000, .longest = 600});
    const AttentionBatch batch(s, cut(trial, 1, s), {.seed = trial.seed()});
    expect_exact(trial, batch, results_of(batch));
  });
}

/// Rows of one token and chunks of a few, of the same sequences over and over.
std::vector<Chunk> many_rows(const Trial& trial, const Sequences& s) {
  constexpr size_t kRows[] = {33, 100, 513, 700};
  std::vector<Chunk> out(kRows[trial.seed() % std::size(kRows)]);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto pick = [&](uint64_t which, int64_t below) {
      return int32_t(trial.pick(3001 + 4 * i + which, below));
    };
    const int32_t sequence = pick(0, int64_t(s.lengths.size())), length = s.lengths[sequence];
    const int32_t first = pick(1, length);
    const int32_t count = pick(2, 4) == 0 ? 1 + pick(3, std::min(4, length - first)) : 1;
    out[i] = {sequence, first, count};
  }
  return out;
}

// More rows than a warp of the kernel that finds their work has threads, and than its CTA.
TEST(AttentionEmulated, ManyRows) {
  for_all_seeds(4, [](const Trial& trial) {
    AttentionShape shape = tensor_core_shape(trial);
    shape.num_heads = shape.kv_heads = 1, shape.head_dim = 64;
    const Sequences s =
        sequences_of(trial, shape, AttentionFill::reals, {.num_queries = 10'000, .longest = 100});
    const AttentionBatch batch(s, many_rows(trial, s), {.seed = trial.seed()});
    const AttentionBatch all(s, whole(s), {.seed = 1});
    expect_bits_of(trial, batch, results_of(batch), all, results_of(all));
  });
}

TEST(AttentionEmulated, OnCudaCores) {
  for_all_seeds(12, [](const Trial& trial) {
    check_case(trial, plain_shape(trial), AttentionPath::plain,
               {.num_queries = 20'000, .longest = 300});
  });
}

}  // namespace
}  // namespace loratory::gpu
