// A mixture of two experts small enough to compute by hand.
#pragma once

#include <vector>

#include "reference/moe/moe_layer.hpp"
#include "tests/reference/tensors.hpp"

namespace loratory::reference {

/// E = 2, H = I = 1, identity as activation, W1 = [1, 2], W3 = W2 = [1, 1]; one token x = 3 at both
/// experts with weights 1/4 and 3/4. One slot: expert 0 has LoRA of gate (A = B = 1), expert 1 of
/// down (A = 1, B = 2), scaling 1.
struct TwoExperts {
  MoeArgs args() const {
    MoeArgs args;
    args.x = x.view();
    args.rows = {experts_per_token, experts, expert_map};
    args.router_weights = weights;
    args.w13 = w13.view();
    args.w2 = w2.view();
    args.activation = Activation::identity;
    return args;
  }
  MoeLora lora() const {
    const auto slice = [&](size_t i) {
      return ExpertLoraSlice{a[i].view(), b[i].view(), ranks[i], scalings};
    };
    return {{slots, enabled}, {slice(0), slice(1)}, slice(2), {}};
  }
  double y() const {
    const MoeLora with = lora();
    return moe_layer(args(), &with).y.get(0, 0);
  }
  double base() const { return moe_layer(args(), nullptr).y.get(0, 0); }

  int64_t experts_per_token = 2;
  Tensor x = tensor(Dtype::f32, {1, 1}, {3});
  Tensor w13 = tensor(Dtype::f32, {2, 2, 1}, {1, 1, 2, 1});
  Tensor w2 = tensor(Dtype::f32, {2, 1, 1}, {1, 1});
  std::vector<int32_t> experts{0, 1}, expert_map, slots{0}, enabled{1, 0};
  std::vector<float> weights{0.25F, 0.75F}, scalings{1, 1};
  std::vector<std::vector<int32_t>> ranks{{1, 0}, {0, 0}, {0, 1}};
  std::vector<Tensor> a{3, tensor(Dtype::f32, {1, 2, 1, 1}, {1, 1})};
  std::vector<Tensor> b{tensor(Dtype::f32, {1, 2, 1, 1}, {1, 1}),
                        tensor(Dtype::f32, {1, 2, 1, 1}, {1, 1}),
                        tensor(Dtype::f32, {1, 2, 1, 1}, {1, 2})};
};

}  // namespace loratory::reference
