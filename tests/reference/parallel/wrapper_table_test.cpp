// Which wrapper replaces which base layer [3.21]-[3.24]: every row of the table, both modes,
// P = 1, 2, 4.
#include "reference/parallel/wrapper_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "reference/adapter/adapter_error.hpp"
#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

using testing::HasSubstr;
using Kind = WrapperKind;
using Type = BaseLayerType;

constexpr int64_t kL = 3, kR = 4, kK = 8;

// What a row of the table says for F and P.
struct Expected {
  Kind kind = Kind::none;
  bool fully_sharded = false;
  std::vector<int64_t> num_out{};
  std::vector<BufferShape> buffers{};
};

struct Row {
  const char* what;
  BaseLayer layer;
  int64_t m;
  std::function<Expected(bool fs, int64_t p)> expected;
};

BaseLayer linear(Type type, std::vector<int64_t> output_sizes, bool exact_type = true) {
  return {.type = type, .exact_type = exact_type, .num_in = kK, .output_sizes = output_sizes};
}

BaseLayer qkv(bool exact_type = true) {
  BaseLayer layer = linear(Type::qkv, {32, 8, 8}, exact_type);
  layer.qkv = {.num_heads = 8, .num_kv_heads = 2, .head_dim = 4, .q_size = 32};
  return layer;
}

BaseLayer experts(bool gated) {
  BaseLayer layer{.type = Type::moe};
  layer.moe = {.num_experts = 5, .hidden = 8, .intermediate = 12, .gated = gated};
  return layer;
}

Expected none(bool, int64_t) { return {}; }

// A [L, R or Rs, K], B [L, N_i / P, R] for every slice.
Expected by_columns(Kind kind, bool fs, int64_t p, std::vector<int64_t> num_out) {
  Expected e{kind, fs, num_out, {}};
  for (const int64_t out : num_out)
    e.buffers.push_back({{kL, fs ? kR / p : kR, kK}, {kL, out / p, kR}});
  return e;
}

Expected row(bool fs, int64_t p) {
  return {Kind::row, fs, {16}, {{{kL, kR, kK / p}, {kL, fs ? 16 / p : 16, kR}}}};
}

Expected replicated(Kind kind) { return {kind, false, {16}, {{{kL, kR, kK}, {kL, 16, kR}}}}; }

// q and the two of kv; Hkv = 2 of size 4: 8 rows, 4 and, with P = 4, 4 again.
Expected qkv_rows(Kind kind, bool fs, int64_t p) {
  const int64_t q = 32 / p, kv = p == 1 ? 8 : 4, rank = fs ? kR / p : kR;
  const auto shape = [&](int64_t rows) { return BufferShape{{kL, rank, kK}, {kL, rows, kR}}; };
  if (kind == Kind::fused_qkv) return {kind, fs, {48}, {shape(q + 2 * kv)}};
  return {kind, fs, {32, 8, 8}, {shape(q), shape(kv), shape(kv)}};
}

Expected moe(Kind kind, bool fs, int64_t p, std::vector<int64_t> num_out) {
  Expected e{kind, fs, num_out, {}};
  for (const int64_t out : num_out) {
    e.buffers.push_back({{kL, 5, fs ? kR / p : kR, 8}, {kL, 5, out / p, kR}});
  }
  e.buffers.push_back({{kL, 5, kR, 12 / p}, {kL, 5, fs ? 8 / p : 8, kR}});
  return e;
}

std::vector<Row> column_rows() {
  const auto columns = [](Kind kind, std::vector<int64_t> num_out) {
    return [=](bool fs, int64_t p) { return by_columns(kind, fs, p, num_out); };
  };
  const auto column = columns(Kind::column, {16});
  const auto halves = [](bool fs, int64_t p) { return by_columns(Kind::halves, fs, p, {16}); };
  const auto merged = [](std::vector<int64_t> num_out) {
    return [=](bool fs, int64_t p) { return by_columns(Kind::merged, fs && p > 1, p, num_out); };
  };
  const auto subclass = [](bool, int64_t p) {
    return p == 1 ? by_columns(Kind::merged, false, p, {8, 8}) : Expected{};
  };
  const Type merge = Type::merged_column;
  return {
      {"column, m = 0", linear(Type::column, {16}), 0, column},
      {"column, m = 1", linear(Type::column, {16}), 1, column},
      {"column, m = 2", linear(Type::column, {16}), 2, column},
      {"column, subclass", linear(Type::column, {16}, false), 1, none},
      {"merged, m = 1, n = 2", linear(merge, {8, 8}), 1, halves},
      {"merged, m = 1, n = 1", linear(merge, {16}), 1, halves},
      {"merged subclass, m = 1, n = 2", linear(merge, {8, 8}, false), 1, halves},
      {"merged, m = 2, n = 2", linear(merge, {8, 4}), 2, merged({8, 4})},
      {"merged, m = 2, n = 4: qkv and z", linear(merge, {8, 4, 4, 12}), 2, merged({8, 4, 4, 12})},
      {"merged subclass, m = 2", linear(merge, {8, 8}, false), 2, subclass},
      {"merged, m = 3", linear(merge, {8, 4, 4}), 3, columns(Kind::variable, {8, 4, 4})},
      {"merged subclass, m = 5", linear(merge, {8, 4}, false), 5, columns(Kind::variable, {8, 4})},
      {"merged, m = 0, n = 3", linear(merge, {8, 4, 4}), 0, columns(Kind::variable, {8, 4, 4})},
      {"merged, m = 1, n = 3", linear(merge, {8, 4, 4}, false), 1,
       columns(Kind::variable, {8, 4, 4})},
      {"merged, m = 0, n = 2", linear(merge, {8, 8}), 0, none},
      {"merged, m = 0, n = 1", linear(merge, {16}, false), 0, none},
  };
}

std::vector<Row> other_rows() {
  const auto always = [](const Expected& e) { return [=](bool, int64_t) { return e; }; };
  const auto of_qkv = [](Kind kind) {
    return [=](bool fs, int64_t p) { return qkv_rows(kind, fs, p); };
  };
  const auto of_moe = [](Kind kind, std::vector<int64_t> num_out) {
    return [=](bool fs, int64_t p) { return moe(kind, fs, p, num_out); };
  };
  const auto replicate = always(replicated(Kind::replicated));
  return {
      {"embedding", linear(Type::vocab_embedding, {16}), 1, always(replicated(Kind::embedding))},
      {"embedding, m = 3", linear(Type::vocab_embedding, {16}), 3,
       always(replicated(Kind::embedding))},
      {"embedding, subclass", linear(Type::vocab_embedding, {16}, false), 1, none},
      {"qkv, m = 1", qkv(), 1, of_qkv(Kind::fused_qkv)},
      {"qkv, m = 3", qkv(), 3, of_qkv(Kind::qkv)},
      {"qkv, m = 2", qkv(), 2, none},
      {"qkv, m = 0", qkv(), 0, none},
      {"qkv, subclass", qkv(false), 3, none},
      {"row", linear(Type::row, {16}), 1, row},
      {"row, m = 0", linear(Type::row, {16}), 0, row},
      {"row, subclass", linear(Type::row, {16}, false), 1, none},
      {"replicated", linear(Type::replicated, {16}), 1, replicate},
      {"replicated, subclass: the router", linear(Type::replicated, {16}, false), 0, replicate},
      {"moe 2-D, gated", experts(true), 2, of_moe(Kind::moe_2d, {12, 12})},
      {"moe 2-D, not gated", experts(false), 2, of_moe(Kind::moe_2d, {12})},
      {"moe 3-D, gated", experts(true), 1, of_moe(Kind::moe_3d, {24})},
      {"moe 3-D, not gated", experts(false), 1, of_moe(Kind::moe_3d, {12})},
      {"moe, m = 3", experts(true), 3, none},
      {"other", linear(Type::other, {16}), 1, none},
  };
}

// [3.21] [3.24] [3.12] [1.33]
TEST(WrapperTable, EveryRow) {
  std::vector<Row> rows = column_rows();
  for (const Row& r : other_rows()) rows.push_back(r);
  for (const Row& r : rows) {
    for (const bool fs : {false, true}) {
      for (const int64_t p : {1, 2, 4}) {
        const Expected expected = r.expected(fs, p);
        const ParallelConfig parallel{.tp_size = p, .fully_sharded = fs, .max_lora_rank = kR};
        const Wrapper got = make_wrapper(r.layer, r.m, parallel, kL);
        SCOPED_TRACE(testing::Message() << r.what << ", F = " << fs << ", P = " << p);
        EXPECT_EQ(name(got.choice.kind), name(expected.kind));
        EXPECT_EQ(got.choice.fully_sharded, expected.fully_sharded);
        EXPECT_EQ(got.num_slices(), expected.num_out.size());
        EXPECT_EQ(got.num_out, expected.num_out);
        EXPECT_EQ(got.buffers, expected.buffers);
        EXPECT_EQ(wrapper_kind(r.layer, r.m, fs, p), got.choice);
      }
    }
  }
}

// [3.21] The shapes of all tp_ranks are those of the first.
TEST(WrapperTable, AllTpRanksHaveTheSameShapes) {
  std::vector<Row> rows = column_rows();
  for (const Row& r : other_rows()) rows.push_back(r);
  for (const Row& r : rows) {
    const Wrapper got =
        make_wrapper(r.layer, r.m, {.tp_size = 4, .fully_sharded = true, .max_lora_rank = kR}, kL);
    for (int64_t p = 0; got.shards && p < 4; ++p) {
      EXPECT_EQ(buffer_shapes(*got.shards, p, kL), got.buffers) << r.what;
    }
  }
}

// [3.22] [1.41]
TEST(WrapperTable, ExpertParallelAndFullyShardedIsAConfigurationError) {
  BaseLayer layer = experts(true);
  layer.moe.expert_parallel = true;
  EXPECT_EQ(wrapper_kind(layer, 2, false, 2), (WrapperChoice{Kind::moe_2d, false}));
  EXPECT_THAT(error_of([&] { wrapper_kind(layer, 2, true, 2); }),
              HasSubstr("not possible with expert parallelism"));
}

// [3.4] [3.10] [3.17] Sizes that P does not divide.
TEST(WrapperTable, DivisibilityIsChecked) {
  const auto error = [](const BaseLayer& layer, int64_t m, int64_t p, bool fs, int64_t rank) {
    return error_of([&] {
      make_wrapper(layer, m, {.tp_size = p, .fully_sharded = fs, .max_lora_rank = rank}, kL);
    });
  };
  EXPECT_EQ(error(linear(Type::column, {6}), 1, 4, false, 4),
            "out-features: 6 is not divisible by tp_size 4");
  EXPECT_EQ(error(experts(true), 2, 8, false, 8),
            "intermediate size: 12 is not divisible by tp_size 8");
  EXPECT_EQ(error(experts(true), 2, 4, true, 6), "max_lora_rank: 6 is not divisible by tp_size 4");
  BaseLayer odd = experts(true);
  odd.moe.hidden = 6;
  EXPECT_EQ(error(odd, 2, 4, true, 4), "hidden size: 6 is not divisible by tp_size 4");
  EXPECT_EQ(error(odd, 2, 4, false, 6), "");
}

// A pair of rank 1 whose B has so many rows.
struct OnePair {
  explicit OnePair(int64_t num_rows) : b(counting({num_rows, 1})) {}
  std::optional<LoraPair> pair() const { return LoraPair{a.view(), b.view(), 1}; }
  Tensor a = counting({1, kK}), b;
};

// [3.24] [1.25]
TEST(AcceptTensors, ByKind) {
  const OnePair two(2), four(4), six(6), eight(8), sixteen(16), row48(48), row32(32);
  const auto make = [](const BaseLayer& layer, int64_t m) {
    return make_wrapper(layer, m, {.tp_size = 2, .max_lora_rank = kR}, kL);
  };
  const auto count = [](const Wrapper& wrapper, const LoraPairs& tensors) {
    return accept_tensors(wrapper, tensors).size();
  };
  const auto refused = [](const Wrapper& wrapper, const LoraPairs& tensors) {
    return !error_of([&] { accept_tensors(wrapper, tensors); }).empty();
  };
  const Wrapper column = make(linear(Type::column, {16}), 1);
  EXPECT_EQ(count(column, {sixteen.pair()}), 1);
  EXPECT_TRUE(refused(column, {eight.pair(), eight.pair()}));
  EXPECT_TRUE(refused(column, {std::nullopt}));
  EXPECT_TRUE(refused(column, {}));
  const Wrapper four_slices = make(linear(Type::merged_column, {2, 2, 2, 8}), 2);
  EXPECT_EQ(count(four_slices, {six.pair(), eight.pair()}), 4) << "qkv and z";
  EXPECT_EQ(count(four_slices, {two.pair(), std::nullopt, two.pair(), eight.pair()}), 4);
  EXPECT_TRUE(refused(four_slices, {six.pair(), std::nullopt}));
  EXPECT_TRUE(refused(four_slices, {four.pair(), eight.pair()}));
  const Wrapper variable = make(linear(Type::merged_column, {8, 4, 4}), 0);
  EXPECT_EQ(count(variable, {sixteen.pair()}), 3) << "one tensor";
  EXPECT_EQ(count(variable, {eight.pair(), std::nullopt, four.pair()}), 3);
  const Wrapper attention = make(qkv(), 3);
  EXPECT_EQ(count(attention, {row32.pair(), eight.pair(), std::nullopt}), 3);
  EXPECT_EQ(count(attention, {row32.pair(), sixteen.pair()}), 3) << "q, and k with v";
  EXPECT_EQ(count(make(qkv(), 1), {row48.pair()}), 1);
  EXPECT_EQ(count(make(experts(true), 2), {two.pair(), two.pair(), two.pair()}), 3);
  EXPECT_TRUE(refused(make(experts(true), 2), {two.pair(), two.pair()}));
  EXPECT_EQ(count(make(experts(true), 1), {two.pair(), two.pair()}), 2);
  EXPECT_TRUE(refused(make(experts(true), 1), {two.pair()}));
}

std::vector<ModulePlace> small_model() {
  BaseLayer head = linear(Type::vocab_embedding, {10});
  return {{"model.embed_tokens", 1, linear(Type::vocab_embedding, {kK}), 0},
          {"model.layers.0.qkv_proj", 2, qkv(), 3},
          {"model.layers.0.o_proj", 3, linear(Type::row, {16}), 0},
          {"model.layers.0.norm", 4, linear(Type::other, {16}), 0},
          {"shared.o_proj", 3, linear(Type::row, {16}), 0},
          {"lm_head", 1, head, 0}};
}

// [3.22] lm_head is known by its name, be it tied to the embedding or of a type that the table
// would not wrap; a module on two paths has one wrapper.
TEST(WrappedModel, OneWrapperForAModuleAndOneForLmHead) {
  const ParallelConfig parallel{.tp_size = 4, .max_lora_rank = kR};
  const WrappedModel model(small_model(), parallel, kL);
  EXPECT_EQ(model.num_wrappers(), 4);
  EXPECT_EQ(&model.for_adapter("model.layers.0.o_proj", "key"),
            &model.for_adapter("shared.o_proj", "key"));
  const Wrapper& head = model.for_adapter("lm_head", "key");
  EXPECT_EQ(head.choice.kind, Kind::logits);
  EXPECT_EQ(head.buffers[0].b, (Extents{kL, 3, kR})) << "10 tokens padded to 12";
  EXPECT_EQ(model.for_adapter("model.embed_tokens", "key").choice.kind, Kind::embedding);
  std::vector<ModulePlace> places{{"lm_head", 7, linear(Type::other, {10}), 0},
                                  {"my_lm_head", 8, linear(Type::other, {10}), 0}};
  const WrappedModel heads(places, parallel, kL);
  EXPECT_EQ(heads.num_wrappers(), 1);
}

// [3.23] E_UNSUPPORTED(layer) for an adapter; an error at start for a list of targets.
TEST(WrappedModel, LayersWithoutLora) {
  const ParallelConfig parallel{.tp_size = 4, .max_lora_rank = kR};
  const WrappedModel model(small_model(), parallel, kL);
  try {
    model.for_adapter("model.layers.0.norm", "base_model.model.norm.lora_A.weight");
    FAIL();
  } catch (const AdapterError& e) {
    EXPECT_EQ(e.code(), AdapterErrorCode::unsupported);
    EXPECT_EQ(e.detail(), "layer");
    EXPECT_EQ(e.key(), "base_model.model.norm.lora_A.weight");
  }
  const auto error = [&](const std::vector<std::string>& targets) {
    return error_of([&] { WrappedModel(small_model(), parallel, kL, targets); });
  };
  EXPECT_EQ(error({"o_proj", "qkv_proj", "lm_head"}), "");
  EXPECT_THAT(error({"norm"}), HasSubstr("model.layers.0.norm: this kind of layer cannot"));
  EXPECT_THAT(error({"o_proj", "z_proj"}), HasSubstr("z_proj: no module"));
  EXPECT_EQ(WrappedModel(small_model(), parallel, kL, {"o_proj"}).num_wrappers(), 1);
}

}  // namespace
}  // namespace loratory::reference
