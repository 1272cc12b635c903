#include "reference/model/direct_lora.hpp"

#include "reference/adapter/dequantize.hpp"
#include "reference/adapter/expand_module.hpp"
#include "reference/model/traced_kernels.hpp"

namespace loratory::reference {

template <typename Real>
DirectLora<Real>::DirectLora(const ModelConfig& config, const Adapter& adapter, Dtype stored)
    : shapes_(base_model_shapes(config)), stored_(stored) {
  for (const LoraModule& module : adapter.modules) {
    modules_.emplace(module.id,
                     Weights{dequantized_a(module), dequantized_b(module), Real(module.scaling)});
  }
}

template <typename Real>
const typename DirectLora<Real>::Weights* DirectLora<Real>::find(const ModuleId& id) const {
  const auto at = modules_.find(id);
  return at == modules_.end() ? nullptr : &at->second;
}

// y[row + n] += scaling · (B h)[n]
template <typename Real>
void DirectLora<Real>::add_delta(const Weights& weights, Vector<Real> h, int64_t row,
                                 int64_t column, Matrix<Real>& y) const {
  for (Real& v : h) v = stored_in_two(stored_, v);
  const Vector<Real> sum = product(weights.b, h);
  for (int64_t n = 0; n < sum.size(); ++n) {
    y(row + n, column) = y(row + n, column) + weights.scaling * sum(n);
  }
}

template <typename Real>
void DirectLora<Real>::add(const LinearRef& linear, std::span<const int64_t>, const Matrix<Real>& x,
                           Matrix<Real>& y) const {
  int64_t row = 0;
  for (const Projection projection : projections(linear.kind)) {
    const Weights* const weights = find({linear.layer, linear.expert, projection});
    if (weights != nullptr) {
      for (int64_t t = 0; t < x.cols(); ++t) {
        add_delta(*weights, product(weights->a, Vector<Real>(x.col(t))), row, t, y);
      }
    }
    row += base_shape(shapes_, projection, linear.expert >= 0).rows;
  }
}

template <typename Real>
void DirectLora<Real>::add_embedding(std::span<const int32_t> ids, Matrix<Real>& y) const {
  const Weights* const weights = find({-1, -1, Projection::embed_tokens});
  if (weights == nullptr) return;
  for (int64_t t = 0; t < y.cols(); ++t) {
    add_delta(*weights, weights->a.col(ids[size_t(t)]).template cast<Real>(), 0, t, y);
  }
}

template class DirectLora<float>;
template class DirectLora<double>;
template class DirectLora<Traced>;

}  // namespace loratory::reference
