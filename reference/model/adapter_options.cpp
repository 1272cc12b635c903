#include "reference/model/adapter_options.hpp"

#include <memory>

#include "reference/model/checkpoint.hpp"

namespace loratory::reference {

namespace {

ConstTensorView view_of(const StoredTensor& tensor) {
  return {*weight_dtype(tensor.dtype), tensor.bytes.data(), tensor.shape, {tensor.shape[1], 1}};
}

}  // namespace

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

LoadOptions adapter_options(const std::string& directory, const ModelConfig& config) {
  const auto checkpoint = std::make_shared<Checkpoint>(directory);
  const std::vector<int64_t> shape{config.vocab, config.hidden};
  const ConstTensorView embedding = view_of(checkpoint->stored("model.embed_tokens.weight", shape));
  const ConstTensorView head =
      config.tied_embeddings ? embedding : view_of(checkpoint->stored("lm_head.weight", shape));
  LoadOptions options;
  options.base_weights = [checkpoint, embedding, head](Projection projection) {
    return projection == Projection::lm_head ? head : embedding;
  };
  return options;
}

}  // namespace loratory::reference
