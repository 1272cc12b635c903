#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>

#include "gpu/kernels/generic_lora.hpp"
#include "gpu/kernels/kernel_table.cuh"
#include "gpu/kernels/quantized_kernel.cuh"
#include "gpu/plan/lora_grid.hpp"
#include "gpu/plan/lora_launch.hpp"
#include "gpu/plan/quantized_launch.hpp"
#include "gpu/plan/room_of_sm.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

const std::vector<LoraKernel>& kernels_of(Dtype weight, Dtype out) {
  static const auto bf16 = lora_kernels<__nv_bfloat16, __nv_bfloat16>();
  static const auto bf16_f32 = lora_kernels<__nv_bfloat16, float>();
  static const auto f16 = lora_kernels<__half, __half>();
  static const auto f16_f32 = lora_kernels<__half, float>();
  if (weight == Dtype::bf16) return out == Dtype::f32 ? bf16_f32 : bf16;
  return out == Dtype::f32 ? f16_f32 : f16;
}

const std::vector<LoraKernel>& gated_kernels_of(Dtype weight) {
  static const auto bf16 = gated_kernels<__nv_bfloat16>();
  static const auto f16 = gated_kernels<__half>();
  return weight == Dtype::bf16 ? bf16 : f16;
}

const LoraKernel& find(const LoraLaunch& launch) {
  const Dtype weight = launch.dtypes.weight;
  const Dtype out = launch.op == LoraOp::shrink ? weight : launch.dtypes.y;  // a shrink has no y
  const std::vector<LoraKernel>& kernels =
      is_gated(launch.op) ? gated_kernels_of(weight) : kernels_of(weight, out);
  const auto found = std::ranges::find_if(kernels, [&](const LoraKernel& kernel) {
    return kernel.op == launch.op && kernel.variant == launch.variant;
  });
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
};

/// For all layers at once, because layers of different rank launch the same kernel.
void allow_shared_bytes(const LoraKernel& kernel, int needed) {
  const int most = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
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
                .shared_bytes_of_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
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

/// The room that the CTAs of a launch take. Sets what the kernel is told of it.
/// `params`: a KernelParams, or what is derived from it.
template <typename Params>
Occupancy take_room(const LoraKernel& kernel, LaunchOrder order, Params* params) {
  const int shared_bytes = kernel.shared_bytes(params->h_width);
  Occupancy out = occupancy_of(kernel, shared_bytes);
  params->num_sms = uint32_t(out.num_sms);
  if constexpr (std::is_same_v<Params, QuantizedParams>) {
    params->widens_ahead = kernel.ahead_bytes > 0 && overlaps(order) && has_clusters() &&
                           widens_ahead(kernel.op, kernel.variant, *params, order);
    if (params->widens_ahead) out = occupancy_of(kernel, shared_bytes + kernel.ahead_bytes);
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

const LoraKernel& find(const std::vector<LoraKernel>& kernels, const LoraVariant& variant) {
  const auto found = std::ranges::find(kernels, variant, &LoraKernel::variant);
  LORATORY_ASSERT(found != kernels.end(), "LoraLayer checks that a variant has a kernel");
  return *found;
}

template <typename X>
const std::vector<LoraKernel>& linears_of(Dtype y) {
  static const auto as_x = quantized_linears<X, X>();
  static const auto f32 = quantized_linears<X, float>();
  return y == Dtype::f32 ? f32 : as_x;
}

const std::vector<LoraKernel>& shrinks_of(Dtype x) {
  static const auto bf16 = quantized_shrinks<__nv_bfloat16>();
  static const auto f16 = quantized_shrinks<__half>();
  static const auto bits = quantized_shrinks<uint8_t>();
  if (is_quantized(x)) return bits;
  return x == Dtype::bf16 ? bf16 : f16;
}

template <typename H>
const std::vector<LoraKernel>& expands_of(Dtype y) {
  static const auto bf16 = quantized_expands<H, __nv_bfloat16>();
  static const auto f16 = quantized_expands<H, __half>();
  static const auto f32 = quantized_expands<H, float>();
  if (y == Dtype::f32) return f32;
  return y == Dtype::bf16 ? bf16 : f16;
}

const std::vector<LoraKernel>& quantized_gated_of(Dtype y) {
  static const auto bf16 = quantized_gated_expands<__nv_bfloat16>();
  static const auto f16 = quantized_gated_expands<__half>();
  return y == Dtype::bf16 ? bf16 : f16;
}

const std::vector<LoraKernel>& quantized_kernels_of(const QuantizedLaunch& launch) {
  const QuantizedParams& p = launch.params;
  if (launch.op == LoraOp::linear) {
    return p.x_dtype == Dtype::bf16 ? linears_of<__nv_bfloat16>(p.y_dtype)
                                    : linears_of<__half>(p.y_dtype);
  }
  if (launch.op == LoraOp::shrink) return shrinks_of(p.x_dtype);
  if (is_gated(launch.op)) return quantized_gated_of(p.y_dtype);
  return is_quantized(p.h_dtype) ? expands_of<uint8_t>(p.y_dtype) : expands_of<float>(p.y_dtype);
}

}  // namespace

void launch_lora(const LoraLaunch& launch) {
  if (launch.path == LoraPath::generic)
    launch_generic_lora(launch);
  else
    launch_tensor_core(find(launch), launch.params, {launch.stream, launch.order});
}

void launch_quantized(const QuantizedLaunch& launch) {
  if (launch.path == LoraPath::generic) {
    launch_generic_quantized(launch);
  } else {
    const LoraKernel& kernel = find(quantized_kernels_of(launch), launch.variant);
    launch_tensor_core(kernel, launch.params, {launch.stream, launch.order});
  }
}

}  // namespace loratory::gpu
