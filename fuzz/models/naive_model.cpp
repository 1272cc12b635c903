#include "fuzz/models/naive_model.hpp"

#include <cmath>
#include <complex>
#include <set>

namespace loratory::reference {
namespace {

using Numbers = std::vector<double>;

Numbers times(const Matrix<float>& w, const Numbers& x, const Vector<float>& bias = {}) {
  Numbers y;
  for (int64_t n = 0; n < w.rows(); ++n) {
    double sum = bias.size() == 0 ? 0 : bias(n);
    for (int64_t k = 0; k < w.cols(); ++k) sum += double(w(n, k)) * x[size_t(k)];
    y.push_back(sum);
  }
  return y;
}
Numbers times(const LinearWeights& w, const Numbers& x) { return times(w.weight, x, w.bias); }

Numbers plus(Numbers x, const Numbers& y, double factor = 1) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += factor * y[i];
  return x;
}

Numbers normed(Numbers x, const Vector<float>& weight, double eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double rms = std::sqrt(squares / double(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= double(weight(int64_t(i))) / rms;
  return x;
}

Numbers mlp(const MlpWeights& weights, const Numbers& x) {
  const Numbers gate = times(weights.gate, x), up = times(weights.up, x);
  Numbers inner;
  for (size_t i = 0; i < gate.size(); ++i) {
    inner.push_back(gate[i] * up[i] / (1 + std::exp(-gate[i])));
  }
  return times(weights.down, inner);
}

// Experts by descending score; weights e^score, over the sum of all or of those chosen. The shared
// expert counts as much as a sigmoid says.
Numbers mixture(const ModelConfig& config, const LayerWeights& layer, const Numbers& x) {
  const Numbers scores = times(layer.router, x);
  std::set<std::pair<double, size_t>> order;
  double sum_all = 0, sum_chosen = 0;
  for (size_t e = 0; e < scores.size(); ++e) {
    order.insert({-scores[e], e});
    sum_all += std::exp(scores[e]);
  }
  Numbers y(x.size(), 0);
  auto it = order.begin();
  for (int64_t i = 0; i < config.experts_per_token; ++i, ++it) {
    sum_chosen += std::exp(-it->first);
    y = plus(std::move(y), mlp(layer.experts[it->second], x), std::exp(-it->first));
  }
  y = plus(Numbers(x.size(), 0), y, 1 / (config.norm_topk_prob ? sum_chosen : sum_all));
  if (config.shared_expert_intermediate == 0) return y;
  const double score = times(layer.shared_router, x)[0];
  return plus(y, mlp(layer.shared_expert, x), 1 / (1 + std::exp(-score)));
}

struct NaiveModel {
  const Model& model;
  std::span<const double> frequencies;
  double rope_factor;
  std::vector<std::vector<Numbers>> keys{}, values{};  // [layer][kv head] one after the other

  const ModelConfig& config() const { return model.config; }

  Numbers head(const Numbers& x, int64_t index, const Vector<float>& norm, int64_t position) const {
    const int64_t size = config().head_dim;
    Numbers h(x.begin() + index * size, x.begin() + (index + 1) * size);
    if (norm.size() != 0) h = normed(h, norm, config().rms_norm_eps);
    if (position < 0) return h;
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const std::complex<double> turned =
          std::complex(h[i], h[i + frequencies.size()]) *
          std::polar(rope_factor, double(position) * frequencies[i]);
      h[i] = turned.real();
      h[i + frequencies.size()] = turned.imag();
    }
    return h;
  }

  // Of one query head over all keys so far.
  static Numbers attend(const Numbers& q, const std::vector<Numbers>& k,
                        const std::vector<Numbers>& v) {
    Numbers out(q.size(), 0);
    double sum = 0;
    for (size_t i = 0; i < k.size(); ++i) {
      double score = 0;
      for (size_t d = 0; d < q.size(); ++d) score += q[d] * k[i][d];
      const double weight = std::exp(score / std::sqrt(double(q.size())));
      out = plus(std::move(out), v[i], weight);
      sum += weight;
    }
    return plus(Numbers(q.size(), 0), out, 1 / sum);
  }

  Numbers attention(int64_t index, const LayerWeights& layer, const Numbers& x, int64_t position) {
    const Numbers q = times(layer.q, x), k = times(layer.k, x), v = times(layer.v, x);
    for (int64_t h = 0; h < config().num_kv_heads; ++h) {
      const auto at = size_t(index * config().num_kv_heads + h);
      keys[at].push_back(head(k, h, layer.k_norm, position));
      values[at].push_back(head(v, h, {}, -1));
    }
    Numbers out;
    for (int64_t h = 0; h < config().num_heads; ++h) {
      const int64_t kv_head = h * config().num_kv_heads / config().num_heads;
      const auto at = size_t(index * config().num_kv_heads + kv_head);
      const Numbers part = attend(head(q, h, layer.q_norm, position), keys[at], values[at]);
      out.insert(out.end(), part.begin(), part.end());
    }
    return times(layer.o, out);
  }

  Numbers logits(int32_t token, int64_t position) {
    Numbers x;
    for (int64_t i = 0; i < config().hidden; ++i) x.push_back(model.embed_tokens(token, i));
    for (int64_t i = 0; i < config().num_layers; ++i) {
      const LayerWeights& layer = model.layers[size_t(i)];
      const double eps = config().rms_norm_eps;
      x = plus(x, attention(i, layer, normed(x, layer.input_norm, eps), position));
      const Numbers in = normed(x, layer.post_attention_norm, eps);
      x = plus(x, layer.experts.empty() ? mlp(layer.mlp, in) : mixture(config(), layer, in));
    }
    return times(model.output_embedding(), normed(x, model.norm, config().rms_norm_eps));
  }
};

}  // namespace

std::vector<double> naive_logits(const Model& model, std::span<const double> rope_frequencies,
                                 double rope_factor, std::span<const int32_t> tokens) {
  NaiveModel naive{model, rope_frequencies, rope_factor};
  naive.keys.resize(size_t(model.config.num_layers * model.config.num_kv_heads));
  naive.values = naive.keys;
  Numbers logits;
  for (size_t t = 0; t < tokens.size(); ++t) logits = naive.logits(tokens[t], int64_t(t));
  return logits;
}

}  // namespace loratory::reference
