#pragma once

#include <cstdint>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

// Which experts a token goes to, and the sum of what they return: reference/moe/router.hpp and
// combine_experts() of reference/moe/moe_layer.hpp, on the GPU. Letters as there.

namespace loratory::gpu {

/// How logits become weights.
enum class RouterKind : uint8_t {
  softmax,             ///< Qwen-MoE without norm_topk_prob
  softmax_normalised,  ///< Mixtral, Qwen3-MoE: the weights of the chosen sum to 1
  softmax_of_chosen,   ///< gpt-oss
};

struct RouterArgs {
  DeviceView logits{};  ///< f32 [T, E]
  RouterKind kind = RouterKind::softmax_normalised;
  int32_t k = 1;               ///< experts of a token
  int32_t* experts = nullptr;  ///< [T·k], heaviest first
  float* weights = nullptr;    ///< [T·k]
  /// [T] on the device or null; below 0: padding, which gets experts -1 and weights 0.
  const int32_t* token_rows = nullptr;
};

/// E up to this many fit in shared memory.
inline constexpr int64_t kMostExperts = 2048;
inline constexpr int32_t kMostChosen = 32;

/// route() of the reference, or route_softmax_of_chosen(): the same sums in the same order, in
/// fp32, the exponential in fp64 and rounded, so the same bits but where two libraries' fp64
/// exponentials differ. Ties go to the lower index. A NaN among the logits makes all weights of its
/// token NaN; it then goes to experts 0..k-1, and no other token notices.
/// Errors   InputError: k outside [1, E], more than kMostExperts, kMostChosen; shapes.
///          std::runtime_error: CUDA's name and text.
void route(const RouterArgs& args, CUstream_st* stream,
           LaunchOrder order = LaunchOrder::after_previous);

struct CombineArgs {
  DeviceView z{};                         ///< [T·k, H] what the experts return
  DeviceView y{};                         ///< [T, H], the same dtype
  const float* router_weights = nullptr;  ///< [T·k]; null: they went on the input
  const int32_t* experts = nullptr;       ///< [T·k]; rows below 0 are not read
  const int32_t* expert_map = nullptr;    ///< or null; rows of experts mapped below 0 are not read
};

/// y[t] = round(sum_i g_i · z[t·k + i]), i ascending, each product and sum rounded to fp32: the
/// bits of the reference.
/// Errors   as route().
void combine_experts(const CombineArgs& args, CUstream_st* stream,
                     LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
