#include "reference/model/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "reference/adapter/dequantize.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/dense_kv.hpp"
#include "reference/model/direct_lora.hpp"

namespace loratory::reference {
namespace {

// Pays for products of two rounding errors, which the first order leaves out.
constexpr double second_order(Dtype stored) { return stored == Dtype::f32 ? 1 + 0x1p-4 : 1.5; }

// Numbers that are off by e of their norm, along themselves, have a mean square that is off by a
// share s = 2 e to first order. What the norm divides may then be off by 1 / (1 - s / 2) times as
// much as to first order. So much second_order() pays for.
constexpr double most_of_mean_square(Dtype stored) { return 2 * (1 - 1 / second_order(stored)); }

// Logits of the tokens `logits_of` of one sequence, from nothing.
template <typename Real>
Matrix<Real> recompute(const Model& model, const LoraTerms<Real>* lora,
                       std::span<const int32_t> tokens, std::vector<int64_t> logits_of,
                       Dtype stored = Dtype::f32) {
  TokenBatch batch;
  batch.ids.assign(tokens.begin(), tokens.end());
  batch.sequences.assign(tokens.size(), 0);
  for (size_t t = 0; t < tokens.size(); ++t) batch.positions.push_back(int64_t(t));
  batch.logits_of = std::move(logits_of);
  DenseKv<Real> kv(model.config, 1, int64_t(tokens.size()));
  return forward(model, batch, kv, lora, stored);
}

std::vector<int64_t> first_integers(size_t count) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < count; ++i) out.push_back(int64_t(i));
  return out;
}

template <typename Real>
std::optional<DirectLora<Real>> direct_lora(const Model& model, const Adapter* adapter,
                                            Dtype stored = Dtype::f32) {
  if (adapter == nullptr) return std::nullopt;
  return DirectLora<Real>(model.config, *adapter, stored);
}

std::vector<double> prompt_logprobs(const Model& model, const LoraTerms<float>* lora,
                                    std::span<const int32_t> prompt) {
  const Matrix<float> logits = recompute(model, lora, prompt, first_integers(prompt.size() - 1));
  std::vector<double> out;
  for (size_t t = 1; t < prompt.size(); ++t) {
    out.push_back(log_probability(Vector<float>(logits.col(int64_t(t) - 1)), prompt[t]));
  }
  return out;
}

}  // namespace

Generation generate(const Model& model, const Adapter* adapter, std::span<const int32_t> prompt,
                    const GenerateParams& params) {
  if (prompt.empty()) throw InputError("generate: prompt", "is empty");
  const auto direct = direct_lora<float>(model, adapter);
  const LoraTerms<float>* const lora = direct ? &*direct : nullptr;
  Generation out;
  if (params.prompt_logprobs) out.prompt_logprobs = prompt_logprobs(model, lora, prompt);
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  for (int64_t i = 0; i < params.max_new_tokens; ++i) {
    const auto position = int64_t(tokens.size());
    const Vector<float> logits = recompute(model, lora, tokens, {position - 1}).col(0);
    tokens.push_back(sample(logits, params.sampling, position));
    out.tokens.push_back(tokens.back());
    out.logits.push_back(logits);
    const auto& stops = params.stop_tokens;
    if (std::find(stops.begin(), stops.end(), tokens.back()) != stops.end()) break;
  }
  return out;
}

template <typename Real>
Matrix<Real> sequence_logits(const Model& model, const Adapter* adapter,
                             std::span<const int32_t> tokens, Dtype stored) {
  const auto direct = direct_lora<Real>(model, adapter, stored);
  return recompute<Real>(model, direct ? &*direct : nullptr, tokens, first_integers(tokens.size()),
                         stored);
}

template Matrix<float> sequence_logits(const Model&, const Adapter*, std::span<const int32_t>,
                                       Dtype);
template Matrix<double> sequence_logits(const Model&, const Adapter*, std::span<const int32_t>,
                                        Dtype);

Matrix<Bounded> bounded_logits(const Model& model, const Adapter* adapter,
                               std::span<const int32_t> tokens, Dtype stored) {
  Tape tape(stored);
  const Tape::Scope scope(tape);
  const auto direct = direct_lora<Traced>(model, adapter, stored);
  const Matrix<Traced> logits = recompute<Traced>(model, direct ? &*direct : nullptr, tokens,
                                                  first_integers(tokens.size()), stored);
  std::vector<int32_t> nodes;
  for (Eigen::Index i = 0; i < logits.size(); ++i) nodes.push_back(logits(i).node);
  tape.finish_norms(most_of_mean_square(stored));
  const std::vector<double> errors = tape.errors(nodes);
  Matrix<Bounded> out(logits.rows(), logits.cols());
  for (Eigen::Index i = 0; i < out.size(); ++i) {
    const double error = second_order(stored) * errors[size_t(i)];
    out(i) = {logits(i).value, std::isnan(error) ? std::numeric_limits<double>::infinity() : error};
  }
  return out;
}

namespace {

Matrix<double> delta(const LoraModule& module) {
  return double(module.scaling) *
         (dequantized_b(module).cast<double>() * dequantized_a(module).cast<double>());
}

void add_to(Matrix<float>& weight, const Matrix<double>& delta) {
  weight = (weight.cast<double>() + delta).cast<float>();
}

Matrix<float>& weight_of(Model& model, const ModuleId& id) {
  LayerWeights& layer = model.layers[size_t(id.layer)];
  MlpWeights& mlp = id.expert < 0 ? layer.mlp : layer.experts[size_t(id.expert)];
  switch (id.projection) {
    case Projection::q:
      return layer.q.weight;
    case Projection::k:
      return layer.k.weight;
    case Projection::v:
      return layer.v.weight;
    case Projection::o:
      return layer.o.weight;
    case Projection::gate:
      return mlp.gate.weight;
    case Projection::up:
      return mlp.up.weight;
    case Projection::down:
      return mlp.down.weight;
    case Projection::router:
      return layer.router;
    case Projection::shared_gate:
      return layer.shared_expert.gate.weight;
    case Projection::shared_up:
      return layer.shared_expert.up.weight;
    case Projection::shared_down:
      return layer.shared_expert.down.weight;
    case Projection::shared_router:
      return layer.shared_router.weight;
    default:
      break;
  }
  throw InputError("merge", to_string(id) + " is not in a layer");
}

}  // namespace

Model merge(const Model& model, const Adapter& adapter) {
  Model merged = model;
  if (merged.lm_head.size() == 0) merged.lm_head = merged.embed_tokens;  // may part now [1.32]
  merged.config.tied_embeddings = false;
  for (const LoraModule& module : adapter.modules) {
    if (module.id.projection == Projection::embed_tokens) {
      add_to(merged.embed_tokens, delta(module).transpose());
    } else if (module.id.projection == Projection::lm_head) {
      add_to(merged.lm_head, delta(module));
    } else {
      add_to(weight_of(merged, module.id), delta(module));
    }
  }
  return merged;
}

}  // namespace loratory::reference
