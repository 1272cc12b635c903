// load_adapter: shapes, ranks, layouts, modes; each refusal with its code and key.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/reference/adapter/adapter_files.hpp"

namespace loratory::reference {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kKey = "base_model.model.model.layers.0.";
const std::string kPath = "model.layers.0.";

// [1.24] [4.12]
TEST(LoadAdapter, OnePair) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8);
  const Adapter adapter = tensors.load();
  ASSERT_EQ(adapter.modules.size(), 1);
  const LoraModule* q = adapter.find({0, -1, Projection::q});
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->rank, 2);
  EXPECT_EQ(q->scaling, 1.5F);
  EXPECT_EQ(q->a.shape, (Extents{2, 8}));
  EXPECT_EQ(q->b.shape, (Extents{12, 2}));
  EXPECT_EQ(q->a.get(1, 0), 9);
  EXPECT_EQ(q->b.get(11, 1), 123);
  EXPECT_EQ(adapter.rank, 2);
  EXPECT_EQ(adapter.find({0, -1, Projection::k}), nullptr);
  EXPECT_EQ(to_string(q->id), "layers.0.self_attn.q_proj");
}

// [4.11] [4.12]
TEST(LoadAdapter, EveryModuleHasTheShapeOfItsBaseWeight) {
  struct Row {
    const char* path;
    int64_t rows, columns;
  };
  for (const auto& [path, rows, columns] : std::initializer_list<Row>{
           {"model.layers.0.self_attn.k_proj", 6, 8},
           {"model.layers.0.self_attn.v_proj", 6, 8},
           {"model.layers.0.self_attn.o_proj", 8, 11},
           {"model.layers.0.self_attn.qkv_proj", 24, 8},
           {"model.layers.0.mlp.gate_proj", 14, 8},
           {"model.layers.0.mlp.up_proj", 14, 8},
           {"model.layers.0.mlp.gate_up_proj", 28, 8},
           {"model.layers.0.mlp.down_proj", 8, 14},
           {"model.layers.0.mlp.experts.1.gate_proj", 5, 8},
           {"model.layers.0.mlp.experts.1.down_proj", 8, 5},
           {"model.layers.0.block_sparse_moe.experts.1.w3", 5, 8},
           {"lm_head", 10, 8},
       }) {
    EXPECT_EQ(TestTensors().add_pair(path, rows, columns).refusal(), "accepted") << path;
    EXPECT_EQ(TestTensors().add_pair(path, rows + 1, columns).refusal(), "E_SHAPE") << path;
    EXPECT_EQ(TestTensors().add_pair(path, rows, columns + 1).refusal(), "E_SHAPE") << path;
    EXPECT_EQ(TestTensors().add_pair(path, columns, rows).refusal(), "E_SHAPE") << "transposed";
  }
}

// [4.2] [4.12]
TEST(LoadAdapter, TensorsThatDoNotFitEachOther) {
  const std::string q = kKey + "self_attn.q_proj";
  TestTensors columns;
  columns.add(q + ".lora_A.weight", {16, 8}).add(q + ".lora_B.weight", {12, 8});
  EXPECT_EQ(columns.refusal(config_of("\"r\": 16, \"lora_alpha\": 1")), "E_SHAPE");
  EXPECT_THAT(columns.last_error(), HasSubstr(q + ".lora_B.weight"));
  for (const auto& shape : std::vector<std::vector<int64_t>>{{8}, {}, {1, 2, 8}, {0, 8}, {2, 0}}) {
    TestTensors odd;
    odd.add(q + ".lora_A.weight", shape).add(q + ".lora_B.weight", {12, 2});
    EXPECT_EQ(odd.refusal(), "E_SHAPE") << shape_text(shape);
  }
  TestTensors empty;
  empty.add(q + ".lora_A.weight", {0, 8}).add(q + ".lora_B.weight", {12, 0});
  EXPECT_EQ(empty.refusal(), "E_SHAPE");
}

// [1.27] q with an output gate has twice as many rows; the size of the base layer counts.
TEST(LoadAdapter, AnOutputGateDoublesTheRowsOfQ) {
  BaseModelShapes gated = small_model();
  gated.q_size = 24;
  const auto refusal = [&](const char* module, int64_t rows) {
    return TestTensors()
        .add_pair(kPath + "self_attn." + module, rows, 8)
        .refusal(config_of(), {}, gated);
  };
  EXPECT_EQ(refusal("q_proj", 24), "accepted");
  EXPECT_EQ(refusal("q_proj", 12), "E_SHAPE");
  TestTensors fused;
  fused.add_pair(kPath + "self_attn.qkv_proj", 24 + 6 + 6, 8);
  const Adapter adapter = fused.load(config_of(), {}, gated);
  EXPECT_EQ(adapter.find({0, -1, Projection::q})->b.shape, (Extents{24, 2}));
  EXPECT_EQ(adapter.find({0, -1, Projection::k})->b.get(0, 0), 100 + 24 * 2);
}

// [4.7] [4.12] The last rows of appendix B: tensors whose keys are right and whose sizes are not.
TEST(LoadAdapter, AppendixBSizes) {
  const std::string q = kKey + "self_attn.q_proj";
  const auto refusal = [&](std::vector<int64_t> a, std::vector<int64_t> b,
                           const std::string& more = "") {
    TestTensors tensors;
    tensors.add(q + ".lora_A.weight", std::move(a));
    if (!b.empty()) tensors.add(q + ".lora_B.weight", std::move(b));
    return tensors.refusal(config_of(R"("r": 16, "lora_alpha": 1)" + more));
  };
  EXPECT_EQ(refusal({16, 8}, {12, 16}), "accepted");
  EXPECT_EQ(refusal({16, 8}, {}), "E_PAIR");
  EXPECT_EQ(refusal({16, 9}, {12, 16}), "E_SHAPE");
  EXPECT_EQ(refusal({16, 8}, {12, 8}), "E_SHAPE");
  EXPECT_EQ(refusal({16, 8}, {12, 16}, R"(, "rank_pattern": {"q_proj": 8})"),
            "E_CONFIG(rank_pattern)");
  EXPECT_EQ(refusal({16, 8, 1, 1}, {12, 16, 1, 1}), "E_SHAPE") << "a convolution [1.52]";
}

// [4.12] A square A is not turned round, whichever way its numbers lie.
TEST(LoadAdapter, NothingIsTransposedByGuess) {
  TestTensors tensors;
  tensors.add(kKey + "self_attn.q_proj.lora_A.weight", {8, 8})
      .add(kKey + "self_attn.q_proj.lora_B.weight", {12, 8});
  const Adapter adapter = tensors.load(config_of(R"("r": 8, "lora_alpha": 1)"));
  EXPECT_EQ(adapter.modules[0].a.get(1, 0), 1 + 8);
  EXPECT_EQ(TestTensors()
                .add(kKey + "self_attn.q_proj.lora_A.weight", {8, 16})
                .add(kKey + "self_attn.q_proj.lora_B.weight", {16, 12})
                .refusal(config_of(R"("r": 16, "lora_alpha": 1)")),
            "E_SHAPE");
}

// [4.12]
TEST(LoadAdapter, AWithoutB) {
  for (const char* half : {"lora_A.weight", "lora_B.weight", "lora_A.weight_scale"}) {
    TestTensors tensors;
    tensors.add(kKey + "self_attn.q_proj." + half, {2, 8});
    EXPECT_EQ(tensors.refusal(), "E_PAIR") << half;
    EXPECT_THAT(tensors.last_error(), HasSubstr(half));
  }
}

// [1.10] [4.7] [4.8]
TEST(LoadAdapter, TheRankOfATensorIsThatOfTheConfiguration) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8, 4);
  EXPECT_EQ(tensors.refusal(), "E_CONFIG(r)");
  EXPECT_EQ(tensors.refusal(config_of(R"("r": 4, "lora_alpha": 1, "rank_pattern": {"q_proj": 8})")),
            "E_CONFIG(rank_pattern)");
  const Adapter adapter = tensors.load(
      config_of(R"("r": 8, "lora_alpha": 6, "rank_pattern": {"q_proj": 4}, "use_rslora": true)"));
  EXPECT_EQ(adapter.modules[0].scaling, 3.0F);
}

// [4.15]
TEST(LoadAdapter, MaxLoraRank) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8, 3);
  const auto config = config_of("\"r\": 3, \"lora_alpha\": 1");
  LoadOptions options;
  options.max_lora_rank = 3;
  EXPECT_EQ(tensors.refusal(config, options), "accepted");
  options.max_lora_rank = 2;
  EXPECT_EQ(tensors.refusal(config, options), "E_RANK");
  EXPECT_THAT(tensors.last_error(), HasSubstr("rank 3 is greater than max_lora_rank 2"));
}

// [1.23] [1.25]
TEST(LoadAdapter, FusedQkvAndGateUpAreSplitByRows) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.qkv_proj", 24, 8).add_pair(kPath + "mlp.gate_up_proj", 28, 8);
  const Adapter adapter = tensors.load();
  ASSERT_EQ(adapter.modules.size(), 5);
  const auto first_b = [&](Projection projection) {
    return adapter.find({0, -1, projection})->b.get(0, 0);
  };
  EXPECT_EQ(first_b(Projection::q), 100);
  EXPECT_EQ(first_b(Projection::k), 100 + 12 * 2);
  EXPECT_EQ(first_b(Projection::v), 100 + 18 * 2);
  EXPECT_EQ(first_b(Projection::up), 100 + 14 * 2);
  const LoraModule& v = *adapter.find({0, -1, Projection::v});
  EXPECT_EQ(v.b.shape, (Extents{6, 2}));
  EXPECT_EQ(v.a.data, adapter.find({0, -1, Projection::q})->a.data) << "A is shared, not copied";
}

// [4.17]
TEST(LoadAdapter, TheSameMatrixTwiceIsAnError) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.qkv_proj", 24, 8).add_pair(kPath + "self_attn.k_proj", 6, 8);
  EXPECT_EQ(tensors.refusal(), "E_KEY");
  EXPECT_THAT(tensors.last_error(),
              HasSubstr("layers.0.self_attn.k_proj is adapted a second time"));
  TestTensors experts;
  experts.add_pair(kPath + "mlp.experts.2.up_proj", 5, 8)
      .add_pair(kPath + "block_sparse_moe.experts.2.w3", 5, 8);
  EXPECT_EQ(experts.refusal(), "E_KEY");
  BaseModelShapes tied = small_model();
  tied.tied_embeddings = true;
  TestTensors head;
  head.add_pair("lm_head", 10, 8)
      .add("base_model.model.lm_head.lora_embedding_A", {2, 10})
      .add("base_model.model.lm_head.lora_embedding_B", {8, 2});
  EXPECT_EQ(head.refusal(config_of(), {}, tied), "E_KEY") << "one tied head under two names";
}

// [4.17] What fails has changed nothing: neither the file nor another adapter of it.
TEST(LoadAdapter, AFailedLoadLeavesNoTrace) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8);
  const SafetensorsFile file = tensors.file();
  const std::string before = write_safetensors(file.tensors());
  const Adapter first = load_adapter(config_of(), file, small_model());
  BaseModelShapes other = small_model();
  other.hidden = 9;
  EXPECT_THROW(load_adapter(config_of(), file, other), AdapterError);
  EXPECT_EQ(write_safetensors(file.tensors()), before);
  const Adapter second = load_adapter(config_of(), file, small_model());
  EXPECT_EQ(second.modules[0].a.data, first.modules[0].a.data);
  EXPECT_EQ(first.modules[0].a.get(1, 0), 9);
}

// [1.28] [4.9]
TEST(LoadAdapter, Embeddings) {
  const std::string key = "base_model.model.model.embed_tokens";
  TestTensors tensors;
  tensors.add(key + ".lora_embedding_A", {2, 10}).add(key + ".lora_embedding_B", {8, 2}, 100);
  const Adapter adapter = tensors.load();
  const LoraModule& embed = *adapter.find({-1, -1, Projection::embed_tokens});
  EXPECT_EQ(embed.a.shape, (Extents{2, 10}));
  EXPECT_EQ(embed.b.shape, (Extents{8, 2}));
  TestTensors wrong;
  wrong.add(key + ".lora_embedding_A", {2, 11}).add(key + ".lora_embedding_B", {8, 2});
  EXPECT_EQ(wrong.refusal(), "E_SHAPE");
  EXPECT_EQ(TestTensors().add_pair("model.embed_tokens", 8, 10).refusal(), "E_KEY");
  TestTensors linear;
  linear.add(kKey + "self_attn.q_proj.lora_embedding_A", {2, 8});
  EXPECT_EQ(linear.refusal(), "E_KEY");
}

// [4.9]
// logits += scaling · (x B_e) A_e, which is shrink by B_e^T and expand by A_e^T.
TEST(LoadAdapter, ATiedHeadTrainedAsAnEmbeddingIsTransposed) {
  TestTensors tensors;
  tensors.add("base_model.model.lm_head.lora_embedding_A", {2, 10})
      .add("base_model.model.lm_head.lora_embedding_B", {8, 2}, 100);
  EXPECT_EQ(tensors.refusal(), "E_KEY") << "not tied";
  BaseModelShapes tied = small_model();
  tied.tied_embeddings = true;
  const Adapter adapter = tensors.load(config_of(), {}, tied);
  const LoraModule& head = *adapter.find({-1, -1, Projection::lm_head});
  EXPECT_EQ(head.a.shape, (Extents{2, 8}));
  EXPECT_EQ(head.b.shape, (Extents{10, 2}));
  EXPECT_EQ(head.a.get(1, 3), 100 + 3 * 2 + 1);
  EXPECT_EQ(head.b.get(7, 1), 1 + 10 + 7);
}

// [1.29] [4.9]
TEST(LoadAdapter, CopiesOfTheBaseAreNoted) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8)
      .add("base_model.model.model.embed_tokens.base_layer.weight", {10, 8});
  EXPECT_THAT(tensors.load().warnings, testing::ElementsAre(HasSubstr("ignored")));
  tensors.add("base_model.model.lm_head.base_layer.weight", {11, 8});
  EXPECT_EQ(tensors.refusal(), "E_UNSUPPORTED(resized_vocab)");
}

// Weights [10, 8] that count up from `first`, with the strides of a column-major matrix or not.
ConstTensorView counting_weights(std::vector<float>& numbers, float first, bool column_major) {
  numbers.resize(80);
  for (int64_t i = 0; i < 80; ++i) {
    const int64_t at = column_major ? i % 8 * 10 + i / 8 : i;
    numbers[size_t(at)] = first + float(i);
  }
  const auto* data = reinterpret_cast<const std::byte*>(numbers.data());
  const Extents strides = column_major ? Extents{1, 10} : Extents{8, 1};
  return {Dtype::f32, data, {10, 8}, strides};
}

// [4.9] Element i of every test tensor is 1 + i, so the copy equals weights that count from 1.
TEST(LoadAdapter, CopiesOfTheBaseAreComparedIfItIsAtHand) {
  const std::string embeddings = "base_model.model.model.embed_tokens.base_layer.weight";
  std::vector<float> numbers;
  Projection asked = Projection::q;
  const auto refusal = [&](TestTensors& tensors, float first, bool column_major = false) {
    const ConstTensorView base = counting_weights(numbers, first, column_major);
    LoadOptions options;
    options.base_weights = [&](Projection projection) {
      asked = projection;
      return base;
    };
    return tensors.refusal(config_of(), options);
  };
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8).add(embeddings, {10, 8});
  EXPECT_EQ(refusal(tensors, 1), "accepted");
  EXPECT_EQ(asked, Projection::embed_tokens);
  EXPECT_EQ(refusal(tensors, 1, /*column_major=*/true), "accepted");
  EXPECT_EQ(tensors.refusal(), "accepted") << "not at hand";
  EXPECT_EQ(refusal(tensors, 2), "E_UNSUPPORTED(changed_base)");
  EXPECT_THAT(tensors.last_error(), AllOf(HasSubstr(embeddings), HasSubstr("merge_and_unload")));

  std::string halves, other_type;
  for (int i = 0; i < 80; ++i) {  // bf16: the upper half of a float, exact for these numbers
    const float number = float(i + 1);
    const auto* bytes = reinterpret_cast<const char*>(&number);
    halves.append(bytes + 2, 2);
    other_type.append(bytes, 4);
  }
  TestTensors rounded, wrong;
  rounded.add_pair(kPath + "self_attn.q_proj", 12, 8)
      .add_bytes(embeddings, StorageDtype::bf16, {10, 8}, halves);
  EXPECT_EQ(refusal(rounded, 1), "accepted") << "the same numbers in another type";
  wrong.add_pair(kPath + "self_attn.q_proj", 12, 8)
      .add_bytes(embeddings, StorageDtype::u32, {10, 8}, other_type);
  EXPECT_EQ(refusal(wrong, 1), "E_UNSUPPORTED(changed_base)");
}

// [4.9] What PEFT saves with save_embedding_layers, or for a vocabulary that was touched.
TEST(LoadAdapter, WholeEmbeddingsMustEqualTheBase) {
  for (const char* path : {"model.embed_tokens", "lm_head"}) {
    const std::string key = fmt::format("base_model.model.{}.weight", path);
    TestTensors tensors;
    tensors.add_pair(kPath + "self_attn.q_proj", 12, 8).add(key, {10, 8});
    std::vector<float> numbers;
    LoadOptions options;
    options.base_weights = [&](Projection) { return counting_weights(numbers, 1, false); };
    EXPECT_THAT(tensors.load(config_of(), options).warnings,
                testing::ElementsAre(AllOf(HasSubstr(key), HasSubstr("ignored"))));
    options.base_weights = [&](Projection) { return counting_weights(numbers, 0, false); };
    EXPECT_EQ(tensors.refusal(config_of(), options), "E_UNSUPPORTED(changed_base)");
    EXPECT_EQ(tensors.refusal(), "E_UNSUPPORTED(modules_to_save)") << "nothing to compare with";
    EXPECT_THAT(tensors.last_error(), HasSubstr("save_embedding_layers=False"));
  }
}

// [1.52] [4.9] The flag alone changes nothing; a bias in the file would.
TEST(LoadAdapter, BiasFlagsOfModelsWithoutBiases) {
  for (const char* flag : {"all", "lora_only"}) {
    const AdapterConfig config =
        config_of(fmt::format(R"("r": 2, "lora_alpha": 3, "bias": "{}")", flag));
    TestTensors tensors;
    tensors.add_pair(kPath + "self_attn.q_proj", 12, 8);
    EXPECT_EQ(tensors.refusal(config), "accepted") << flag;
    tensors.add(kKey + "self_attn.q_proj.bias", {12});
    EXPECT_EQ(tensors.refusal(config), "E_UNSUPPORTED(bias)") << flag;
    EXPECT_THAT(tensors.last_error(), HasSubstr("merge_and_unload"));
  }
}

// [1.35]
TEST(LoadAdapter, RoutersAreRefusedWithARemedy) {
  TestTensors tensors;
  tensors.add_pair(kPath + "block_sparse_moe.gate", 6, 8);
  EXPECT_EQ(tensors.refusal(), "E_UNSUPPORTED(router)");
  EXPECT_THAT(tensors.last_error(), HasSubstr("exclude_modules"));
}

// [1.38]
TEST(LoadAdapter, ThreeDimensionalExperts) {
  TestTensors tensors;
  tensors.add(kKey + "mlp.experts.w1.lora_A.weight", {6, 2, 8})
      .add(kKey + "mlp.experts.w1.lora_B.weight", {6, 5, 2}, 100);
  const Adapter adapter = tensors.load();
  ASSERT_EQ(adapter.modules.size(), 6);
  const LoraModule& gate = *adapter.find({0, 4, Projection::gate});
  EXPECT_EQ(gate.a.get(1, 7), 1 + 4 * 16 + 15);
  EXPECT_EQ(gate.b.get(3, 1), 100 + 4 * 10 + 7);
  EXPECT_EQ(to_string(gate.id), "layers.0.mlp.experts.4.gate_proj");
}

// [1.38]
TEST(LoadAdapter, SharedOuterExperts) {
  TestTensors tensors;
  tensors.add(kKey + "mlp.experts.w2.lora_A.weight", {6, 2, 5})
      .add(kKey + "mlp.experts.w2.lora_B.weight", {1, 8, 2}, 100);
  const Adapter adapter = tensors.load();
  const LoraModule& first = *adapter.find({0, 0, Projection::down});
  const LoraModule& last = *adapter.find({0, 5, Projection::down});
  EXPECT_EQ(first.b.data, last.b.data);
  EXPECT_EQ(last.a.get(0, 0), 1 + 5 * 10);
  TestTensors three;
  three.add(kKey + "mlp.experts.w2.lora_A.weight", {3, 2, 5})
      .add(kKey + "mlp.experts.w2.lora_B.weight", {1, 8, 2});
  EXPECT_EQ(three.refusal(), "E_SHAPE");
}

// Both parameters of layer 0, r = 2, E = 6: r differs from E, so a swapped view is seen.
TestTensors nested_parameters() {
  TestTensors tensors;
  tensors.add(kKey + "mlp.experts.base_layer.lora_A.weight", {12, 8})
      .add(kKey + "mlp.experts.base_layer.lora_B.weight", {10, 12}, 1000)
      .add(kKey + "mlp.experts.lora_A.weight", {12, 5})
      .add(kKey + "mlp.experts.lora_B.weight", {8, 12}, 2000);
  return tensors;
}

// [1.38]
TEST(LoadAdapter, TargetParametersNestInOrder) {
  TestTensors tensors = nested_parameters();
  const Adapter adapter = tensors.load();
  ASSERT_EQ(adapter.modules.size(), 18);
  // A [E·r, in] is (E, r, in): expert 3, rank 1 is row 7. B [out, r·E] is (out, r, E).
  const LoraModule& gate = *adapter.find({0, 3, Projection::gate});
  EXPECT_EQ(gate.a.get(1, 2), 1 + 7 * 8 + 2);
  EXPECT_EQ(gate.b.get(4, 1), 1000 + 4 * 12 + 1 * 6 + 3);
  const LoraModule& up = *adapter.find({0, 3, Projection::up});
  EXPECT_EQ(up.a.data, gate.a.data);
  EXPECT_EQ(up.b.get(0, 0), 1000 + 5 * 12 + 3);
  const LoraModule& down = *adapter.find({0, 3, Projection::down});
  EXPECT_EQ(down.a.get(0, 4), 1 + 6 * 5 + 4);
  EXPECT_EQ(down.b.get(7, 1), 2000 + 7 * 12 + 6 + 3);
  EXPECT_EQ(down.scaling, 1.5F) << "alpha / r, never alpha / (r·E)";
}

// [1.39]
TEST(LoadAdapter, InterleavedGateAndUpRows) {
  TestTensors tensors = nested_parameters();
  BaseModelShapes shapes = small_model();
  shapes.interleaved_gate_up = true;
  const Adapter adapter = tensors.load(config_of(), {}, shapes);
  EXPECT_EQ(adapter.find({0, 3, Projection::gate})->b.get(4, 1), 1000 + 8 * 12 + 6 + 3);
  EXPECT_EQ(adapter.find({0, 3, Projection::up})->b.get(4, 1), 1000 + 9 * 12 + 6 + 3);
}

AdapterConfig parameter_config(const std::string& parameters, const std::string& more = "") {
  return parse_adapter_config(R"({"r": 2, "lora_alpha": 3, "target_modules": null, )" + more +
                              R"("target_parameters": [)" + parameters + "]}");
}

// [1.38] [4.4]
TEST(LoadAdapter, OneTargetParameterIsTheOuterOne) {
  TestTensors down;
  down.add(kKey + "mlp.experts.lora_A.weight", {12, 5})
      .add(kKey + "mlp.experts.lora_B.weight", {8, 12});
  TestTensors gate_up;
  gate_up.add(kKey + "mlp.experts.lora_A.weight", {12, 8})
      .add(kKey + "mlp.experts.lora_B.weight", {10, 12});
  const auto down_only = parameter_config("\"mlp.experts.down_proj\"");
  const auto gate_up_only = parameter_config("\"mlp.experts.gate_up_proj\"");
  EXPECT_NE(down.load(down_only).find({0, 0, Projection::down}), nullptr);
  EXPECT_NE(gate_up.load(gate_up_only).find({0, 0, Projection::up}), nullptr);
  EXPECT_EQ(down.refusal(gate_up_only), "E_SHAPE");
  EXPECT_EQ(down.refusal(parameter_config("\"mlp.experts.other\"")), "E_TARGET");
  EXPECT_EQ(nested_parameters().refusal(down_only), "E_CONFIG(target_parameters)");
}

// [1.38]
TEST(LoadAdapter, ThePatternOfAParameterIsItsOwnPath) {
  const auto config = [](const std::string& pattern) {
    return parameter_config("\"gate_up_proj\", \"down_proj\"",
                            R"("alpha_pattern": {")" + pattern + R"(": 10},)");
  };
  TestTensors tensors = nested_parameters();
  const auto scaling = [&](const std::string& pattern, Projection projection) {
    return tensors.load(config(pattern)).find({0, 0, projection})->scaling;
  };
  EXPECT_EQ(scaling("experts.gate_up_proj", Projection::up), 5.0F);
  EXPECT_EQ(scaling("experts.gate_up_proj", Projection::down), 1.5F);
  EXPECT_EQ(scaling("^model.layers.0.mlp.experts.down_proj", Projection::down), 5.0F);
}

// [1.38]
TEST(LoadAdapter, RowsOfParametersAreAMultipleOfTheExperts) {
  TestTensors tensors;
  tensors.add(kKey + "mlp.experts.lora_A.weight", {11, 5})
      .add(kKey + "mlp.experts.lora_B.weight", {8, 11});
  EXPECT_EQ(tensors.refusal(), "E_SHAPE");
}

// [4.13]
TEST(LoadAdapter, StrictAndLenient) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8).add_pair("model.layers.0.unknown", 2, 2);
  EXPECT_EQ(tensors.refusal(), "E_KEY");
  LoadOptions lenient;
  lenient.strict = false;
  const Adapter adapter = tensors.load(config_of(), lenient);
  EXPECT_EQ(adapter.modules.size(), 1);
  EXPECT_THAT(adapter.warnings,
              testing::ElementsAre(HasSubstr("model.layers.0.unknown.lora_A.weight"),
                                   HasSubstr("model.layers.0.unknown.lora_B.weight")));
  TestTensors nothing;
  nothing.add_pair("model.layers.0.unknown", 2, 2);
  EXPECT_EQ(nothing.refusal(config_of(), lenient), "E_EMPTY");
  TestTensors dora;
  dora.add(kKey + "self_attn.q_proj.lora_magnitude_vector", {8});
  EXPECT_EQ(dora.refusal(config_of(), lenient), "E_UNSUPPORTED(dora)") << "never dropped";
}

// [4.13]
TEST(LoadAdapter, EmptyFiles) { EXPECT_EQ(TestTensors().refusal(), "E_EMPTY"); }

// [4.7] [4.16]
TEST(LoadAdapter, TargetModulesDecideWhatMayBeThere) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8).add_pair(kPath + "self_attn.k_proj", 6, 8);
  const auto config =
      parse_adapter_config(R"({"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "absent"]})");
  EXPECT_EQ(tensors.refusal(config), "E_TARGET");
  EXPECT_THAT(tensors.last_error(), HasSubstr("k_proj"));
}

// [4.14]
TEST(LoadAdapter, GroupsThatAreNotEnabled) {
  struct Row {
    bool EnabledModules::*group;
    const char* path;
    int64_t rows, columns;
    const char* refusal;
  };
  for (const auto& [group, path, rows, columns, expected] : std::initializer_list<Row>{
           {&EnabledModules::attention, "model.layers.0.self_attn.o_proj", 8, 11,
            "E_UNSUPPORTED(attention)"},
           {&EnabledModules::mlp, "model.layers.0.mlp.up_proj", 14, 8, "E_UNSUPPORTED(mlp)"},
           {&EnabledModules::experts, "model.layers.0.mlp.experts.0.up_proj", 5, 8,
            "E_UNSUPPORTED(experts)"},
           {&EnabledModules::lm_head, "lm_head", 10, 8, "E_UNSUPPORTED(lm_head)"},
       }) {
    LoadOptions options;
    options.enabled.*group = false;
    TestTensors tensors;
    tensors.add_pair(path, rows, columns);
    EXPECT_EQ(tensors.refusal(config_of(), options), expected);
    EXPECT_EQ(tensors.refusal(), "accepted");
  }
  LoadOptions no_embedding;
  no_embedding.enabled.embed_tokens = false;
  TestTensors embedding;
  embedding.add("base_model.model.model.embed_tokens.lora_embedding_A", {2, 10})
      .add("base_model.model.model.embed_tokens.lora_embedding_B", {8, 2});
  EXPECT_EQ(embedding.refusal(config_of(), no_embedding), "E_UNSUPPORTED(embed_tokens)");
}

// [4.16]
TEST(LoadAdapter, WeightsThatAreNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::nanf(""),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> numbers(24, 1.0F);
    numbers[17] = bad;
    TestTensors tensors;
    tensors.add(kKey + "self_attn.q_proj.lora_A.weight", {2, 8})
        .add_numbers(kKey + "self_attn.q_proj.lora_B.weight", {12, 2}, numbers);
    EXPECT_EQ(tensors.refusal(), "E_NONFINITE");
    EXPECT_THAT(tensors.last_error(), HasSubstr("q_proj.lora_B.weight"));
    LoadOptions unchecked;
    unchecked.check_finite = false;
    EXPECT_EQ(tensors.refusal(config_of(), unchecked), "accepted");
  }
}

// Whichever thread finds one first.
TEST(LoadAdapter, TheFirstOfManyThatAreNotFiniteIsNamed) {
  const std::vector<float> bad(24, std::numeric_limits<float>::infinity());
  TestTensors tensors;
  for (const int layer : {7, 3, 1, 5}) {
    const std::string path =
        fmt::format("base_model.model.model.layers.{}.self_attn.q_proj", layer);
    tensors.add(path + ".lora_A.weight", {2, 8}).add_numbers(path + ".lora_B.weight", {12, 2}, bad);
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(tensors.refusal(), "E_NONFINITE");
    EXPECT_THAT(tensors.last_error(), HasSubstr("layers.1.self_attn.q_proj.lora_B"));
  }
}

// [4.3]
// 65520 is the first number that rounds to infinity in fp16.
TEST(LoadAdapter, WeightsThatOverflowInTheEnginesType) {
  const auto refusal = [](float weight, Dtype engine) {
    std::vector<float> numbers(16, 1.0F);
    numbers[3] = weight;
    TestTensors tensors;
    tensors.add_numbers(kKey + "self_attn.q_proj.lora_A.weight", {2, 8}, numbers)
        .add(kKey + "self_attn.q_proj.lora_B.weight", {12, 2});
    LoadOptions options;
    options.engine_dtype = engine;
    return tensors.refusal(config_of(), options);
  };
  EXPECT_EQ(refusal(-65520.0F, Dtype::f16), "E_NONFINITE");
  EXPECT_EQ(refusal(65519.0F, Dtype::f16), "accepted");
  EXPECT_EQ(refusal(65520.0F, Dtype::bf16), "accepted");
  EXPECT_EQ(refusal(std::numeric_limits<float>::max(), Dtype::bf16), "E_NONFINITE");
}

// [1.22] [4.3]
TEST(LoadAdapter, TypesOfWeights) {
  const auto refusal = [](StorageDtype dtype) {
    const std::string q = kKey + "self_attn.q_proj";
    const auto bytes = [&](size_t n) { return std::string(n * dtype_bits(dtype) / 8, '\0'); };
    TestTensors tensors;
    tensors.add_bytes(q + ".lora_A.weight", dtype, {2, 8}, bytes(16))
        .add_bytes(q + ".lora_B.weight", dtype, {12, 2}, bytes(24));
    return tensors.refusal();
  };
  using enum StorageDtype;
  for (const auto dtype : {f32, f16, bf16}) EXPECT_EQ(refusal(dtype), "accepted");
  for (const auto dtype : {f64, i8, i64, boolean, f4, f8e8m0, f8e4m3fnuz, f8e4m3, f8e5m2}) {
    EXPECT_EQ(refusal(dtype), "E_DTYPE") << dtype_name(dtype);
  }
}

// [1.42]-[1.44], [4.3]: two formats in one file; one scale, one for each row, blocks.
TEST(LoadAdapter, Fp8WithItsScales) {
  const std::string qkv = kKey + "self_attn.qkv_proj";
  const auto with_scales = [&](std::vector<int64_t> a_shape, std::vector<int64_t> b_shape) {
    TestTensors tensors;
    tensors.add_bytes(qkv + ".lora_A.weight", StorageDtype::f8e4m3, {2, 8}, std::string(16, '\x38'))
        .add_bytes(qkv + ".lora_B.weight", StorageDtype::f8e5m2, {24, 2}, std::string(48, '\x38'))
        .add(qkv + ".lora_A.weight_scale", std::move(a_shape))
        .add(qkv + ".lora_B.weight_scale", std::move(b_shape));
    return tensors;
  };
  TestTensors tensors = with_scales({1}, {24, 1});
  const Adapter adapter = tensors.load();
  const LoraModule& k = *adapter.find({0, -1, Projection::k});
  EXPECT_EQ(k.a.get(0, 0), 1.0) << "0x38 in e4m3";
  EXPECT_EQ(k.b.get(0, 0), 0.5) << "0x38 in e5m2";
  EXPECT_EQ(k.a_scale.factors, std::vector<float>{1});
  EXPECT_EQ(k.b_scale.factors, (std::vector<float>{13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(with_scales({}, {24}).refusal(), "accepted");
  EXPECT_EQ(with_scales({2}, {3, 2}).refusal(), "accepted");
  for (const auto& [a, b] : {std::pair{Extents{3}, Extents{1}},
                             {{1}, {2}},
                             {{1}, {2, 3, 1}},
                             {{8}, {1}},
                             {{2, 3}, {1}},
                             {{1}, {7, 1}},
                             {{0}, {1}}}) {
    EXPECT_EQ(with_scales(a, b).refusal(), "E_UNSUPPORTED(block_scales)") << shape_text(b);
  }
}

class Folder : public testing::Test {
 protected:
  void SetUp() override { path_ = testing::TempDir() + "adapter"; }
  void TearDown() override { std::filesystem::remove_all(path_); }

  std::string line() const {
    try {
      load_adapter(path_, small_model());
    } catch (const AdapterError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::string path_;
};

// [4.1]
TEST_F(Folder, WhatIsSavedIsLoaded) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8).add_pair(kPath + "mlp.up_proj", 14, 8);
  save_adapter(path_, config_of(), tensors.tensors());
  const Adapter adapter = load_adapter(path_, small_model());
  EXPECT_EQ(adapter.modules.size(), 2);
  const Adapter copy = adapter;
  EXPECT_EQ(copy.find({0, -1, Projection::q})->b.get(11, 1), 123);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_), {}), 2) << "no partial files";
}

// [4.1]
TEST_F(Folder, MissingAndUnsafeFiles) {
  EXPECT_THAT(line(), HasSubstr("E_IO: " + path_ + "/adapter_config.json"));
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8);
  save_adapter(path_, config_of(), tensors.tensors());
  EXPECT_EQ(line(), "accepted");
  std::filesystem::rename(path_ + "/adapter_model.safetensors", path_ + "/adapter_model.bin");
  EXPECT_THAT(line(), HasSubstr("E_UNSUPPORTED(pickle)"));
  std::filesystem::remove(path_ + "/adapter_model.bin");
  EXPECT_THAT(line(), HasSubstr("E_IO: " + path_ + "/adapter_model.safetensors"));
}

// [4.1]
TEST_F(Folder, GitLfsPointers) {
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8);
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    save_adapter(path_, config_of(), tensors.tensors());
    std::ofstream(fmt::format("{}/{}", path_, file))
        << "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    EXPECT_THAT(line(), AllOf(HasSubstr(fmt::format("E_IO: {}/{}", path_, file)),
                              HasSubstr("git-LFS pointer"), HasSubstr("git lfs pull")));
  }
}

// [4.5]
TEST_F(Folder, AnotherBaseModelIsAWarning) {
  AdapterConfig config = config_of();
  config.base_model_name = "org/other";
  TestTensors tensors;
  tensors.add_pair(kPath + "self_attn.q_proj", 12, 8);
  LoadOptions options;
  options.base_model_name = "org/base";
  EXPECT_THAT(tensors.load(config, options).warnings, testing::ElementsAre(HasSubstr("org/other")));
  config.base_model_name = "org/base";
  EXPECT_THAT(tensors.load(config, options).warnings, testing::IsEmpty());
}

}  // namespace
}  // namespace loratory::reference
