#include "reference/model/adapter_options.hpp"

namespace loratory::reference {

LoadOptions adapter_options(const Model& model) {
  LoadOptions options;
  options.base_weights = [&model](Projection projection) {
    const Matrix<float>& weight =
        projection == Projection::lm_head ? model.output_embedding() : model.embed_tokens;
    const auto* data = reinterpret_cast<const std::byte*>(weight.data());
    return ConstTensorView{Dtype::f32, data, {weight.rows(), weight.cols()}, {1, weight.rows()}};
  };
  return options;
}

}  // namespace loratory::reference
