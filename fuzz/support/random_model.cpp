#include "fuzz/support/random_model.hpp"

#include <fmt/format.h>

#include <cmath>
#include <deque>

#include "fuzz/support/draw.hpp"
#include "fuzz/support/lora_case.hpp"

namespace loratory::reference {
namespace {

// In [-1, 1), a multiple of 2^-23.
float signed_unit(uint64_t seed, uint64_t stream, int64_t index) {
  return float(int64_t(random_bits(seed, stream, uint64_t(index)) >> 40)) * 0x1p-23F - 1;
}

// Hands out numbers; each tensor has a stream of its own.
class WeightMaker {
 public:
  explicit WeightMaker(uint64_t seed) : seed_(seed) {}

  Matrix<float> matrix(int64_t num_rows, int64_t num_columns, double size) {
    ++stream_;
    Matrix<float> m(num_rows, num_columns);
    for (int64_t i = 0; i < m.size(); ++i) m(i) = float(size) * signed_unit(seed_, stream_, i);
    return m;
  }
  Vector<float> vector(int64_t size, float centre, float spread) {
    ++stream_;
    Vector<float> v(size);
    for (int64_t i = 0; i < size; ++i) v(i) = centre + spread * signed_unit(seed_, stream_, i);
    return v;
  }
  LinearWeights linear(int64_t num_rows, int64_t num_columns, bool has_bias) {
    LinearWeights weights;
    weights.weight = matrix(num_rows, num_columns, 2 / std::sqrt(double(num_columns)));
    if (has_bias) weights.bias = vector(num_rows, 0, 0.5F);
    return weights;
  }
  MlpWeights mlp(const ModelConfig& config, int64_t size, bool has_bias) {
    return {linear(size, config.hidden, has_bias), linear(size, config.hidden, has_bias),
            linear(config.hidden, size, has_bias)};
  }

 private:
  uint64_t seed_;
  uint64_t stream_ = 0;
};

LayerWeights random_layer(const ModelConfig& config, bool has_experts, WeightMaker& numbers) {
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  LayerWeights layer;
  layer.input_norm = numbers.vector(config.hidden, 1, 0.25F);
  layer.post_attention_norm = numbers.vector(config.hidden, 1, 0.25F);
  layer.q = numbers.linear(q, config.hidden, config.qkv_bias);
  layer.k = numbers.linear(kv, config.hidden, config.qkv_bias);
  layer.v = numbers.linear(kv, config.hidden, config.qkv_bias);
  layer.o = numbers.linear(config.hidden, q, config.o_bias);
  if (config.qk_norm) {
    layer.q_norm = numbers.vector(config.head_dim, 1, 0.25F);
    layer.k_norm = numbers.vector(config.head_dim, 1, 0.25F);
  }
  if (!has_experts) {
    layer.mlp = numbers.mlp(config, config.intermediate, config.mlp_bias);
    return layer;
  }
  layer.router = numbers.matrix(config.num_experts, config.hidden, 1);
  for (int64_t e = 0; e < config.num_experts; ++e) {
    layer.experts.push_back(numbers.mlp(config, config.expert_intermediate, false));
  }
  if (config.shared_expert_intermediate > 0) {
    layer.shared_expert = numbers.mlp(config, config.shared_expert_intermediate, false);
    layer.shared_router = numbers.linear(1, config.hidden, false);
  }
  return layer;
}

void draw_rope(sim::Draw& draw, ModelConfig& config) {
  config.rope.theta = draw.one_of({10000.0, 500000.0, 100.0});
  config.rope.scaling = RopeScaling(draw(5));
  config.rope.original_max_position_embeddings = 64;
  if (config.rope.scaling != RopeScaling::none) config.rope.factor = double(draw.between(2, 5));
}

}  // namespace

ModelConfig tiny_model_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden = 64;
  config.intermediate = 128;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab = 256;
  config.max_position_embeddings = 4096;
  return config;
}

ModelConfig with_experts(ModelConfig config, int64_t num_experts, int64_t experts_per_token,
                         bool sparse) {
  config.num_experts = num_experts;
  config.experts_per_token = experts_per_token;
  config.expert_intermediate = config.intermediate / 2;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.layer_has_experts.push_back(!sparse || i % 2 == 1);
  }
  return config;
}

ModelConfig random_model_config(uint64_t seed) {
  sim::Draw draw(seed);
  ModelConfig config;
  config.num_layers = draw.between(1, 3);
  config.num_kv_heads = draw.between(1, 2);
  config.num_heads = config.num_kv_heads * draw.between(1, 3);
  config.head_dim = draw.one_of({2, 4, 6});
  config.hidden = draw.between(3, 24);
  config.intermediate = draw.between(2, 30);
  config.vocab = draw.between(5, 40);
  config.max_position_embeddings = 4096;
  config.rms_norm_eps = draw.one_of({1e-6, 1e-5});
  draw_rope(draw, config);
  config.tied_embeddings = draw.one_in(2);
  config.qkv_bias = draw.one_in(2);
  config.o_bias = draw.one_in(3);
  config.mlp_bias = draw.one_in(3);
  config.qk_norm = draw.one_in(2);
  config.norm_topk_prob = draw.one_in(2);
  if (!draw.one_in(3)) return config;
  const int64_t num_experts = draw.between(1, 4);
  config = with_experts(config, num_experts, draw.between(1, num_experts), draw.one_in(2));
  if (draw.one_in(2)) config.shared_expert_intermediate = draw.between(2, 30);
  config.router_has_lora = draw.one_in(2);
  return config;
}

Model random_model(const ModelConfig& config, uint64_t seed) {
  WeightMaker numbers(seed);
  Model model;
  model.config = config;
  model.embed_tokens = numbers.matrix(config.vocab, config.hidden, 1);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const bool has_experts = config.num_experts > 0 && config.layer_has_experts[size_t(i)];
    model.layers.push_back(random_layer(config, has_experts, numbers));
  }
  model.norm = numbers.vector(config.hidden, 1, 0.25F);
  if (!config.tied_embeddings) {
    model.lm_head =
        numbers.matrix(config.vocab, config.hidden, 4 / std::sqrt(double(config.hidden)));
  }
  return model;
}

ModelConfig dense(ModelConfig config) {
  config.num_experts = 0;
  config.shared_expert_intermediate = 0;
  config.layer_has_experts.clear();
  return config;
}

Model in_dtype(Model model, Dtype dtype) {
  const auto round = [dtype](auto& numbers) {
    for (Eigen::Index i = 0; i < numbers.size(); ++i) {
      numbers(i) = float(round_to(dtype, double(numbers(i))));
    }
  };
  const auto round_linear = [&](LinearWeights& linear) {
    round(linear.weight);
    round(linear.bias);
  };
  round(model.embed_tokens);
  round(model.norm);
  round(model.lm_head);
  for (LayerWeights& layer : model.layers) {
    for (Vector<float>* norm :
         {&layer.input_norm, &layer.post_attention_norm, &layer.q_norm, &layer.k_norm}) {
      round(*norm);
    }
    for (LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.mlp.gate,
                                  &layer.mlp.up, &layer.mlp.down}) {
      round_linear(*linear);
    }
    round(layer.router);
    for (MlpWeights& expert : layer.experts) {
      for (LinearWeights* linear : {&expert.gate, &expert.up, &expert.down}) {
        round_linear(*linear);
      }
    }
  }
  return model;
}

namespace {

// The tensors of an adapter, and the configuration that goes with them.
class AdapterMaker {
 public:
  AdapterMaker(const ModelConfig& config, uint64_t seed, const RandomAdapterOptions& options)
      : model_(config), seed_(seed), options_(options) {
    config_.rank = options.rank;
    config_.alpha = options.alpha;
    config_.use_rslora = options.use_rslora;
    config_.target_modules = std::vector<std::string>{
        "q_proj",  "k_proj",    "v_proj",       "o_proj",  "gate_proj",
        "up_proj", "down_proj", "embed_tokens", "lm_head", "shared_expert_gate",
        "gate"};
    for (int64_t i = 0; i < model_.num_layers; ++i) add_layer(i);
    if (options.embed_tokens) add_embedding();
    if (options.lm_head) add("lm_head", model_.vocab, model_.hidden);
    if (tensors_.empty()) add("model.layers.0.self_attn.q_proj", q_size(), model_.hidden);
  }

  const AdapterConfig& config() const { return config_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  int64_t q_size() const { return model_.num_heads * model_.head_dim; }

  void add_layer(int64_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const int64_t kv_size = model_.num_kv_heads * model_.head_dim;
    if (options_.attention) {
      maybe_add(prefix + "self_attn.q_proj", q_size(), model_.hidden);
      maybe_add(prefix + "self_attn.k_proj", kv_size, model_.hidden);
      maybe_add(prefix + "self_attn.v_proj", kv_size, model_.hidden);
      maybe_add(prefix + "self_attn.o_proj", model_.hidden, q_size());
    }
    const bool has_experts = model_.num_experts > 0 && model_.layer_has_experts[size_t(layer)];
    if (!has_experts && options_.mlp) add_mlp(prefix + "mlp.", model_.intermediate);
    for (int64_t e = 0; has_experts && options_.experts && e < model_.num_experts; ++e) {
      add_mlp(fmt::format("{}mlp.experts.{}.", prefix, e), model_.expert_intermediate);
    }
    if (has_experts && options_.experts && model_.router_has_lora) {
      maybe_add(prefix + "mlp.gate", model_.num_experts, model_.hidden);
    }
    if (has_experts && options_.mlp && model_.shared_expert_intermediate > 0) {
      add_mlp(prefix + "mlp.shared_expert.", model_.shared_expert_intermediate);
      maybe_add(prefix + "mlp.shared_expert_gate", 1, model_.hidden);
    }
  }

  void add_mlp(const std::string& prefix, int64_t size) {
    maybe_add(prefix + "gate_proj", size, model_.hidden);
    maybe_add(prefix + "up_proj", size, model_.hidden);
    maybe_add(prefix + "down_proj", model_.hidden, size);
  }

  uint64_t chance() { return random_bits(seed_, 1, num_chances_++); }

  void maybe_add(const std::string& path, int64_t num_rows, int64_t num_columns) {
    if (options_.ragged && chance() % 3 == 0) return;
    add(path, num_rows, num_columns);
  }

  int64_t rank_of(const std::string& path) {
    if (!options_.ragged || chance() % 3 != 0) return options_.rank;
    const int64_t rank = 1 + int64_t(chance() % uint64_t(options_.rank));
    config_.rank_pattern.push_back(
        {PathPattern(path, "rank_pattern", PathPattern::Fit::end), rank});
    return rank;
  }

  void add(const std::string& path, int64_t num_rows, int64_t num_columns) {
    const std::string key = "base_model.model." + path;
    const int64_t rank = rank_of(path);
    add_tensor(key + ".lora_A.weight", {rank, num_columns}, 1 / std::sqrt(double(num_columns)));
    add_tensor(key + ".lora_B.weight", {num_rows, rank}, 1);
  }

  void add_embedding() {
    const std::string key = "base_model.model.model.embed_tokens.lora_embedding_";
    add_tensor(key + "A", {options_.rank, model_.vocab}, 1);
    add_tensor(key + "B", {model_.hidden, options_.rank}, 1);
  }

  void add_tensor(const std::string& name, std::vector<int64_t> shape, double size) {
    const uint64_t stream = 2 + tensors_.size();
    const int64_t num_numbers = shape[0] * shape[1];
    const auto step = int64_t(size_bytes(options_.dtype));
    auto& bytes = bytes_.emplace_back(size_t(num_numbers * step));
    // Of a power of two that is not too small, bits of fp8 are bits of fp8 with a smaller one too.
    const double factor = std::exp2(std::ceil(std::log2(size / 448)));
    for (int64_t i = 0; i < num_numbers; ++i) {
      double number = size * signed_unit(seed_, stream, i);
      if (options_.fits_fp8) number = factor * round_to(Dtype::f8_e4m3fn, number / factor);
      store(options_.dtype, bytes.data() + i * step, number);
    }
    tensors_.push_back({name, storage_dtype(options_.dtype), std::move(shape), bytes});
  }

  const ModelConfig& model_;
  uint64_t seed_;
  const RandomAdapterOptions& options_;
  uint64_t num_chances_ = 0;
  AdapterConfig config_;
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace

RandomAdapterOptions random_adapter_options(uint64_t seed) {
  sim::Draw draw(seed);
  RandomAdapterOptions options;
  options.rank = draw.between(1, 4);
  options.alpha = double(draw.between(1, 8));
  options.use_rslora = draw.one_in(2);
  options.attention = !draw.one_in(4);
  options.mlp = !draw.one_in(4);
  options.experts = !draw.one_in(4);
  options.embed_tokens = draw.one_in(2);
  options.lm_head = draw.one_in(2);
  options.ragged = draw.one_in(2);
  options.dtype = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
  return options;
}

RandomAdapter random_adapter(const ModelConfig& config, uint64_t seed,
                             const RandomAdapterOptions& options) {
  const AdapterMaker maker(config, seed, options);
  auto bytes = std::make_shared<const std::string>(write_safetensors(maker.tensors()));
  SafetensorsFile file = SafetensorsFile::view(std::as_bytes(std::span(*bytes)), "random adapter");
  return {bytes, load_adapter(maker.config(), std::move(file), base_model_shapes(config))};
}

void write_random_adapter(const std::string& directory, const ModelConfig& config, uint64_t seed,
                          const RandomAdapterOptions& options) {
  const AdapterMaker maker(config, seed, options);
  save_adapter(directory, maker.config(), maker.tensors());
}

std::vector<int32_t> random_tokens(const ModelConfig& config, int64_t count, uint64_t seed) {
  sim::Draw draw(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(int32_t(draw(config.vocab)));
  return tokens;
}

}  // namespace loratory::reference
