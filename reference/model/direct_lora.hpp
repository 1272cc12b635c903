#pragma once

#include <map>

#include "reference/adapter/adapter.hpp"
#include "reference/model/forward.hpp"

namespace loratory::reference {

/// One adapter on every token, straight from its file, with no slots or buffers between:
/// h = A x, d = scaling · (B h), y = y + d.
///
/// Rounding  A and B as float (dequantize.hpp); each product and sum to Real, indices ascending.
/// For float
///           these are the bits of lora_linear in the default mode on f32 tensors.
/// Source    statements [1.1], [1.16], [1.28], [1.30].
template <typename Real>
class DirectLora : public LoraTerms<Real> {
 public:
  /// `stored` in 16 bits: h is kept as hi + lo of it, as the kernels of a GPU do (split2).
  DirectLora(const ModelConfig& config, const Adapter& adapter, Dtype stored = Dtype::f32);

  void add(const LinearRef& linear, std::span<const int64_t> tokens, const Matrix<Real>& x,
           Matrix<Real>& y) const override;
  void add_embedding(std::span<const int32_t> ids, Matrix<Real>& y) const override;

 private:
  struct Weights {
    Matrix<float> a, b;
    Real scaling;
  };
  const Weights* find(const ModuleId& id) const;
  void add_delta(const Weights& weights, Vector<Real> h, int64_t row, int64_t column,
                 Matrix<Real>& y) const;

  BaseModelShapes shapes_;
  std::map<ModuleId, Weights> modules_;
  Dtype stored_;
};

extern template class DirectLora<float>;
extern template class DirectLora<double>;
extern template class DirectLora<Traced>;

}  // namespace loratory::reference
