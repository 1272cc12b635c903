// load_model: what is written into a Hugging Face folder comes back, in every layout of the
// tensors; and every defect of a folder is one InputError that names the tensor.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "fuzz/support/random_model.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kSizes =
    R"("hidden_size": 6, "intermediate_size": 5, "num_hidden_layers": 2, "vocab_size": 9,
       "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2)";
const std::string kExperts =
    R"("num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 4)";

std::string config_text(const std::string& type, const std::string& more = "") {
  return fmt::format(R"({{"model_type": "{}", {}{}{}}})", type, kSizes, more.empty() ? "" : ", ",
                     more);
}

enum class ExpertLayout { qwen, mixtral, fused };

// The tensors of a model by name, each with its shape and numbers.
class Tensors {
 public:
  Tensors(const Model& model, ExpertLayout layout) : layout_(layout) {
    add("model.embed_tokens.weight", model.embed_tokens);
    for (size_t i = 0; i < model.layers.size(); ++i) {
      add_layer(fmt::format("model.layers.{}.", i), model.layers[i]);
    }
    add("model.norm.weight", model.norm);
    if (model.lm_head.size() != 0) add("lm_head.weight", model.lm_head);
  }

  void add(const std::string& name, std::vector<int64_t> shape, std::vector<float> numbers) {
    all_[name] = {std::move(shape), std::move(numbers)};
  }
  void remove(const std::string& name) { ASSERT_EQ(all_.erase(name), 1U) << name; }

  // The bytes of a safetensors file of those tensors that `chosen` picks.
  std::string bytes(Dtype dtype, const std::function<bool(const std::string&)>& chosen) const {
    std::deque<std::vector<std::byte>> storage;
    std::vector<StoredTensor> stored;
    for (const auto& [name, tensor] : all_) {
      if (!chosen(name)) continue;
      const auto step = int64_t(size_bytes(dtype));
      auto& out = storage.emplace_back(tensor.numbers.size() * size_t(step));
      for (size_t i = 0; i < tensor.numbers.size(); ++i) {
        store(dtype, out.data() + int64_t(i) * step, tensor.numbers[i]);
      }
      stored.push_back({name, storage_dtype(dtype), tensor.shape, out});
    }
    return write_safetensors(stored);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, tensor] : all_) out.push_back(name);
    return out;
  }

 private:
  struct OneTensor {
    std::vector<int64_t> shape;
    std::vector<float> numbers;
  };

  static std::vector<float> row_major(const Matrix<float>& m) {
    std::vector<float> out;
    for (int64_t i = 0; i < m.size(); ++i) out.push_back(m(i / m.cols(), i % m.cols()));
    return out;
  }
  void add(const std::string& name, const Matrix<float>& m) {
    add(name, {m.rows(), m.cols()}, row_major(m));
  }
  void add(const std::string& name, const Vector<float>& v) {
    add(name, {v.size()}, {v.data(), v.data() + v.size()});
  }
  void add(const std::string& name, const LinearWeights& weights) {
    add(name + ".weight", weights.weight);
    if (weights.bias.size() != 0) add(name + ".bias", weights.bias);
  }
  void add(const std::string& prefix, const MlpWeights& mlp, bool mixtral_names) {
    add(prefix + (mixtral_names ? "w1" : "gate_proj"), mlp.gate);
    add(prefix + (mixtral_names ? "w3" : "up_proj"), mlp.up);
    add(prefix + (mixtral_names ? "w2" : "down_proj"), mlp.down);
  }

  void add_layer(const std::string& prefix, const LayerWeights& layer) {
    add(prefix + "input_layernorm.weight", layer.input_norm);
    add(prefix + "post_attention_layernorm.weight", layer.post_attention_norm);
    add(prefix + "self_attn.q_proj", layer.q);
    add(prefix + "self_attn.k_proj", layer.k);
    add(prefix + "self_attn.v_proj", layer.v);
    add(prefix + "self_attn.o_proj", layer.o);
    if (layer.q_norm.size() != 0) add(prefix + "self_attn.q_norm.weight", layer.q_norm);
    if (layer.k_norm.size() != 0) add(prefix + "self_attn.k_norm.weight", layer.k_norm);
    if (layer.experts.empty()) {
      add(prefix + "mlp.", layer.mlp, false);
    } else {
      const bool is_mixtral = layout_ == ExpertLayout::mixtral;
      add_experts(prefix + (is_mixtral ? "block_sparse_moe." : "mlp."), layer);
    }
    if (layer.has_shared_expert()) {
      add(prefix + "mlp.shared_expert.", layer.shared_expert, false);
      add(prefix + "mlp.shared_expert_gate", layer.shared_router);
    }
  }

  void add_experts(const std::string& prefix, const LayerWeights& layer) {
    add(prefix + "gate.weight", layer.router);
    std::vector<float> gate_up, down;
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      const MlpWeights& mlp = layer.experts[e];
      const std::string name = fmt::format("{}experts.{}.", prefix, e);
      if (layout_ != ExpertLayout::fused) add(name, mlp, layout_ == ExpertLayout::mixtral);
      for (const auto* m : {&mlp.gate, &mlp.up}) {
        for (const float v : row_major(m->weight)) gate_up.push_back(v);
      }
      for (const float v : row_major(mlp.down.weight)) down.push_back(v);
    }
    if (layout_ != ExpertLayout::fused) return;
    const auto count = int64_t(layer.experts.size());
    const int64_t size = layer.experts[0].gate.weight.rows(), hidden = layer.router.cols();
    add(prefix + "experts.gate_up_proj", {count, 2 * size, hidden}, gate_up);
    add(prefix + "experts.down_proj", {count, hidden, size}, down);
  }

  ExpertLayout layout_;
  std::map<std::string, OneTensor> all_;
};

// A folder that is gone with the object.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + fmt::format("model_{}", counter_++)) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  static inline int counter_ = 0;
  fs::path path_;
};

bool all_chosen(const std::string&) { return true; }

// A model whose numbers `dtype` holds, as a folder of one file.
struct Written {
  Written(const std::string& config, ExpertLayout layout, Dtype dtype = Dtype::f32)
      : model(random_model(parse_model_config(config, "config.json"), 1)), text(config) {
    round_all(dtype);
    tensors.emplace(model, layout);
    folder.write("config.json", text);
    write(dtype);
  }
  void write(Dtype dtype = Dtype::f32) const {
    folder.write("model.safetensors", tensors->bytes(dtype, all_chosen));
  }
  std::string refusal() const {
    try {
      load_model(folder.path());
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }
  void round_all(Dtype dtype) {
    const auto round = [&](auto& m) {
      for (int64_t i = 0; i < m.size(); ++i) m(i) = float(round_to(dtype, m(i)));
    };
    const auto round_linear = [&](LinearWeights& w) { round(w.weight), round(w.bias); };
    const auto round_mlp = [&](MlpWeights& m) {
      round_linear(m.gate), round_linear(m.up), round_linear(m.down);
    };
    round(model.embed_tokens), round(model.norm), round(model.lm_head);
    for (LayerWeights& layer : model.layers) {
      for (LinearWeights* w : {&layer.q, &layer.k, &layer.v, &layer.o}) round_linear(*w);
      for (auto* v :
           {&layer.input_norm, &layer.post_attention_norm, &layer.q_norm, &layer.k_norm}) {
        round(*v);
      }
      round(layer.router), round_mlp(layer.mlp);
      for (MlpWeights& expert : layer.experts) round_mlp(expert);
      round_mlp(layer.shared_expert), round_linear(layer.shared_router);
    }
  }

  Model model;
  std::string text;
  Folder folder;
  std::optional<Tensors> tensors;
};

void expect_same(const LinearWeights& got, const LinearWeights& want) {
  EXPECT_EQ(got.weight, want.weight);
  EXPECT_EQ(got.bias, want.bias);
}
void expect_same(const MlpWeights& got, const MlpWeights& want) {
  expect_same(got.gate, want.gate);
  expect_same(got.up, want.up);
  expect_same(got.down, want.down);
}

void expect_same(const Model& got, const Model& want) {
  EXPECT_EQ(got.embed_tokens, want.embed_tokens);
  EXPECT_EQ(got.lm_head, want.lm_head);
  EXPECT_EQ(got.norm, want.norm);
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (size_t i = 0; i < got.layers.size(); ++i) {
    const LayerWeights &g = got.layers[i], &w = want.layers[i];
    EXPECT_EQ(g.input_norm, w.input_norm);
    EXPECT_EQ(g.post_attention_norm, w.post_attention_norm);
    EXPECT_EQ(g.q_norm, w.q_norm);
    EXPECT_EQ(g.k_norm, w.k_norm);
    expect_same(g.q, w.q);
    expect_same(g.k, w.k);
    expect_same(g.v, w.v);
    expect_same(g.o, w.o);
    EXPECT_EQ(g.router, w.router);
    ASSERT_EQ(g.experts.size(), w.experts.size());
    if (w.experts.empty()) expect_same(g.mlp, w.mlp);
    for (size_t e = 0; e < w.experts.size(); ++e) expect_same(g.experts[e], w.experts[e]);
    expect_same(g.shared_expert, w.shared_expert);
    expect_same(g.shared_router, w.shared_router);
  }
}

TEST(LoadModel, GivesBackWhatWasWritten) {
  const std::string mixtral = R"("num_local_experts": 3, "num_experts_per_tok": 2)";
  const std::vector<std::pair<std::string, ExpertLayout>> cases{
      {config_text("llama"), ExpertLayout::qwen},
      {config_text("llama", R"("attention_bias": true, "mlp_bias": true)"), ExpertLayout::qwen},
      {config_text("llama", R"("tie_word_embeddings": true)"), ExpertLayout::qwen},
      {config_text("mistral", R"("sliding_window": null)"), ExpertLayout::qwen},
      {config_text("qwen2"), ExpertLayout::qwen},
      {config_text("qwen3"), ExpertLayout::qwen},
      {config_text("mixtral", mixtral), ExpertLayout::mixtral},
      {config_text("mixtral", mixtral), ExpertLayout::fused},
      {config_text("qwen3_moe", kExperts), ExpertLayout::qwen},
      {config_text("qwen3_moe", kExperts + R"(, "mlp_only_layers": [0])"), ExpertLayout::fused},
      {config_text("qwen2_moe", kExperts + R"(, "shared_expert_intermediate_size": 0)"),
       ExpertLayout::qwen},
      {config_text("qwen2_moe", kExperts + R"(, "shared_expert_intermediate_size": 7,
                                                  "decoder_sparse_step": 2)"),
       ExpertLayout::fused}};
  for (const auto& [config, layout] : cases) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      SCOPED_TRACE(config + " " + std::string(name(dtype)));
      const Written written(config, layout, dtype);
      expect_same(load_model(written.folder.path()), written.model);
    }
  }
}

// Which of two shards a tensor is in.
std::string shard_of(const std::string& name) {
  return name.size() % 2 == 0 ? "a.safetensors" : "b.safetensors";
}

// A model in two shards, with its index.
struct Sharded : Written {
  Sharded() : Written(config_text("qwen3_moe", kExperts), ExpertLayout::qwen) {
    fs::remove(folder.path() + "/model.safetensors");
    for (const std::string& name : tensors->names()) map[name] = shard_of(name);
    write_all();
  }
  void write_all() const {
    for (const char* file : {"a.safetensors", "b.safetensors"}) {
      folder.write(file, tensors->bytes(Dtype::f32, [&](const std::string& name) {
        return shard_of(name) == file;
      }));
    }
    write_index();
  }
  void write_index() const {
    std::string entries;
    for (const auto& [name, file] : map) {
      entries += fmt::format("{}\"{}\": \"{}\"", entries.empty() ? "" : ", ", name, file);
    }
    folder.write("model.safetensors.index.json",
                 fmt::format(R"({{"metadata": {{}}, "weight_map": {{{}}}}})", entries));
  }
  std::map<std::string, std::string> map;
};

TEST(LoadModel, ReadsShards) {
  const Sharded sharded;
  expect_same(load_model(sharded.folder.path()), sharded.model);
}

TEST(LoadModel, NamesTheDefectOfAShard) {
  Sharded sharded;
  const std::string norm = "model.norm.weight";
  sharded.map[norm] = "c.safetensors";
  sharded.write_index();
  EXPECT_THAT(sharded.refusal(), HasSubstr("c.safetensors"));
  sharded.map[norm] = shard_of(norm) == "a.safetensors" ? "b.safetensors" : "a.safetensors";
  sharded.write_index();
  EXPECT_THAT(sharded.refusal(), HasSubstr("model.norm.weight: is not in"));
  sharded.map.erase(norm);
  sharded.write_index();
  EXPECT_THAT(sharded.refusal(), HasSubstr("but the index does not say so"));
  sharded.map[norm] = "../a.safetensors";
  sharded.write_index();
  EXPECT_THAT(sharded.refusal(), HasSubstr("must name a file of the same folder"));
  sharded.folder.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(sharded.refusal(), HasSubstr("weight_map: must be an object"));
  sharded.map[norm] = shard_of(norm);
  sharded.write_index();
  EXPECT_EQ(sharded.refusal(), "accepted");
  const std::string twice = shard_of(norm) == "a.safetensors" ? "b.safetensors" : "a.safetensors";
  sharded.folder.write(twice, sharded.tensors->bytes(Dtype::f32, [&](const std::string& name) {
    return shard_of(name) == twice || name == norm;
  }));
  EXPECT_THAT(sharded.refusal(), HasSubstr("index does not say"));
}

TEST(LoadModel, NamesTheDefectOfATensor) {
  const auto refusal = [](const std::function<void(Tensors&)>& change,
                          const std::string& more = "") {
    Written written(config_text("llama", more), ExpertLayout::qwen);
    change(*written.tensors);
    written.write();
    return written.refusal();
  };
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  EXPECT_THAT(refusal([&](Tensors& t) { t.remove(up); }), HasSubstr(up + ": is missing"));
  EXPECT_THAT(refusal([&](Tensors& t) {
                t.add(up, {6, 5}, std::vector<float>(30));
              }),
              HasSubstr(up + ": has shape [6, 5], the configuration asks for [5, 6]"));
  EXPECT_THAT(refusal([&](Tensors& t) { t.add("model.extra", {1}, {0}); }),
              HasSubstr("model.extra: is not a tensor of this model"));
  EXPECT_THAT(refusal([&](Tensors& t) {
                t.add("model.layers.0.self_attn.q_proj.bias", {8}, std::vector<float>(8));
              }),
              HasSubstr("q_proj.bias: is not a tensor"));
  EXPECT_EQ(
      refusal([&](Tensors& t) { t.add("model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1}); }),
      "accepted");
  EXPECT_THAT(refusal([&](Tensors& t) { t.remove("lm_head.weight"); }), HasSubstr("is missing"));
  EXPECT_THAT(refusal(
                  [&](Tensors& t) {
                    t.add("lm_head.weight", {9, 6}, std::vector<float>(54));
                  },
                  R"("tie_word_embeddings": true)"),
              HasSubstr("lm_head.weight: differs"));
}

TEST(LoadModel, NamesTheDefectOfAFolder) {
  const Folder folder;
  Written written(config_text("llama"), ExpertLayout::qwen);
  written.write(Dtype::f8_e5m2);
  EXPECT_THAT(written.refusal(), HasSubstr("F8_E5M2 is not supported"));
  written.folder.write("model.safetensors", "nonsense");
  EXPECT_NE(written.refusal(), "accepted");
  fs::remove(written.folder.path() + "/model.safetensors");
  EXPECT_THAT(written.refusal(), HasSubstr("has neither model.safetensors nor"));
  fs::remove(written.folder.path() + "/config.json");
  EXPECT_THAT(written.refusal(), HasSubstr("config.json: cannot be read"));
}

}  // namespace
}  // namespace loratory::reference
