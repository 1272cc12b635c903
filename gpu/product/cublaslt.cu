#include "gpu/product/cublaslt.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace loratory::gpu {

using reference::Dtype;

namespace {

constexpr int kMostAlgorithms = 32;
constexpr size_t kOldest = 130000;
constexpr const char* kVariable = "LORATORY_CUBLASLT";

// In the order in which they are tried. The loader knows the first from LD_LIBRARY_PATH and
// ld.so.conf.
constexpr const char* kPlaces[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                   "/usr/local/cuda-13/lib64/libcublasLt.so.13"};

void* open_library(const std::string& file) {
  const char* const variable = std::getenv(kVariable);
  const std::string one = !file.empty() ? file : variable != nullptr ? variable : "";
  std::string tried;
  const auto open = [&tried](const char* place) {
    tried += (tried.empty() ? "" : ", ") + std::string(place);
    return dlopen(place, RTLD_NOW | RTLD_LOCAL);
  };
  if (!one.empty()) {
    if (void* const library = open(one.c_str())) return library;
  } else {
    for (const char* const place : kPlaces) {
      if (void* const library = open(place)) return library;
    }
  }
  throw std::runtime_error("cuBLASLt: not found as " + tried + "; set " + kVariable +
                           " to the path of libcublasLt.so.13 (CUDA 13 has it in lib64, PyTorch "
                           "in nvidia/cu13/lib), or to none for loratory's own kernels alone");
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error("cuBLASLt: " + std::string(what) + ": status " +
                           std::to_string(int(status)));
}

cudaDataType_t type_of(Dtype dtype) {
  if (dtype == Dtype::f32) return CUDA_R_32F;
  return dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// The library's views of one product. It counts by columns: y^T [N, M] = (W^T)^T x^T.
struct Call {
  cublasLtMatmulDescOpaque_t matmul;
  cublasLtMatrixLayoutOpaque_t w, x, y;
};

int64_t row_stride(const DeviceView& view) {
  return view.shape[0] > 1 ? view.strides[0] : view.shape[1];
}

}  // namespace

struct CublasLt::Functions {
  void* library;
  cublasLtHandle_t handle = nullptr;

#define LORATORY_FUNCTION(name) decltype(&::name) name = find<decltype(&::name)>(#name)
  LORATORY_FUNCTION(cublasLtCreate);
  LORATORY_FUNCTION(cublasLtDestroy);
  LORATORY_FUNCTION(cublasLtGetVersion);
  LORATORY_FUNCTION(cublasLtMatmul);
  LORATORY_FUNCTION(cublasLtMatmulAlgoGetHeuristic);
  LORATORY_FUNCTION(cublasLtMatmulAlgoConfigGetAttribute);
  LORATORY_FUNCTION(cublasLtMatmulDescInit_internal);
  LORATORY_FUNCTION(cublasLtMatmulDescSetAttribute);
  LORATORY_FUNCTION(cublasLtMatrixLayoutInit_internal);
  LORATORY_FUNCTION(cublasLtMatmulPreferenceInit_internal);
  LORATORY_FUNCTION(cublasLtMatmulPreferenceSetAttribute);
#undef LORATORY_FUNCTION

  explicit Functions(void* opened) : library(opened) {}

  template <typename Function>
  Function find(const char* name) const {
    void* const found = dlsym(library, name);
    if (found == nullptr) {
      throw std::runtime_error("cuBLASLt: the library has no " + std::string(name));
    }
    return reinterpret_cast<Function>(found);
  }

  void layout(cublasLtMatrixLayoutOpaque_t& out, const DeviceView& view) const {
    check(cublasLtMatrixLayoutInit_internal(&out, sizeof out, type_of(view.dtype),
                                            uint64_t(view.shape[1]), uint64_t(view.shape[0]),
                                            row_stride(view)),
          "cublasLtMatrixLayoutInit");
  }
  template <typename T>
  void set(Call& call, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check(cublasLtMatmulDescSetAttribute(&call.matmul, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  Call call(const ProductShape& shape, const ProductTensors& tensors) const {
    Call out{};
    check(cublasLtMatmulDescInit_internal(&out.matmul, sizeof out.matmul, CUBLAS_COMPUTE_32F,
                                          CUDA_R_32F),
          "cublasLtMatmulDescInit");
    set(out, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (shape.has_bias) {
      set(out, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(out, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(type_of(shape.weight)));
      set(out, CUBLASLT_MATMUL_DESC_BIAS_POINTER, tensors.bias);
    }
    layout(out.w, tensors.weight);
    layout(out.x, tensors.x);
    layout(out.y, tensors.y);
    return out;
  }

  template <typename T>
  T config(const cublasLtMatmulAlgo_t& algorithm,
           cublasLtMatmulAlgoConfigAttributes_t which) const {
    T value{};
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof value, &written);
    return value;
  }
  Algorithm describe(const cublasLtMatmulAlgo_t& from) const {
    Algorithm out;
    const auto split = config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    const auto reduction = config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    const uint32_t parts[] = {config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_ID),
                              config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_TILE_ID),
                              config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                              split,
                              reduction,
                              config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                              config<uint32_t>(from, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                              config<uint16_t>(from, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
                              config<uint16_t>(from, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)};
    for (const uint32_t part : parts) {
      out.name += (out.name.empty() ? "" : "/") + std::to_string(part);
    }
    out.splits_k = split > 1 || reduction != CUBLASLT_REDUCTION_SCHEME_NONE;
    static_assert(sizeof out.data == sizeof from.data);
    std::memcpy(out.data.data(), from.data, sizeof from.data);
    return out;
  }
};

CublasLt::CublasLt(const std::string& file) {
  functions_ = std::make_unique<Functions>(open_library(file));
  if (functions_->cublasLtGetVersion() < kOldest) {
    throw std::runtime_error("cuBLASLt: is version " + version() + ", needs 13.0 or later");
  }
  check(functions_->cublasLtCreate(&functions_->handle), "cublasLtCreate");
}

// The library itself stays loaded: it owns threads and state of the process.
CublasLt::~CublasLt() {
  if (functions_->handle != nullptr) functions_->cublasLtDestroy(functions_->handle);
}

std::string CublasLt::version() const {
  const size_t v = functions_->cublasLtGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

std::vector<CublasLt::Algorithm> CublasLt::algorithms(const ProductShape& shape, int64_t num_tokens,
                                                      bool may_split,
                                                      size_t workspace_bytes) const {
  const Functions& f = *functions_;
  const ProductTensors tensors{
      .weight = device_view(shape.weight, nullptr, {shape.num_out, shape.num_in}),
      .x = device_view(shape.weight, nullptr, {num_tokens, shape.num_in}),
      .y = device_view(shape.out, nullptr, {num_tokens, shape.num_out})};
  Call call = f.call(shape, tensors);
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(f.cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference),
        "cublasLtMatmulPreferenceInit");
  const uint64_t bytes = workspace_bytes;
  check(f.cublasLtMatmulPreferenceSetAttribute(
            &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
        "cublasLtMatmulPreferenceSetAttribute");
  const uint32_t schemes =
      may_split ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE;
  check(f.cublasLtMatmulPreferenceSetAttribute(
            &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes),
        "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t results[kMostAlgorithms];
  int count = 0;
  const cublasStatus_t status =
      f.cublasLtMatmulAlgoGetHeuristic(f.handle, &call.matmul, &call.w, &call.x, &call.y, &call.y,
                                       &preference, kMostAlgorithms, results, &count);
  std::vector<Algorithm> out;
  // Which of the two says that it has no kernel for these dtypes, sizes or bias, differs.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return out;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < count; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    Algorithm algorithm = f.describe(results[i].algo);
    if (may_split || !algorithm.splits_k) out.push_back(std::move(algorithm));
  }
  return out;
}

bool CublasLt::run(const ProductShape& shape, const Algorithm& algorithm,
                   const ProductTensors& tensors, Workspace workspace, CUstream_st* stream) const {
  const Functions& f = *functions_;
  Call call = f.call(shape, tensors);
  cublasLtMatmulAlgo_t algo;
  std::memcpy(algo.data, algorithm.data.data(), sizeof algo.data);
  const float one = 1, zero = 0;
  const cublasStatus_t status =
      f.cublasLtMatmul(f.handle, &call.matmul, &one, tensors.weight.data, &call.w, tensors.x.data,
                       &call.x, &zero, tensors.y.data, &call.y, tensors.y.data, &call.y, &algo,
                       workspace.data, workspace.bytes, stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  if (status != CUBLAS_STATUS_SUCCESS) {
    check(status, ("cublasLtMatmul of " + gpu::describe(shape) + " by " + algorithm.name).c_str());
  }
  return true;
}

}  // namespace loratory::gpu
