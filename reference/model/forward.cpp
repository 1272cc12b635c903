#include "reference/model/forward.hpp"

#include <fmt/format.h>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/kernels.hpp"
#include "reference/model/rope.hpp"
#include "reference/model/traced_kernels.hpp"
#include "reference/moe/router.hpp"

namespace loratory::reference {
namespace {

void check(const Model& model, const TokenBatch& batch) {
  const size_t num_tokens = batch.ids.size();
  if (batch.positions.size() != num_tokens || batch.sequences.size() != num_tokens) {
    throw InputError("forward: batch", "ids, positions and sequences must have one length");
  }
  for (size_t t = 0; t < num_tokens; ++t) {
    if (batch.ids[t] < 0 || batch.ids[t] >= model.config.vocab) {
      throw InputError(
          fmt::format("forward: ids[{}]", t),
          fmt::format("id {} is outside the vocabulary of {}", batch.ids[t], model.config.vocab));
    }
  }
  const int64_t window = model.config.sliding_window;
  for (const int64_t position : batch.positions) {
    if (window == 0 || position < window) continue;
    throw InputError("forward: positions",
                     fmt::format("position {} is past the sliding window of {} tokens, which is "
                                 "not supported",
                                 position, window),
                     "use contexts within the window");
  }
  for (const int64_t t : batch.logits_of) {
    if (t < 0 || t >= int64_t(num_tokens)) {
      throw InputError("forward: logits_of", fmt::format("names token {} of {}", t, num_tokens));
    }
  }
}

// Threads may share the work; a tape belongs to one of them.
template <typename Real>
constexpr bool kMayShare = !std::is_same_v<Real, Traced>;

template <typename Real>
std::span<Real> column(Matrix<Real>& m, int64_t t) {
  return {m.data() + t * m.rows(), size_t(m.rows())};
}

// One pass: the batch, and x [hidden, T] on its way through the layers.
template <typename Real>
class Pass {
 public:
  Pass(const Model& model, const TokenBatch& batch, KvCache<Real>& kv, const LoraTerms<Real>* lora,
       Dtype stored)
      : model_(model),
        config_(model.config),
        batch_(batch),
        kv_(kv),
        lora_(lora),
        stored_(stored),
        rotations_(stored == Dtype::f32
                       ? rotations<Real>(config_.rope, config_.head_dim, batch.positions)
                       : tabled_rotations<Real>(config_.rope, config_.head_dim, batch.positions)) {
    for (int64_t t = 0; t < int64_t(batch.ids.size()); ++t) all_tokens_.push_back(t);
  }

  Matrix<Real> run() {
    embed();
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const LayerWeights& weights = model_.layers[size_t(layer)];
      add_to_x(attention(layer, normed(x_, weights.input_norm)));
      const Matrix<Real> in = normed(x_, weights.post_attention_norm);
      add_to_x(weights.experts.empty() ? mlp(weights.mlp, dense_mlp(layer), all_tokens_, in)
                                       : mixture(layer, in));
    }
    return logits();
  }

 private:
  void embed() {
    x_.resize(config_.hidden, int64_t(batch_.ids.size()));
    for (int64_t t = 0; t < x_.cols(); ++t) {
      for (int64_t i = 0; i < x_.rows(); ++i) {
        x_(i, t) = Real(model_.embed_tokens(batch_.ids[size_t(t)], i));
      }
    }
    if (lora_ == nullptr) return;
    const Matrix<Real> base = stored_ == Dtype::f32 ? Matrix<Real>() : x_;
    lora_->add_embedding(batch_.ids, x_);
    store_changes(base, x_);
  }

  void add_to_x(const Matrix<Real>& y) {
    for (Eigen::Index i = 0; i < x_.size(); ++i) x_(i) = stored(stored_, x_(i) + y(i));
  }

  // What a kernel writes that computed in float.
  void store_all(std::span<Real> numbers) const {
    if (stored_ == Dtype::f32) return;
    for (Real& v : numbers) v = stored(stored_, v);
  }
  void store_changes(const Matrix<Real>& before, Matrix<Real>& y) const {
    if (stored_ == Dtype::f32) return;
    for (Eigen::Index i = 0; i < y.size(); ++i) {
      if (!is_same(before(i), y(i))) y(i) = stored(stored_, y(i));
    }
  }

  Matrix<Real> normed(Matrix<Real> x, const Vector<float>& weight) const {
    for (int64_t t = 0; t < x.cols(); ++t) {
      rms_norm(column(x, t), weight, config_.rms_norm_eps);
      store_all(column(x, t));
    }
    return x;
  }

  // The slices one below the other, then what LoRA adds.
  Matrix<Real> linear(const LinearRef& ref, std::initializer_list<const LinearWeights*> slices,
                      std::span<const int64_t> tokens, const Matrix<Real>& x) const {
    int64_t num_rows = 0, num_products = 0;
    for (const LinearWeights* slice : slices) {
      num_rows += slice->weight.rows();
      num_products += slice->weight.size() * x.cols();
    }
    Matrix<Real> y(num_rows, x.cols());
#pragma omp parallel for if (kMayShare <Real> && num_products >= kMinParallelProducts)
    for (int64_t t = 0; t < x.cols(); ++t) {
      const Vector<Real> x_t = x.col(t);
      int64_t row = 0;
      for (const LinearWeights* slice : slices) {
        const Vector<Real> y_t = product(slice->weight, x_t);
        for (int64_t n = 0; n < y_t.size(); ++n, ++row) {
          const bool has_bias = slice->bias.size() != 0;
          y(row, t) = has_bias ? add_bias(y_t(n), slice->bias(n), x.rows()) : y_t(n);
        }
      }
      store_all(column(y, t));
    }
    if (lora_ == nullptr) return y;
    const Matrix<Real> base = stored_ == Dtype::f32 ? Matrix<Real>() : y;
    lora_->add(ref, tokens, x, y);
    store_changes(base, y);
    return y;
  }

  Matrix<Real> attention(int64_t layer, const Matrix<Real>& in) {
    const LayerWeights& weights = model_.layers[size_t(layer)];
    Matrix<Real> qkv = linear({layer, -1, PackedLinear::qkv}, {&weights.q, &weights.k, &weights.v},
                              all_tokens_, in);
    for (int64_t t = 0; t < qkv.cols(); ++t) prepare_heads(weights, column(qkv, t), t);
    store(layer, qkv);
    const int64_t q_size = config_.num_heads * config_.head_dim;
    Matrix<Real> out(q_size, qkv.cols());
#pragma omp parallel for if (kMayShare <Real> && qkv.cols() * q_size >= kMinParallelProducts / 16)
    for (int64_t t = 0; t < qkv.cols(); ++t) {
      attend(layer, t, column(qkv, t).first(size_t(q_size)), column(out, t));
    }
    return linear({layer, -1, PackedLinear::o}, {&weights.o}, all_tokens_, out);
  }

  // Norm, where the model has one, and RoPE on each head of q and k.
  void prepare_heads(const LayerWeights& weights, std::span<Real> qkv, int64_t t) const {
    const auto head_dim = size_t(config_.head_dim);
    for (int64_t h = 0; h < config_.num_heads + config_.num_kv_heads; ++h) {
      const std::span<Real> head = qkv.subspan(size_t(h) * head_dim, head_dim);
      const Vector<float>& norm = h < config_.num_heads ? weights.q_norm : weights.k_norm;
      if (norm.size() != 0) rms_norm(head, norm, config_.rms_norm_eps);
      rotate(head, rotations_, t);
      store_all(head);
    }
  }

  void store(int64_t layer, Matrix<Real>& qkv) {
    const auto q_size = size_t(config_.num_heads * config_.head_dim);
    const auto kv_size = size_t(config_.num_kv_heads * config_.head_dim);
    for (int64_t t = 0; t < qkv.cols(); ++t) {
      const int64_t sequence = batch_.sequences[size_t(t)], position = batch_.positions[size_t(t)];
      const std::span<Real> k = column(qkv, t).subspan(q_size, kv_size);
      const std::span<Real> v = column(qkv, t).subspan(q_size + kv_size, kv_size);
      std::copy(k.begin(), k.end(), kv_.key(layer, sequence, position).begin());
      std::copy(v.begin(), v.end(), kv_.value(layer, sequence, position).begin());
    }
  }

  // softmax(q·K / sqrt(D))·V of each head over positions 0..own, ascending.
  void attend(int64_t layer, int64_t t, std::span<const Real> q, std::span<Real> out) const {
    const int64_t sequence = batch_.sequences[size_t(t)];
    const int64_t num_positions = batch_.positions[size_t(t)] + 1;
    const auto head_dim = size_t(config_.head_dim);
    const int64_t group = config_.num_heads / config_.num_kv_heads;
    const Real scale = constant<Real>(1 / std::sqrt(double(head_dim)));
    Matrix<Real> p(num_positions, config_.num_heads);
    for (int64_t i = 0; i < num_positions; ++i) {
      const std::span<const Real> key = kv_.key(layer, sequence, i);
      for (int64_t h = 0; h < config_.num_heads; ++h) {
        const auto k = key.subspan(size_t(h / group) * head_dim, head_dim);
        p(i, h) = inner_product(q.subspan(size_t(h) * head_dim, head_dim), k) * scale;
      }
    }
    for (int64_t h = 0; h < config_.num_heads; ++h) {
      softmax(column(p, h));
      store_all(column(p, h));
    }
    mix_values(layer, sequence, p, out);
    store_all(out);
  }

  void mix_values(int64_t layer, int64_t sequence, const Matrix<Real>& p,
                  std::span<Real> out) const {
    const auto head_dim = size_t(config_.head_dim);
    const int64_t group = config_.num_heads / config_.num_kv_heads;
    std::fill(out.begin(), out.end(), Real(0));
    for (int64_t i = 0; i < p.rows(); ++i) {
      const std::span<const Real> value = kv_.value(layer, sequence, i);
      for (int64_t h = 0; h < p.cols(); ++h) {
        const std::span<const Real> v = value.subspan(size_t(h / group) * head_dim, head_dim);
        Real* const o = out.data() + size_t(h) * head_dim;
        for (size_t d = 0; d < head_dim; ++d) add_product(o[d], p(i, h), v[d], p.rows());
      }
    }
  }

  // The two layers of an MLP, as LoRA knows them.
  struct MlpRefs {
    LinearRef gate_up, down;
  };
  static MlpRefs dense_mlp(int64_t layer) { return expert_mlp(layer, -1); }
  static MlpRefs expert_mlp(int64_t layer, int64_t expert) {
    return {{layer, expert, PackedLinear::gate_up}, {layer, expert, PackedLinear::down}};
  }
  static MlpRefs shared_mlp(int64_t layer) {
    return {{layer, -1, PackedLinear::shared_gate_up}, {layer, -1, PackedLinear::shared_down}};
  }

  Matrix<Real> mlp(const MlpWeights& weights, const MlpRefs& refs, std::span<const int64_t> tokens,
                   const Matrix<Real>& in) const {
    const Matrix<Real> gate_up = linear(refs.gate_up, {&weights.gate, &weights.up}, tokens, in);
    const int64_t size = gate_up.rows() / 2;
    Matrix<Real> activation(size, in.cols());
    for (int64_t t = 0; t < in.cols(); ++t) {
      for (int64_t i = 0; i < size; ++i) {
        activation(i, t) = silu(gate_up(i, t)) * gate_up(size + i, t);
      }
      store_all(column(activation, t));
    }
    return linear(refs.down, {&weights.down}, tokens, activation);
  }

  // [E, T]: replicated, so that LoRA adds to it as to any linear layer [1.35].
  Matrix<Real> router_scores(int64_t layer, const Matrix<Real>& in) const {
    Matrix<Real> scores(config_.num_experts, in.cols());
    for (int64_t t = 0; t < in.cols(); ++t) {
      scores.col(t) = product(model_.layers[size_t(layer)].router, Vector<Real>(in.col(t)));
    }
    const LinearRef ref{layer, -1, PackedLinear::router};
    if (lora_ != nullptr && config_.router_has_lora) lora_->add(ref, all_tokens_, in, scores);
    return scores;
  }

  // sum_i g_i · mlp_{e_i}(x), in the order of the routing: the heaviest expert first, and behind
  // the last one the shared expert.
  Matrix<Real> mixture(int64_t layer, const Matrix<Real>& in) const {
    const int64_t k = config_.experts_per_token;
    const bool has_shared = model_.layers[size_t(layer)].has_shared_expert();
    const Matrix<Real> scores = router_scores(layer, in);
    std::vector<Routing<Real>> routings;
    for (int64_t t = 0; t < in.cols(); ++t) {
      routings.push_back(route(Vector<Real>(scores.col(t)), k, config_.norm_topk_prob));
    }
    std::vector<Matrix<Real>> results(size_t(k), in);
    for (int64_t e = 0; e < config_.num_experts; ++e) one_expert(layer, e, routings, in, results);
    Matrix<Real> y(in.rows(), in.cols());
    for (int64_t t = 0; t < y.cols(); ++t) {
      for (int64_t n = 0; n < y.rows(); ++n) {
        y(n, t) = Real(0);
        for (size_t i = 0; i < size_t(k); ++i) {
          add_product(y(n, t), routings[size_t(t)].weights[i], results[i](n, t), k + has_shared);
        }
      }
    }
    if (has_shared) add_shared_expert(layer, in, y);
    return y;
  }

  // y += sigmoid(w x) · mlp_shared(x), the last of k + 1 terms.
  void add_shared_expert(int64_t layer, const Matrix<Real>& in, Matrix<Real>& y) const {
    const LayerWeights& weights = model_.layers[size_t(layer)];
    const Matrix<Real> z = mlp(weights.shared_expert, shared_mlp(layer), all_tokens_, in);
    const Matrix<Real> scores =
        linear({layer, -1, PackedLinear::shared_router}, {&weights.shared_router}, all_tokens_, in);
    for (int64_t t = 0; t < y.cols(); ++t) {
      const Real weight = sigmoid(scores(0, t));
      for (int64_t n = 0; n < y.rows(); ++n) {
        add_product(y(n, t), weight, z(n, t), config_.experts_per_token + 1);
      }
    }
  }

  // results[i].col(t) = mlp_e(x_t) for the tokens t whose choice i is expert e.
  void one_expert(int64_t layer, int64_t e, const std::vector<Routing<Real>>& routings,
                  const Matrix<Real>& in, std::vector<Matrix<Real>>& results) const {
    std::vector<int64_t> tokens, choices;
    for (int64_t t = 0; t < in.cols(); ++t) {
      const std::vector<int32_t>& experts = routings[size_t(t)].experts;
      const auto choice = std::find(experts.begin(), experts.end(), int32_t(e));
      if (choice == experts.end()) continue;
      tokens.push_back(t);
      choices.push_back(choice - experts.begin());
    }
    if (tokens.empty()) return;
    Matrix<Real> x(in.rows(), int64_t(tokens.size()));
    for (int64_t i = 0; i < x.cols(); ++i) x.col(i) = in.col(tokens[size_t(i)]);
    const MlpWeights& weights = model_.layers[size_t(layer)].experts[size_t(e)];
    const Matrix<Real> z = mlp(weights, expert_mlp(layer, e), tokens, x);
    for (int64_t i = 0; i < x.cols(); ++i) {
      results[size_t(choices[size_t(i)])].col(tokens[size_t(i)]) = z.col(i);
    }
  }

  Matrix<Real> logits() const {
    Matrix<Real> x(config_.hidden, int64_t(batch_.logits_of.size()));
    for (int64_t i = 0; i < x.cols(); ++i) x.col(i) = x_.col(batch_.logits_of[size_t(i)]);
    const LinearRef ref{-1, -1, PackedLinear::lm_head};
    return lm_head(ref, normed(std::move(x), model_.norm));
  }

  Matrix<Real> lm_head(const LinearRef& ref, const Matrix<Real>& x) const {
    const Matrix<float>& weight = model_.output_embedding();
    Matrix<Real> y(weight.rows(), x.cols());
#pragma omp parallel for if (kMayShare <Real> && weight.size() * x.cols() >= kMinParallelProducts)
    for (int64_t t = 0; t < x.cols(); ++t) y.col(t) = product(weight, Vector<Real>(x.col(t)));
    if (lora_ != nullptr) lora_->add(ref, batch_.logits_of, x, y);
    return y;
  }

  const Model& model_;
  const ModelConfig& config_;
  const TokenBatch& batch_;
  KvCache<Real>& kv_;
  const LoraTerms<Real>* lora_;
  const Dtype stored_;
  const Rotations<Real> rotations_;
  std::vector<int64_t> all_tokens_;
  Matrix<Real> x_;
};

}  // namespace

template <typename Real>
Matrix<Real> forward(const Model& model, const TokenBatch& batch, KvCache<Real>& kv,
                     const LoraTerms<Real>* lora, Dtype stored) {
  check(model, batch);
  LORATORY_ASSERT(stored == Dtype::f32 || model.config.num_experts == 0,
                  "rounding points of experts are not said");
  return Pass<Real>(model, batch, kv, lora, stored).run();
}

template Matrix<float> forward(const Model&, const TokenBatch&, KvCache<float>&,
                               const LoraTerms<float>*, Dtype);
template Matrix<double> forward(const Model&, const TokenBatch&, KvCache<double>&,
                                const LoraTerms<double>*, Dtype);
template Matrix<Traced> forward(const Model&, const TokenBatch&, KvCache<Traced>&,
                                const LoraTerms<Traced>*, Dtype);

}  // namespace loratory::reference
