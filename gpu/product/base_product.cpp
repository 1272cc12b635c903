#include "gpu/product/base_product.hpp"

#include "gpu/product/skinny_plan.hpp"

namespace loratory::gpu {

std::string_view name(ProductOrder order) {
  return order == ProductOrder::exact ? "exact" : "fast";
}

BaseProduct::BaseProduct(Products& products, const DeviceView& weight, const void* bias,
                         reference::Dtype out, int64_t max_tokens, bool feeds_silu_mul)
    : products_(&products),
      shape_{.num_out = weight.shape[0],
             .num_in = weight.shape[1],
             .max_tokens = max_tokens,
             .weight = weight.dtype,
             .out = out,
             .has_bias = bias != nullptr,
             .feeds_silu_mul = feeds_silu_mul},
      weight_(weight),
      bias_(bias) {
  check_shape(shape_);
  check_weights(shape_, {.weight = weight, .bias = bias});
  plan_ = &products.plan(shape_);
}

void BaseProduct::launch(const DeviceView& x, const DeviceView& y, CUstream_st* stream,
                         LaunchOrder order, ProductUse use) const {
  const ProductTensors tensors{.weight = weight_, .bias = bias_, .x = x, .y = y};
  const int64_t num_tokens = check_activations(shape_, tensors);
  if (num_tokens == 0) return;
  products_->launch(shape_, choice(num_tokens, use), tensors, stream, order);
}

const ProductChoice& BaseProduct::choice(int64_t num_tokens, ProductUse use) const {
  const ProductBucket& bucket = bucket_of(*plan_, num_tokens);
  return use == ProductUse::alone ? bucket.choice : bucket.before_lora;
}

bool BaseProduct::launch_silu_mul(const DeviceView& x, const DeviceView& y, CUstream_st* stream,
                                  LaunchOrder order) const {
  const ProductTensors tensors{.weight = weight_, .bias = bias_, .x = x, .y = y, .is_gated = true};
  const int64_t num_tokens = check_activations(shape_, tensors);
  if (num_tokens == 0) return true;
  const ProductChoice& chosen = choice(num_tokens, ProductUse::alone);
  if (!fuses_silu(shape_, chosen, tensors)) return false;
  products_->launch(shape_, chosen, tensors, stream, order);
  return true;
}

LaunchOrder BaseProduct::order_behind(int64_t num_tokens, ProductUse use) const {
  const bool is_own = choice(num_tokens, use).kernel == ProductKernel::skinny;
  return is_own ? LaunchOrder::x_is_ready : LaunchOrder::overlaps_previous;
}

int32_t BaseProduct::idle_sms(int64_t num_tokens, ProductUse use) const {
  const ProductChoice& chosen = choice(num_tokens, use);
  if (chosen.kernel != ProductKernel::skinny) return 0;
  const SkinnyLayout layout = skinny_layout(shape_, num_tokens, chosen);
  return layout.idle_sms(chosen.num_ctas(), products_->num_sms());
}

}  // namespace loratory::gpu
