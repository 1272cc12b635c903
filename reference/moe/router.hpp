#pragma once

#include <cstdint>
#include <vector>

#include "reference/moe/exponential.hpp"
#include "reference/numerics/matrix.hpp"

// Which experts a token goes to, and how much each counts. Real is float (the reference), double
// (the oracle), or any number type with the usual operators and an exp() found beside it.
//
// Order    products and sums as written, experts ascending, rounded to Real at each step.
// Ties     the lower index. A NaN among the logits makes all weights of the token NaN; it then
//          goes to experts 0..k-1, and no other token notices.
// Errors   InputError: k outside [1, E].
// Repeats  bitwise; a function of the token's logits alone.
// Source   vLLM topk_softmax; transformers, Mixtral, Qwen-MoE and gpt-oss.

namespace loratory::reference {

/// Of one token: experts[i] is distinct, heaviest first; weights[i] is its g_i.
template <typename Real>
struct Routing {
  std::vector<int32_t> experts;  ///< [k]
  std::vector<Real> weights;     ///< [k]
};

/// exp(v_e - max) / sum_e exp(v_e - max).
template <typename Real>
Vector<Real> softmax_in_order(const Vector<Real>& values) {
  if (values.size() == 0) return values;
  Real largest = values(0);
  for (Eigen::Index e = 1; e < values.size(); ++e) {
    if (values(e) > largest) largest = values(e);
  }
  Vector<Real> out(values.size());
  Real sum(0);
  for (Eigen::Index e = 0; e < values.size(); ++e) {
    out(e) = exponential(Real(values(e) - largest));
    sum = Real(sum + out(e));
  }
  for (Eigen::Index e = 0; e < values.size(); ++e) out(e) = Real(out(e) / sum);
  return out;
}

/// InputError: k outside [1, num_experts].
void check_num_chosen(int64_t k, int64_t num_experts);

/// The indices of the k largest values, largest first.
template <typename Real>
std::vector<int32_t> largest_indices(const Vector<Real>& values, int64_t k) {
  check_num_chosen(k, values.size());
  std::vector<int32_t> chosen;
  std::vector<bool> taken(size_t(values.size()), false);
  while (int64_t(chosen.size()) < k) {
    int32_t best = -1;
    for (int32_t e = 0; e < int32_t(values.size()); ++e) {
      if (taken[size_t(e)]) continue;
      if (best < 0 || values(e) > values(best)) best = e;
    }
    taken[size_t(best)] = true;
    chosen.push_back(best);
  }
  return chosen;
}

/// The weights of experts that somebody else has chosen (the oracle follows the reference there,
/// where two logits lie closer than float can tell): softmax over all E experts, the chosen ones
/// kept; with norm_topk_prob divided by their sum, added up in the order of `experts`.
template <typename Real>
std::vector<Real> router_weights(const Vector<Real>& logits, const std::vector<int32_t>& experts,
                                 bool norm_topk_prob) {
  const Vector<Real> all = softmax_in_order(logits);
  std::vector<Real> weights;
  Real sum(0);
  for (const int32_t e : experts) {
    weights.push_back(all(e));
    sum = Real(sum + all(e));
  }
  for (Real& weight : weights) {
    if (norm_topk_prob) weight = Real(weight / sum);
  }
  return weights;
}

/// Mixtral (norm_topk_prob) and Qwen-MoE (either): softmax over all experts, then the k largest
/// probabilities. As real numbers the renormalised weights are the softmax over the k largest
/// logits (which some descriptions of Mixtral give); in float they differ in the last bits.
template <typename Real>
Routing<Real> route(const Vector<Real>& logits, int64_t k, bool norm_topk_prob) {
  const std::vector<int32_t> experts = largest_indices(softmax_in_order(logits), k);
  return {experts, router_weights(logits, experts, norm_topk_prob)};
}

/// gpt-oss: the k largest logits, then softmax over these alone.
template <typename Real>
Routing<Real> route_softmax_of_chosen(const Vector<Real>& logits, int64_t k) {
  Routing<Real> routing{largest_indices(logits, k), {}};
  Vector<Real> chosen(k);
  for (int64_t i = 0; i < k; ++i) chosen(i) = logits(routing.experts[size_t(i)]);
  const Vector<Real> weights = softmax_in_order(chosen);
  routing.weights.assign(weights.data(), weights.data() + k);
  return routing;
}

}  // namespace loratory::reference
