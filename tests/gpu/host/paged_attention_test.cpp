// What attention plans and checks before a launch.
#include "gpu/attention/paged_attention.hpp"

#include <gmock/gmock.h>

#include <random>

#include "gpu/attention/decode_items.hpp"
#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;
using testing::StartsWith;

const int32_t* ints(uintptr_t address) { return static_cast<const int32_t*>(at(address)); }

/// Qwen3-8B.
AttentionShape shape() {
  return {.dtype = Dtype::bf16,
          .num_heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .block_size = 16,
          .scale = 0.0883883F};
}
constexpr AttentionLimits kLimits{.max_tokens = 100, .max_rows = 10, .max_context = 1000};

std::string plan_error(const AttentionShape& s, const AttentionLimits& limits = kLimits) {
  return error_of([&] { const AttentionPlan plan(s, limits); });
}

struct AttentionCall {
  AttentionTensors tensors{.q = device_view(Dtype::bf16, at(0x10000), {100, 32 * 128}),
                           .out = device_view(Dtype::bf16, at(0x20000), {100, 32 * 128}),
                           .kv = {.dtype = Dtype::bf16,
                                  .k = at(0x30000),
                                  .v = at(0x40000),
                                  .num_blocks = 99,
                                  .kv_heads = 8,
                                  .block_size = 16,
                                  .head_dim = 128}};
  BatchView batch{.num_tokens = 100,
                  .num_rows = 10,
                  .token_rows = ints(0x100),
                  .row_starts = ints(0x200),
                  .contexts = ints(0x300),
                  .block_tables = ints(0x400),
                  .max_blocks = 63,
                  .block_size = 16};
  int32_t max_row_tokens = 5;
  void* workspace = at(0x50000);

  std::string error() const {
    return error_of([&] {
      AttentionPlan(shape(), kLimits).launch(tensors, batch, max_row_tokens, workspace, nullptr);
    });
  }
};

TEST(AttentionPlan, TensorCoresTakeWhatTheyCan) {
  EXPECT_EQ(AttentionPlan(shape(), kLimits).path(), AttentionPath::tensor_core);
  const auto path_with = [](auto change) {
    AttentionShape s = shape();
    change(s);
    return AttentionPlan(s, kLimits).path();
  };
  using enum AttentionPath;
  EXPECT_EQ(path_with([](auto& s) { s.dtype = Dtype::f16; }), tensor_core);
  EXPECT_EQ(path_with([](auto& s) { s.dtype = Dtype::f32; }), plain);
  EXPECT_EQ(path_with([](auto& s) { s.head_dim = 64; }), tensor_core);
  EXPECT_EQ(path_with([](auto& s) { s.head_dim = 96; }), plain);
  EXPECT_EQ(path_with([](auto& s) { s.block_size = 1; }), tensor_core);
  EXPECT_EQ(path_with([](auto& s) { s.block_size = 24; }), plain);
  EXPECT_EQ(path_with([](auto& s) { s.kv_heads = 2; }), tensor_core);
  EXPECT_EQ(path_with([](auto& s) { s.kv_heads = 1; }), plain);  // 32 heads share it
  EXPECT_EQ(name(tensor_core), "tensor_core");
  EXPECT_EQ(name(plain), "plain");
}

TEST(AttentionPlan, WorkspaceFollowsFromTheLimits) {
  // num_tiles; twice 11 starts; 80 counts; late_taken; 3 tiles and one for each row; 40 pieces x 8
  // heads x 4 rows.
  const int64_t without_sums = 256 + 2 * 256 + 512 + 256 + 256;
  const int64_t expected = without_sums + 4 * 40 * 32 * 128 + 4 * 40 * 32 * 2;
  EXPECT_EQ(AttentionPlan(shape(), kLimits).workspace_bytes(), expected);
  // Contexts of one piece leave no sums.
  EXPECT_EQ(AttentionPlan(shape(), {100, 10, 256}).workspace_bytes(), without_sums);
  AttentionShape s = shape();
  s.dtype = Dtype::f32;
  EXPECT_EQ(AttentionPlan(s, kLimits).workspace_bytes(), 256);
}

TEST(AttentionPlan, TilesHaveRoomForAnySplitOfTheTokens) {
  for (const int32_t group : {1, 3, 4, 16}) {
    for (int64_t tokens = 0; tokens < 200; ++tokens) {
      for (int64_t rows = 1; rows < 20; ++rows) {
        // Most tiles: one row has all tokens that the others, of two each, leave.
        int64_t most = 0;
        for (int64_t others = 0; others < rows && 2 * others <= tokens; ++others) {
          const int64_t rest = tokens - 2 * others;
          const auto tiles = [&](int64_t n) { return (n * group + 127) / 128; };
          most = std::max(most, others * tiles(2) + (rest >= 2 ? tiles(rest) : 0));
        }
        EXPECT_GE(max_prefill_tiles(tokens, rows, group), most) << group << " " << tokens;
      }
    }
  }
}

/// Rows of a step; those of length 0 are padding or chunks.
struct Contexts {
  std::vector<int32_t> contexts, piece_starts{0}, tile_starts{0};
  int32_t kv_heads;

  Contexts(std::vector<int32_t> of, int32_t heads) : contexts(std::move(of)), kv_heads(heads) {
    for (const int32_t context : contexts) {
      piece_starts.push_back(piece_starts.back() + num_attention_pieces(context));
      tile_starts.push_back(tile_starts.back() + num_attention_tiles(context));
    }
  }
  DecodeRows rows() const {
    return {.piece_starts = piece_starts.data(),
            .tile_starts = tile_starts.data(),
            .contexts = contexts.data(),
            .num_rows = int32_t(contexts.size()),
            .kv_heads = kv_heads};
  }
  /// Four items of four tiles for each share.
  bool has_late(int32_t num_shares) const { return rows().num_tiles() >= 48 * num_shares; }
  /// All items, as the order says.
  std::vector<DecodeItem> items() const {
    std::vector<DecodeItem> out;
    for (int32_t row = 0; row < int32_t(contexts.size()); ++row) {
      const int32_t context = contexts[size_t(row)], pieces = num_attention_pieces(context);
      for (int32_t i = 0; i < kv_heads * pieces; ++i) {
        out.push_back({.row = row,
                       .head = i / pieces,
                       .piece = i % pieces,
                       .num_pieces = pieces,
                       .context = context,
                       .index = int64_t(out.size())});
      }
    }
    return out;
  }
};

int32_t count_lanes(const auto& holds) {
  int32_t out = 0;
  for (int32_t lane = 0; lane < 32; ++lane) out += holds(lane) ? 1 : 0;
  return out;
}

auto fields(const DecodeItem& i) {
  return std::tuple(i.row, i.head, i.piece, i.num_pieces, i.context, i.index);
}

/// Goes through late items from the one with index `next` on, and two behind the last one.
void expect_late(const Contexts& c, int32_t num_shares, size_t next) {
  const auto count = [](const auto& holds) { return count_lanes(holds); };
  const std::vector<DecodeItem> expected = c.items();
  int32_t number = 0;
  for (; next < expected.size(); ++next) {
    EXPECT_EQ(fields(late_item(c.rows(), number++, num_shares, count)), fields(expected[next]));
  }
  for (int64_t i = 0; i < 2; ++i) {
    const DecodeItem none = late_item(c.rows(), number++, num_shares, count);
    EXPECT_EQ(none.num_pieces, 0);
    EXPECT_EQ(none.index, int64_t(next) + i);
  }
}

/// Goes through all shares and late items; the tiles of each share.
std::vector<int64_t> walk(const Contexts& c, int32_t num_shares) {
  const auto count = [](const auto& holds) { return count_lanes(holds); };
  const std::vector<DecodeItem> expected = c.items();
  std::vector<int64_t> out;
  size_t next = 0;
  for (int32_t i = 0; i < num_shares; ++i) {
    const DecodeShare share = decode_share(c.rows(), i, num_shares, count);
    int64_t tiles = 0;
    EXPECT_EQ(share.late_follow, c.has_late(num_shares));
    EXPECT_TRUE(!share.late_follow || share.end - share.begin.index >= 2) << "share " << i;
    for (DecodeItem item = share.begin; item.index < share.end; item.advance(c.rows())) {
      EXPECT_LT(next, expected.size());
      if (next >= expected.size()) return out;
      EXPECT_EQ(fields(item), fields(expected[next++])) << "share " << i;
      EXPECT_GT(item.num_keys(), 0);
      tiles += num_attention_tiles(item.num_keys());
      EXPECT_EQ(share.ends_with(item), item.index + 1 == share.end);
      if (share.ends_with(item)) break;
    }
    out.push_back(tiles);
  }
  EXPECT_EQ(next < expected.size(), c.has_late(num_shares));
  expect_late(c, num_shares, next);
  return out;
}

TEST(DecodeItems, SharesAndLateItemsHaveAllInOrderAndSharesEqualTiles) {
  std::mt19937 random(7);
  const auto pick = [&random](int32_t n) { return int32_t(random() % uint32_t(n)); };
  int num_with_late = 0;
  for (int trial = 0; trial < 400; ++trial) {
    constexpr int32_t kRows[] = {1, 2, 5, 31, 32, 33, 64, 100, 1030}, kMost[] = {1, 300, 3000};
    constexpr int32_t kShares[] = {1, 2, 7, 132, 264};
    std::vector<int32_t> contexts;
    const int32_t most = kMost[pick(3)];
    for (int32_t left = kRows[pick(9)]; left > 0; --left) {
      contexts.push_back(pick(3) == 0 ? 0 : 1 + pick(most));
    }
    const Contexts c(contexts, 1 + pick(8));
    const int32_t num_shares = kShares[pick(5)];
    const std::vector<int64_t> tiles = walk(c, num_shares);
    num_with_late += c.has_late(num_shares) ? 1 : 0;
    const int64_t in_shares = num_tiles_in_shares(c.rows().num_tiles(), num_shares);
    for (const int64_t of_share : tiles) {
      // A share begins with the first item that begins in it.
      EXPECT_LT(std::abs(of_share - in_shares / num_shares), 5) << "trial " << trial;
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(num_with_late, 50);
}

TEST(DecodeItems, LateAreAThirtySecondAndAnItemForEachShare) {
  EXPECT_EQ(num_tiles_in_shares(48 * 132 - 1, 132), 48 * 132 - 1);
  EXPECT_EQ(num_tiles_in_shares(64 * 132, 132), (64 - 2 - 4) * 132);
  EXPECT_EQ(num_tiles_in_shares(128 * 132, 132), (128 - 4 - 4) * 132);
}

TEST(DecodeItems, NoRowsLeaveNothing) {
  for (const auto& contexts : {std::vector<int32_t>{}, std::vector<int32_t>{0, 0, 0}}) {
    for (const int64_t tiles : walk(Contexts(contexts, 8), 132)) EXPECT_EQ(tiles, 0);
  }
}

TEST(AttentionPlan, NamesWhatDoesNotFit) {
  AttentionShape s = shape();
  s.dtype = Dtype::i8;
  EXPECT_EQ(plan_error(s), "attention: dtype: is i8, must be f32, bf16 or f16");
  s = shape();
  s.kv_heads = 0;
  EXPECT_EQ(plan_error(s), "attention: kv_heads: is 0, must be 1 to 1024");
  s = shape();
  s.num_heads = 30;
  EXPECT_EQ(plan_error(s),
            "attention: num_heads: is 30, must be 1 to 1024 and a multiple of 8 kv_heads");
  s = shape();
  s.head_dim = 0;
  EXPECT_EQ(plan_error(s), "attention: head_dim: is 0, must be 1 to 1024");
  s = shape();
  s.block_size = 0;
  EXPECT_EQ(plan_error(s), "attention: block_size: is 0, must be 1 to 2097151");
  s.block_size = 1 << 21;
  EXPECT_THAT(plan_error(s), StartsWith("attention: block_size: is 2097152, must be 1 to"));
  s = shape();
  s.scale = 0;
  EXPECT_EQ(plan_error(s), "attention: scale: must be positive and finite");
  EXPECT_THAT(plan_error(shape(), {0, 10, 1000}), StartsWith("attention: max_tokens: is 0, must"));
  EXPECT_EQ(plan_error(shape(), {100, 0, 1000}), "attention: max_rows: must be at least 1");
  EXPECT_THAT(plan_error(shape(), {100, 10, 0}), StartsWith("attention: max_context: is 0, must"));
  EXPECT_THAT(plan_error(shape(), {100, INT32_MAX, 1 << 24}), HasSubstr("more than 2^29 pieces"));
}

TEST(AttentionLaunch, NamesTheTensorThatDoesNotFit) {
  AttentionCall c;
  c.tensors.q.dtype = Dtype::f16;
  EXPECT_EQ(c.error(), "attention: q: is f16, planned for bf16");
  c = AttentionCall();
  c.tensors.out.shape[0] = 99;
  EXPECT_THAT(c.error(),
              StartsWith("attention: out: must be [100 tokens or more, 4096], is {dtype=bf16"));
  c = AttentionCall();
  c.tensors.q.strides[0] = 4095;
  EXPECT_EQ(c.error(), "attention: q: has rows with gaps inside, or that overlap");
  c = AttentionCall();
  c.tensors.q.strides[0] = 4100;
  EXPECT_EQ(c.error(), "attention: q: has rows that are not aligned to 16 bytes");
  c = AttentionCall();
  c.tensors.out.data = at(0x20008);
  EXPECT_EQ(c.error(), "attention: out: has rows that are not aligned to 16 bytes");
  c = AttentionCall();
  c.tensors.out.data = nullptr;
  EXPECT_EQ(c.error(), "attention: out: is null");
  c = AttentionCall();
  c.tensors.kv.dtype = Dtype::f32;
  EXPECT_EQ(c.error(), "attention: kv: is f32, planned for bf16");
  c = AttentionCall();
  c.tensors.kv.block_size = 32;
  EXPECT_EQ(c.error(),
            "attention: kv: has 8 heads of 128 in blocks of 32, planned for 8, 128 and 16");
  c = AttentionCall();
  c.tensors.kv.num_blocks = 0;
  EXPECT_EQ(c.error(), "attention: kv: has 0 blocks, must be 1 to 16777215");
  c = AttentionCall();
  c.tensors.kv.num_blocks = 16777216;
  EXPECT_EQ(c.error(), "attention: kv: has 16777216 blocks, must be 1 to 16777215");
  c = AttentionCall();
  c.tensors.kv.v = at(0x40008);
  EXPECT_EQ(c.error(), "attention: kv: is not aligned to 16 bytes");
  c = AttentionCall();
  c.tensors.kv.k = nullptr;
  EXPECT_EQ(c.error(), "attention: kv: is null");
}

TEST(AttentionLaunch, NamesWhatTheBatchLacks) {
  AttentionCall c;
  c.batch.num_tokens = 101;
  EXPECT_EQ(c.error(), "attention: num_tokens: is 101, planned for 100");
  c = AttentionCall();
  c.batch.num_rows = 11;
  EXPECT_EQ(c.error(), "attention: num_rows: is 11, planned for 10");
  c = AttentionCall();
  c.batch.block_size = 8;
  EXPECT_EQ(c.error(), "attention: block_size: of the batch is 8, planned for 16");
  c = AttentionCall();
  c.batch.max_blocks = 0;
  EXPECT_EQ(c.error(), "attention: max_blocks: must be at least 1");
  c = AttentionCall();
  c.batch.contexts = nullptr;
  EXPECT_EQ(c.error(), "attention: contexts: is null");
  c = AttentionCall();
  c.batch.block_tables = nullptr;
  EXPECT_EQ(c.error(), "attention: block_tables: is null");
  c = AttentionCall();
  c.workspace = at(0x50010);
  EXPECT_EQ(c.error(), "attention: workspace: is null or not aligned to 256 bytes");
  c = AttentionCall();
  c.max_row_tokens = 0;
  EXPECT_EQ(c.error(), "attention: max_row_tokens: must be at least 1");
}

}  // namespace
}  // namespace loratory::gpu
