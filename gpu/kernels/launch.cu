#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gpu/kernels/generic_lora.hpp"
#include "gpu/kernels/lora_kernel_entry.cuh"
#include "gpu/plan/lora_grid.hpp"
#include "gpu/plan/lora_launch.hpp"
#include "gpu/plan/quantized_launch.hpp"
#include "gpu/plan/room_of_sm.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

template <LoraOp kOp>
const LoraKernels& kernels_of(Dtype weight) {
  return weight == Dtype::bf16 ? lora_kernels<kOp, __nv_bfloat16, __nv_bfloat16>()
                               : lora_kernels<kOp, __half, __half>();
}
template <LoraOp kOp>
const LoraKernels& kernels_of(Dtype weight, Dtype y) {
  if (y != Dtype::f32) return kernels_of<kOp>(weight);
  return weight == Dtype::bf16 ? lora_kernels<kOp, __nv_bfloat16, float>()
                               : lora_kernels<kOp, __half, float>();
}
const LoraKernels& kernels_of(const LoraLaunch& launch) {
  const auto [weight, y] = std::pair(launch.dtypes.weight, launch.dtypes.y);
  switch (launch.op) {
    case LoraOp::linear:
      return kernels_of<LoraOp::linear>(weight, y);
    case LoraOp::shrink:
      return kernels_of<LoraOp::shrink>(weight);
    case LoraOp::expand:
      return kernels_of<LoraOp::expand>(weight, y);
    case LoraOp::gated_expand:
      return kernels_of<LoraOp::gated_expand>(weight);
    default:
      return kernels_of<LoraOp::gated_expand_shrink>(weight);
  }
}

template <typename X>
const LoraKernels& quantized_linears_of(Dtype y) {
  return y == Dtype::f32 ? quantized_kernels<LoraOp::linear, X, float, float>()
                         : quantized_kernels<LoraOp::linear, X, float, X>();
}
const LoraKernels& quantized_shrinks_of(Dtype x) {
  constexpr LoraOp kOp = LoraOp::shrink;
  if (is_quantized(x)) return quantized_kernels<kOp, uint8_t, float, __half>();
  return x == Dtype::bf16 ? quantized_kernels<kOp, __nv_bfloat16, float, __nv_bfloat16>()
                          : quantized_kernels<kOp, __half, float, __half>();
}
template <LoraOp kOp, typename H>
const LoraKernels& quantized_expands_of(Dtype y) {
  return y == Dtype::bf16 ? quantized_kernels<kOp, __half, H, __nv_bfloat16>()
                          : quantized_kernels<kOp, __half, H, __half>();
}
template <typename H>
const LoraKernels& quantized_expands_of(Dtype y) {
  return y == Dtype::f32 ? quantized_kernels<LoraOp::expand, __half, H, float>()
                         : quantized_expands_of<LoraOp::expand, H>(y);
}
const LoraKernels& kernels_of(const QuantizedLaunch& launch) {
  const QuantizedParams& p = launch.params;
  if (launch.op == LoraOp::linear) {
    return p.x_dtype == Dtype::bf16 ? quantized_linears_of<__nv_bfloat16>(p.y_dtype)
                                    : quantized_linears_of<__half>(p.y_dtype);
  }
  if (launch.op == LoraOp::shrink) return quantized_shrinks_of(p.x_dtype);
  if (is_gated(launch.op)) return quantized_expands_of<LoraOp::gated_expand, float>(p.y_dtype);
  return is_quantized(p.h_dtype) ? quantized_expands_of<uint8_t>(p.y_dtype)
                                 : quantized_expands_of<float>(p.y_dtype);
}

const LoraKernel& find(const LoraKernels& kernels, const LoraVariant& variant) {
  const auto found = std::ranges::find(kernels, variant, &LoraKernel::variant);
  LORATORY_ASSERT(found != kernels.end(), "LoraLayer checks that a variant has a kernel");
  return *found;
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// One wave: the clusters that the GPU holds at once. The loop of a persistent kernel takes the
/// rest.
struct Occupancy {
  int shared_bytes = 0;
  int num_clusters = 0;
  int num_sms = 0;
  int shared_bytes_of_sm = 0;
  int most_shared_bytes = 0;  // of a CTA
};

int most_shared_bytes() { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/// For all layers at once, because layers of different rank launch the same kernel.
void allow_shared_bytes(const LoraKernel& kernel, int needed) {
  const int most = most_shared_bytes();
  if (needed > most) {
    throw InputError(std::string(name(kernel.op)) + ": variant",
                     "needs " + std::to_string(needed) +
                         " bytes of shared memory for this layer, this GPU has " +
                         std::to_string(most) + ": " + describe(kernel.variant));
  }
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
}

int max_active_clusters(const LoraKernel& kernel, int shared_bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(kernel.variant.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(kernel.variant.cluster));
  config.blockDim = dim3(unsigned(kernel.num_threads()));
  config.dynamicSmemBytes = size_t(shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  LORATORY_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel.function, &config));
  return clusters;
}

Occupancy query_occupancy(const LoraKernel& kernel, int shared_bytes) {
  Occupancy out{.shared_bytes = shared_bytes,
                .num_sms = num_sms(),
                .shared_bytes_of_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor),
                .most_shared_bytes = most_shared_bytes()};
  allow_shared_bytes(kernel, out.shared_bytes);
  if (kernel.variant.launched_cluster() > 1) {
    out.num_clusters = std::max(1, max_active_clusters(kernel, out.shared_bytes));
    return out;
  }
  int ctas = 0;  // per SM
  LORATORY_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &ctas, kernel.function, kernel.num_threads(), size_t(out.shared_bytes)));
  out.num_clusters = std::max(1, out.num_sms * ctas / kernel.variant.cluster);
  return out;
}

/// Asks the driver once for each kernel, shared memory and device: launches happen in captures and
/// on hot paths.
Occupancy occupancy_of(const LoraKernel& kernel, int shared_bytes) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, int>, Occupancy> known;
  int device = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(kernel.function, shared_bytes, device);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, query_occupancy(kernel, shared_bytes)).first->second;
}

/// How a launch meets the stream.
struct InStream {
  CUstream_st* stream;
  LaunchOrder order;
};

/// Sets how many stages of 8-bit weights are widened ahead: all that a tile has or one, or none if
/// these CTAs did not fit, or took more waves than those of `plain`.
Occupancy widen_ahead(const LoraKernel& kernel, int64_t clusters, const Occupancy& plain,
                      QuantizedParams* params) {
  const int64_t all_bytes = int64_t{plain.num_sms} * plain.shared_bytes_of_sm;
  const auto cta_bytes = [&](int n) { return plain.shared_bytes + n * kernel.ahead_bytes; };
  const auto fits = [&](int n) { return cta_bytes(n) <= plain.most_shared_bytes; };
  const int most =
      std::min(kernel.stages_ahead, ceil_div(params->max_rank, 16 * kernel.variant.rank_tiles));
  const bool all = fits(most) && widens_all_stages(*params, kernel.variant.cluster * clusters,
                                                   cta_bytes(most), all_bytes);
  const int stages = all ? most : 1;
  if (!fits(stages)) return plain;
  const Occupancy out = occupancy_of(kernel, cta_bytes(stages));
  if (out.num_clusters < std::min<int64_t>(plain.num_clusters, clusters)) return plain;
  params->stages_ahead = stages;
  return out;
}

/// What 8-bit weights take besides. Sets what the kernel is told of it.
Occupancy take_room_for_8_bits(const LoraKernel& kernel, LaunchOrder order, const Occupancy& plain,
                               QuantizedParams* params) {
  const int64_t clusters = most_clusters({kernel.op, kernel.variant.warps}, *params);
  Occupancy out = plain;
  params->stages_ahead = 0;
  if (kernel.ahead_bytes > 0 && overlaps(order) && has_clusters() &&
      widens_ahead(kernel.op, kernel.variant, *params, order)) {
    out = widen_ahead(kernel, clusters, plain, params);
  }
  if (!keeps_fourth_cta_away(kernel.op, kernel.variant, clusters, out.num_sms)) return out;
  return occupancy_of(kernel, std::max(out.shared_bytes, out.shared_bytes_of_sm / 4));
}

/// The room that the CTAs of a launch take. Sets what the kernel is told of it.
/// `params`: a KernelParams, or what is derived from it.
template <typename Params>
Occupancy take_room(const LoraKernel& kernel, LaunchOrder order, Params* params) {
  Occupancy out = occupancy_of(kernel, kernel.shared_bytes(params->h_width));
  params->num_sms = uint32_t(out.num_sms);
  if constexpr (std::is_same_v<Params, QuantizedParams>) {
    out = take_room_for_8_bits(kernel, order, out, params);
  }
  if (kernel.op == LoraOp::shrink && keeps_ctas_apart(kernel.variant, *params)) {
    const int over_half = out.shared_bytes_of_sm / 2;  // with 1 KB of each, two do not fit
    out = occupancy_of(kernel, std::max(out.shared_bytes, over_half));
  }
  return out;
}

struct LaunchAttributes {
  cudaLaunchAttribute all[3];
  unsigned count = 0;

  cudaLaunchAttributeValue& add(cudaLaunchAttributeID id) {
    all[count].id = id;
    return all[count++].val;
  }
};

/// Clusters of one CTA too: launch_kernel.cuh says why.
LaunchAttributes attributes_of(const LoraGrid& grid, LaunchOrder order) {
  LaunchAttributes out;
  if (!has_clusters()) return out;
  out.add(cudaLaunchAttributeClusterDimension).clusterDim = {unsigned(grid.ctas_of_cluster), 1, 1};
  if (grid.balances_load) {
    out.add(cudaLaunchAttributeClusterSchedulingPolicyPreference)
        .clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
  }
  if (overlaps(order)) {
    out.add(cudaLaunchAttributeProgrammaticStreamSerialization)
        .programmaticStreamSerializationAllowed = 1;
  }
  return out;
}

template <typename Params>
void launch_tensor_core(const LoraKernel& kernel, Params params, const InStream& in) {
  const Occupancy room = take_room(kernel, in.order, &params);
  const LoraGrid grid = lora_grid({.op = kernel.op,
                                   .variant = kernel.variant,
                                   .order = in.order,
                                   .has_8_bits = std::is_same_v<Params, QuantizedParams>,
                                   .has_clusters = has_clusters()},
                                  params, room.num_clusters);
  params.num_clusters = grid.num_clusters;
  LaunchAttributes attributes = attributes_of(grid, in.order);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(grid.num_clusters * kernel.variant.cluster));
  config.blockDim = dim3(unsigned(kernel.num_threads()));
  config.dynamicSmemBytes = size_t(room.shared_bytes);
  config.stream = in.stream;
  config.attrs = attributes.all;
  config.numAttrs = attributes.count;
  void* arguments[] = {&params};
  LORATORY_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel.function, arguments));
}

}  // namespace

void launch_lora(const LoraLaunch& launch) {
  if (launch.path == LoraPath::generic)
    launch_generic_lora(launch);
  else
    launch_tensor_core(find(kernels_of(launch), launch.variant), launch.params,
                       {launch.stream, launch.order});
}

void launch_quantized(const QuantizedLaunch& launch) {
  if (launch.path == LoraPath::generic) {
    launch_generic_quantized(launch);
  } else {
    const LoraKernel& kernel = find(kernels_of(launch), launch.variant);
    launch_tensor_core(kernel, launch.params, {launch.stream, launch.order});
  }
}

}  // namespace loratory::gpu
