// Launches of 8-bit weights on an emulated GPU: these take the place of the library's.
#include <algorithm>

#include "gpu/kernels/quantized_generic.cuh"
#include "gpu/kernels/quantized_kernel.cuh"
#include "gpu/plan/quantized_launch.hpp"
#include "tests/gpu/emulated/emulated_gpu.hpp"

namespace loratory::gpu {
namespace {

constexpr int kSms = 6;
uint64_t seed = 1;

template <typename C>
void run_kernel(const QuantizedLaunch& launch) {
  QuantizedParams params = launch.params;
  params.num_sms = kSms;
  if (overlaps(launch.order)) params.stages_ahead = seed % 2 == 0 ? C::kStagesAhead : 1;
  const auto clusters = int(std::min<int64_t>(std::max(1, kSms / C::kCluster),
                                              most_clusters({launch.op, C::kNumWarps}, params)));
  params.num_clusters = clusters;
  emulated::run({.num_threads = C::kNumThreads,
                 .cluster = launch.variant.launched_cluster(),
                 .num_clusters = clusters * C::kCluster / launch.variant.launched_cluster(),
                 .shared_bytes = size_t(C::shared_bytes(params.h_width)) +
                                 size_t(params.stages_ahead * C::kAheadBytes),
                 .seed = seed++},
                [&](std::byte* shared) { LoraCta<C>(params, shared).run(); });
}

/// run.operator()<kVariants[i]>() of the launch's variant.
template <const auto& kVariants, typename Run>
void run_variant(const QuantizedLaunch& launch, const Run& run) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    ((launch.variant == kVariants[i] ? run.template operator()<kVariants[i]>() : void()), ...);
  }
  (std::make_index_sequence<std::size(kVariants)>{});
}

template <typename X, typename Out>
void run_linear(const QuantizedLaunch& launch) {
  run_variant<kQuantizedLinearVariants>(launch, [&]<LoraVariant v>() {
    run_kernel<QuantizedConfig<X, float, Out, LoraOp::linear, v>>(launch);
  });
}
template <typename X>
void run_linear(const QuantizedLaunch& launch) {
  if (launch.params.y_dtype == reference::Dtype::f32)
    run_linear<X, float>(launch);
  else
    run_linear<X, X>(launch);
}

template <typename X>
void run_shrink(const QuantizedLaunch& launch) {
  using Out = std::conditional_t<sizeof(X) == 1, __half, X>;
  run_variant<kQuantizedShrinkVariants>(launch, [&]<LoraVariant v>() {
    run_kernel<QuantizedConfig<X, float, Out, LoraOp::shrink, v>>(launch);
  });
}

template <typename H, typename Out>
void run_expand(const QuantizedLaunch& launch) {
  run_variant<kQuantizedExpandVariants>(launch, [&]<LoraVariant v>() {
    run_kernel<QuantizedConfig<__half, H, Out, LoraOp::expand, v>>(launch);
  });
}
template <typename H>
void run_expand(const QuantizedLaunch& launch) {
  if (launch.params.y_dtype == reference::Dtype::f32)
    run_expand<H, float>(launch);
  else if (launch.params.y_dtype == reference::Dtype::bf16)
    run_expand<H, __nv_bfloat16>(launch);
  else
    run_expand<H, __half>(launch);
}

template <typename Out>
void run_gated(const QuantizedLaunch& launch) {
  run_variant<kQuantizedGatedVariants>(launch, [&]<LoraVariant v>() {
    run_kernel<QuantizedConfig<__half, float, Out, LoraOp::gated_expand, v>>(launch);
  });
}
void run_gated(const QuantizedLaunch& launch) {
  if (launch.params.y_dtype == reference::Dtype::bf16)
    run_gated<__nv_bfloat16>(launch);
  else
    run_gated<__half>(launch);
}

void run_plain(int num_ctas, const std::function<void(std::byte*)>& kernel) {
  emulated::run({.num_threads = 64, .num_clusters = num_ctas, .shared_bytes = 64, .seed = seed++},
                [&](std::byte* shared) {
                  wait_for_prior_grid();
                  kernel(shared);
                });
}

}  // namespace

void launch_generic_quantized(const QuantizedLaunch& launch) {
  run_plain(3, [&](std::byte*) {
    if (launch.op == LoraOp::shrink)
      shrink_generic(launch.params);
    else
      expand_generic(launch.params);
  });
}

void launch_quantized(const QuantizedLaunch& launch) {
  using reference::Dtype;
  const QuantizedParams& p = launch.params;
  if (launch.path == LoraPath::generic) return launch_generic_quantized(launch);
  if (is_gated(launch.op)) return run_gated(launch);
  if (launch.op == LoraOp::linear) {
    return p.x_dtype == Dtype::bf16 ? run_linear<__nv_bfloat16>(launch)
                                    : run_linear<__half>(launch);
  }
  if (launch.op == LoraOp::expand) {
    if (is_quantized(p.h_dtype)) return run_expand<uint8_t>(launch);
    return run_expand<float>(launch);
  }
  if (is_quantized(p.x_dtype)) return run_shrink<uint8_t>(launch);
  if (p.x_dtype == Dtype::bf16) return run_shrink<__nv_bfloat16>(launch);
  run_shrink<__half>(launch);
}

void launch_quantize_h(const QuantizeHParams& params, CUstream_st*, LaunchOrder) {
  if (params.by_tensor) {
    run_plain(params.num_slices,
              [&](std::byte* shared) { find_scales(params, reinterpret_cast<float*>(shared)); });
  }
  run_plain(3, [&](std::byte*) { quantize_rows(params); });
}

}  // namespace loratory::gpu
