#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "gpu/kernels/generic_lora.hpp"
#include "gpu/kernels/lora_kernel_table.cuh"
#include "gpu/kernels/lora_launch.hpp"
#include "gpu/kernels/lora_work.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
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

/// A shrink has no y.
const std::vector<LoraKernel>& kernels_of(LoraStage stage, const LoraDtypes& dtypes) {
  return kernels_of(dtypes.weight, stage == LoraStage::shrink ? dtypes.weight : dtypes.y);
}

[[noreturn]] void refuse(const LoraLaunch& launch, const std::string& why) {
  throw InputError(std::string(name(launch.stage)) + ": variant", why);
}

const LoraKernel& find(const LoraLaunch& launch) {
  if (launch.variant.needs_wgmma() && !has_wgmma()) {
    refuse(launch, "has wgmma, this GPU has not: it is no sm_90");
  }
  if (launch.variant.cluster > 1 && !has_clusters()) {
    refuse(launch, "has clusters, this GPU has not: it is before sm_90");
  }
  for (const LoraKernel& kernel : kernels_of(launch.stage, launch.dtypes)) {
    if (kernel.stage == launch.stage && kernel.variant == launch.variant) return kernel;
  }
  refuse(launch, "has no kernel");
}

/// As many clusters as the GPU holds at once: a kernel's loop takes what is more.
struct Residency {
  int shared_bytes = 0;
  int num_clusters = 0;
  int num_sms = 0;
};

Residency make_resident(const LoraKernel& kernel, int h_width) {
  Residency out{.shared_bytes = kernel.shared_bytes(h_width)};
  int device = 0, most_shared_bytes = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaDeviceGetAttribute(&out.num_sms, cudaDevAttrMultiProcessorCount, device));
  LORATORY_CUDA_CHECK(
      cudaDeviceGetAttribute(&most_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (out.shared_bytes > most_shared_bytes) {
    throw InputError(
        std::string(name(kernel.stage)) + ": variant",
        "needs " + std::to_string(out.shared_bytes) + " bytes of shared memory for this layer");
  }
  // For all layers at once: one of another rank launches the same kernel.
  LORATORY_CUDA_CHECK(cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes));
  if (kernel.variant.cluster == 1) {
    int ctas = 0;
    LORATORY_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &ctas, kernel.function, kernel.num_threads, size_t(out.shared_bytes)));
    out.num_clusters = out.num_sms * std::max(1, ctas);
    return out;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(kernel.variant.cluster));
  config.blockDim = dim3(unsigned(kernel.num_threads));
  config.dynamicSmemBytes = size_t(out.shared_bytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(kernel.variant.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  LORATORY_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&out.num_clusters, kernel.function, &config));
  out.num_clusters = std::max(1, out.num_clusters);
  return out;
}

/// Asked of the driver once for each kernel, layer shape and device: launches are asked for in
/// graphs and on hot paths.
Residency residency_of(const LoraKernel& kernel, int h_width) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, int>, Residency> known;
  int device = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(kernel.function, h_width, device);
  const auto place = known.find(key);
  if (place != known.end()) return place->second;
  return known.emplace(key, make_resident(kernel, h_width)).first->second;
}

void launch_tensor_core(const LoraLaunch& launch) {
  const LoraKernel& kernel = find(launch);
  const Residency residency = residency_of(kernel, launch.params.h_width);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  LinearParams params = launch.params;
  params.num_sms = uint32_t(residency.num_sms);
  const int64_t num_clusters =
      std::min<int64_t>(residency.num_clusters, most_clusters(launch.stage, params));
  config.gridDim = dim3(unsigned(num_clusters * kernel.variant.cluster));
  config.blockDim = dim3(unsigned(kernel.num_threads));
  config.dynamicSmemBytes = size_t(residency.shared_bytes);
  config.stream = launch.stream;
  config.attrs = attributes;
  if (kernel.variant.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(kernel.variant.cluster), 1, 1};
  }
  if (launch.order == LaunchOrder::overlaps_previous && has_clusters()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {&params};
  LORATORY_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel.function, arguments));
}

}  // namespace

void launch_lora(const LoraLaunch& launch) {
  if (launch.path == LoraPath::generic)
    launch_generic_lora(launch);
  else
    launch_tensor_core(launch);
}

std::vector<LoraVariant> lora_variants(LoraStage stage, const LoraDtypes& dtypes) {
  std::vector<LoraVariant> out;
  for (const LoraKernel& kernel : kernels_of(stage, dtypes)) {
    const bool can_be_launched = (kernel.variant.cluster == 1 || has_clusters()) &&
                                 (!kernel.variant.needs_wgmma() || has_wgmma());
    if (kernel.stage == stage && can_be_launched) out.push_back(kernel.variant);
  }
  if (stage != LoraStage::linear) return out;
  for (const LoraVariant& v : lora_variants(LoraStage::shrink, dtypes)) {
    out.push_back(v);
    out.back().launches = 2;
  }
  return out;
}

}  // namespace loratory::gpu
