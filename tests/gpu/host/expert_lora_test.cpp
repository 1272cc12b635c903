// LoRA on experts without a GPU: which rows belong together, where weights lie, what is refused.
#include "gpu/moe/expert_lora.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "fuzz/support/moe_case.hpp"
#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/variant_table.hpp"
#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::MoeCase;
using reference::MoeData;
using reference::MoeFill;
using testing::HasSubstr;

// [1.37] P20: the function that the builder runs, on the host, for every row of many cases: what
// the reference says of slots, expert maps and adapters that are off.
TEST(ExpertPairs, AreThoseOfTheReference) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    MoeCase c{.seed = seed, .num_tokens = int(seed % 9), .num_experts = 1 + int(seed % 13)};
    c.k = 1 + int(seed % uint64_t(c.num_experts)), c.max_loras = 1 + int(seed % 5);
    MoeData data(c, MoeFill::integers);
    for (int e = 0; seed % 3 == 0 && e < c.num_experts; ++e) {
      data.expert_map.push_back(e % 4 == 1 ? -1 : c.num_experts - 1 - e);
    }
    const ExpertPairs pairs{
        .rows = {.num_tokens = c.num_tokens,
                 .experts = data.experts.data(),
                 .expert_map = data.expert_map.empty() ? nullptr : data.expert_map.data(),
                 .slots = data.slots.data(),
                 .adapter_enabled = data.adapter_enabled.data()},
        .experts_per_token = uint32_t(c.k),
        .num_known = uint32_t(c.num_experts),
        .num_experts = uint32_t(c.num_experts),
        .num_slots = uint32_t(c.max_loras)};
    ExpertPairs by_expert = pairs;
    by_expert.rows.slots = by_expert.rows.adapter_enabled = nullptr;
    const reference::ExpertRows rows{c.k, data.experts, data.expert_map};
    for (int32_t row = 0; row < rows.num_rows(); ++row) {
      const int32_t slot = data.active_slot(rows.token(row)), expert = rows.local_expert(row);
      const bool is_covered = slot >= 0 && expert >= 0;
      EXPECT_EQ(pair_of(pairs, row), is_covered ? slot * c.num_experts + expert : -1);
      EXPECT_EQ(pair_of(by_expert, row), expert);
    }
  }
}

// Padding is nowhere; a number that does not exist is bad, wherever it stands.
TEST(ExpertPairs, TellPaddingFromErrors) {
  const std::vector<int32_t> experts{-1, 3, 4, -2, 1, 1, 2}, map{0, 5, -1, 1};
  const std::vector<int32_t> slots{0, 0, 0, 0, 2, -1, 7}, enabled{1, 1, 1, 1};
  ExpertPairs p{.rows = {.num_tokens = 7,
                         .experts = experts.data(),
                         .slots = slots.data(),
                         .adapter_enabled = enabled.data()},
                .experts_per_token = 1,
                .num_known = 4,
                .num_experts = 4,
                .num_slots = 3};
  const auto all = [&] {
    std::vector<int32_t> out;
    for (int32_t row = 0; row < 7; ++row) out.push_back(pair_of(p, row));
    return out;
  };
  EXPECT_EQ(all(), (std::vector<int32_t>{-1, 3, kBadPair, kBadPair, 9, -1, kBadPair}));
  p.rows.expert_map = map.data(), p.num_experts = 2;
  EXPECT_EQ(all(), (std::vector<int32_t>{-1, 1, kBadPair, kBadPair, kBadPair, kBadPair, kBadPair}));
}

// An expert or a slot that does not exist indexes no table, although its entry would not count: in
// front of the table and far behind it there is nothing.
TEST(ExpertPairs, NothingOutsideTheTablesIsRead) {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  const auto between_guards = [&](int32_t value) {
    void* const all = mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const table = reinterpret_cast<int32_t*>(static_cast<std::byte*>(all) + page);
    EXPECT_EQ(mprotect(table, page, PROT_READ | PROT_WRITE), 0);
    std::fill_n(table, page / sizeof *table, value);
    return table;
  };
  const auto beyond = int32_t(page / sizeof(int32_t));
  int32_t* const map = between_guards(0);
  int32_t* const enabled = between_guards(1);
  const std::vector<int32_t> experts{-1, beyond, 1, 1, 1}, slots{0, 0, -1, beyond, 2};
  const ExpertPairs p{.rows = {.num_tokens = 5,
                               .experts = experts.data(),
                               .expert_map = map,
                               .slots = slots.data(),
                               .adapter_enabled = enabled},
                      .experts_per_token = 1,
                      .num_known = 4,
                      .num_experts = 1,
                      .num_slots = 3};
  std::vector<int32_t> pairs;
  for (int32_t row = 0; row < 5; ++row) pairs.push_back(pair_of(p, row));
  EXPECT_EQ(pairs, (std::vector<int32_t>{-1, kBadPair, -1, kBadPair, 2}));
  munmap(reinterpret_cast<std::byte*>(map) - page, 3 * page);
  munmap(reinterpret_cast<std::byte*>(enabled) - page, 3 * page);
}

/// Sizes of a layer whose weights lie one after the other.
constexpr ExpertSliceShape kShape{
    .num_slots = 3, .num_experts = 5, .max_rank = 16, .num_in = 64, .num_out = 32};

LoraLayerDesc expert_desc(SharedWeights shared = {}) {
  return {.slices = {expert_slice(Dtype::bf16, at(0x1000), at(0x2000), kShape,
                                  static_cast<const int32_t*>(at(0x3000)),
                                  static_cast<const float*>(at(0x4000)), shared)},
          .experts = {.num_experts = 5, .rows_per_x = 4},
          .workspace = at(0x5000),
          .workspace_bytes = size_t{1} << 24};
}

// P25: [slot, expert] of a tensor [L, E, R, K] lies where the kernels look, beyond 2^31 too; a
// weight that experts share has one place for all of them.
TEST(ExpertLora, FindsTheWeightsOfASlotAndExpert) {
  const LoraSliceDesc own = expert_desc().slices[0],
                      shared = expert_desc({.a = true, .b = true}).slices[0];
  KernelParams p;
  p.num_experts = 5;
  for (int32_t slot = 0; slot < 3; ++slot) {
    for (int32_t expert = 0; expert < 5; ++expert) {
      const auto offset = [&](int64_t slot_stride, int64_t expert_stride) {
        return weights_offset(p, slot * 5 + expert, slot_stride, expert_stride);
      };
      EXPECT_EQ(offset(own.a.strides[0], own.a_expert_stride), (slot * 5 + expert) * 16 * 64);
      EXPECT_EQ(offset(own.b.strides[0], own.b_expert_stride), (slot * 5 + expert) * 32 * 16);
      EXPECT_EQ(offset(shared.a.strides[0], shared.a_expert_stride), slot * 16 * 64);
      EXPECT_EQ(offset(shared.b.strides[0], shared.b_expert_stride), slot * 32 * 16);
      const int64_t far = int64_t{1} << 33;
      EXPECT_EQ(offset(5 * far, far), (slot * 5 + expert) * far);
    }
  }
  // A dense layer: the slot alone.
  EXPECT_EQ(weights_offset(KernelParams{}, 7, 100, 0), 700);
}

LoraTensors tensors(int64_t tokens, int64_t k) {
  return {.x = device_view(Dtype::bf16, at(0x10000), {tokens, 64}),
          .y = device_view(Dtype::bf16, at(0x20000), {tokens * k, 32})};
}

GroupViews views() { return {{segments(8), segments(32), segments(64)}}; }

// Every step's variant has a kernel and takes one of the sizes that a builder makes; so does the
// expand behind it.
TEST(ExpertLora, ChoosesAmongTheSizesOfGroups) {
  EXPECT_EQ(LoraLayer(expert_desc()).num_slots(), 15);
  for (const int32_t num_experts : {2, 5, 32, 128}) {
    for (const int64_t num_slots : {1, 8, 32}) {
      for (const int64_t rank : {8, 16, 64, 128, 256}) {
        for (int64_t rows = 1; rows < 40000; rows = rows * 3 / 2 + 1) {
          LaunchShape shape{.num_tokens = rows,
                            .num_in = 2048,
                            .max_rank = rank,
                            .num_slices = 2,
                            .num_slots = num_slots * num_experts,
                            .has_experts = true,
                            .has_router_weights = rows % 2 == 0,
                            .num_rank_blocks = (rank + 31) / 32};
          const LoraVariant v = choose_variant(shape);
          ASSERT_TRUE(has_kernel(LoraOp::linear, v)) << describe(shape);
          EXPECT_EQ(views().of(v.segment_size()).segment_size, v.segment_size());
          const LoraVariant expand = choose_expand_variant(shape, v.token_tiles);
          EXPECT_TRUE(has_kernel(LoraOp::expand, expand)) << describe(shape);
          EXPECT_EQ(v.segment_size() % expand.segment_size(), 0);
        }
      }
    }
  }
  EXPECT_THAT(error_of([] { views().of(16); }), HasSubstr("16 is not 8, 32 or 64"));
}

// Many groups of few rows go by eights however many tokens there are; few of many rows do not.
TEST(ExpertLora, SmallGroupsGoByEights) {
  EXPECT_EQ(LoraLayer(expert_desc()).variant_for(tensors(45, 4)).segment_size(), 8);
  EXPECT_EQ(LoraLayer(expert_desc()).variant_for(tensors(4096, 4)).segment_size(), 64);
  LoraLayerDesc many = expert_desc();
  many.experts.num_experts = 2048;
  EXPECT_EQ(LoraLayer(many).variant_for(tensors(8192, 4)).segment_size(), 8);
}

// 1,200 rows in three slots of 50 experts may be eight a group; those of one adapter are 24.
TEST(ExpertLora, KernelsFollowFromTheNumberOfAdapters) {
  LoraLayerDesc d = expert_desc();
  d.experts.num_experts = 50;
  LoraTensors t = tensors(300, 4);
  EXPECT_EQ(LoraLayer(d).variant_for(t).segment_size(), 8);
  t.max_adapters = 1;
  EXPECT_EQ(LoraLayer(d).variant_for(t).segment_size(), 64);
  t.max_adapters = 100;
  EXPECT_EQ(LoraLayer(d).variant_for(t).segment_size(), 8);
}

// Router weights meet h between two launches, with 16 more bits than h has.
TEST(ExpertLora, RouterWeightsNeedTwoLaunches) {
  LoraLayerDesc d = expert_desc();
  EXPECT_EQ(LoraLayer(d).variant_for(tensors(1, 4)).launches, 1);
  d.experts.router_weights = static_cast<const float*>(at(0x9000));
  EXPECT_EQ(LoraLayer(d).variant_for(tensors(1, 4)).launches, 2);
  EXPECT_EQ(LoraLayer(d).path_for(tensors(1, 4)), LoraPath::tensor_core);
  d.mode.h = reference::IntermediateMode::cast_to_weight;
  EXPECT_EQ(LoraLayer(d).path_for(tensors(1, 4)), LoraPath::generic);
  d.mode = {}, d.workspace = nullptr, d.workspace_bytes = 0;
  EXPECT_THAT(error_of([&] { ExpertLora(d).launch(tensors(1, 4), views(), nullptr); }),
              HasSubstr("workspace: has 0 bytes"));
}

TEST(ExpertLora, NamesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] {
                LoraTensors t = tensors(8, 4);
                t.y.shape[0] = 31;
                ExpertLora(expert_desc()).launch(t, views(), nullptr);
              }),
              HasSubstr("y: has 31 rows, x has 32"));
  LoraLayerDesc d = expert_desc();
  d.experts.num_experts = 0;
  EXPECT_THAT(error_of([&] { const ExpertLora layer(d); }),
              HasSubstr("experts.num_experts: must be at least 1"));
  d = expert_desc(), d.experts.rows_per_x = 0;
  EXPECT_THAT(error_of([&] { const ExpertLora layer(d); }),
              HasSubstr("experts.rows_per_x: must be at least 1"));
  d = expert_desc(), d.slices[0].a_rank_steps = 1;
  EXPECT_THAT(error_of([&] { const ExpertLora layer(d); }),
              HasSubstr("a_rank_steps and experts do not go together"));
  d = expert_desc(), d.slices[0].b_expert_stride = -8;
  EXPECT_THAT(error_of([&] { const ExpertLora layer(d); }), HasSubstr("expert stride is negative"));
  // Odd strides between experts: no vectors.
  d = expert_desc(), d.slices[0].a_expert_stride += 4;
  EXPECT_FALSE(LoraLayer(d).variant_for(tensors(8, 4)).aligned);
}

TEST(ExpertGroupCounts, AreChecked) {
  const auto counts = [](int64_t tokens, int32_t k, int32_t experts, int32_t known, int32_t slots) {
    return error_of([&] { check_expert_counts(tokens, k, experts, known, slots); });
  };
  EXPECT_EQ(counts(100, 2, 8, 0, 4), "");
  EXPECT_EQ(counts(100, 2, 1, 8, 0), "");
  EXPECT_THAT(counts(100, 9, 8, 0, 4), HasSubstr("experts_per_token: is 9 of 8 experts"));
  EXPECT_THAT(counts(-1, 1, 8, 0, 4), HasSubstr("max_tokens: is negative"));
  EXPECT_THAT(counts(1, 1, 0, 0, 4), HasSubstr("num_experts: must be at least 1"));
  EXPECT_THAT(counts(int64_t{1} << 28, 8, 8, 0, 4), HasSubstr("more than 2^30 rows"));
  const auto* const some = static_cast<const int32_t*>(at(0x1000));
  const auto rows = [&](const ExpertRowsView& view, int32_t known, int32_t slots) {
    return error_of([&] { check_expert_rows(view, 10, known, 4, slots); });
  };
  EXPECT_EQ(rows({.num_tokens = 10, .experts = some, .slots = some}, 0, 2), "");
  EXPECT_EQ(rows({}, 0, 2), "");
  EXPECT_THAT(rows({.num_tokens = 11, .experts = some, .slots = some}, 0, 2),
              HasSubstr("tokens: are 11, there is room for 10"));
  EXPECT_THAT(rows({.num_tokens = 1, .slots = some}, 0, 2), HasSubstr("experts: is null"));
  EXPECT_THAT(rows({.num_tokens = 1, .experts = some}, 0, 2), HasSubstr("slots: is null"));
  EXPECT_THAT(rows({.num_tokens = 1, .experts = some, .slots = some}, 0, 0),
              HasSubstr("groups are by expert alone"));
  EXPECT_THAT(rows({.num_tokens = 1, .experts = some, .slots = some}, 8, 2),
              HasSubstr("expert_map: is null"));
}

TEST(ExpertPairs, TheFirstNumberThatDoesNotExistIsBad) {
  const std::vector<int32_t> experts = {3, 4, 3, 3}, slots = {1, 1, 2, 3}, map = {0, 1, 2, 3, 0};
  const ExpertPairs p{.rows = {.num_tokens = 4,
                               .experts = experts.data(),
                               .expert_map = map.data(),
                               .slots = slots.data()},
                      .num_known = 4,
                      .num_experts = 4,
                      .num_slots = 3};
  EXPECT_EQ(pair_of(p, 0), 1 * 4 + 3);
  EXPECT_EQ(pair_of(p, 1), kBadPair);  // of experts 0 .. 3
  EXPECT_EQ(pair_of(p, 2), 2 * 4 + 3);
  EXPECT_EQ(pair_of(p, 3), kBadPair);  // of slots 0 .. 2
  ExpertPairs fewer = p;
  fewer.num_experts = 3;  // the map leads to one more
  EXPECT_EQ(pair_of(fewer, 0), kBadPair);
}

}  // namespace
}  // namespace loratory::gpu
