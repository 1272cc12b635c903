#include "reference/model/slot_lora.hpp"

#include "reference/base/check.hpp"
#include "reference/lora/linear.hpp"

namespace loratory::reference {

namespace {

// Tokens are columns there and rows here: the same memory, since columns lie one after the other.
TensorView rows_of(Matrix<float>& m) {
  return {Dtype::f32, reinterpret_cast<std::byte*>(m.data()), {m.cols(), m.rows()}, {m.rows(), 1}};
}
ConstTensorView rows_of(const Matrix<float>& m) {
  return {Dtype::f32,
          reinterpret_cast<const std::byte*>(m.data()),
          {m.cols(), m.rows()},
          {m.rows(), 1}};
}

}  // namespace

void SlotLora::add(const LinearRef& linear, std::span<const int64_t> tokens, const Matrix<float>& x,
                   Matrix<float>& y) const {
  std::vector<int32_t> slots;
  for (const int64_t token : tokens) {
    LORATORY_ASSERT(token >= 0 && token < int64_t(token_slots_.size()), "a token of this step");
    slots.push_back(token_slots_[size_t(token)]);
  }
  const auto slices = weights_.slices(linear);
  if (linear.kind == PackedLinear::lm_head) {
    lora_logits(rows_of(x), slots, slices[0], {}, rows_of(y));
  } else {
    lora_linear({.x = rows_of(x), .slots = slots, .slices = slices, .y = rows_of(y)});
  }
}

void SlotLora::add_embedding(std::span<const int32_t> ids, Matrix<float>& y) const {
  LORATORY_ASSERT(ids.size() == token_slots_.size(), "one slot for each token of the step");
  const std::vector<int64_t> token_ids(ids.begin(), ids.end());
  lora_embedding({.token_ids = token_ids,
                  .slots = token_slots_,
                  .slice = weights_.embedding(),
                  .y = rows_of(y)});
}

}  // namespace loratory::reference
