#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/product/product_shape.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// NVIDIA's library of matrix products, loaded at run time: programs start without it.
class CublasLt {
 public:
  /// `file` as ProductOptions::cublaslt.
  /// Errors   std::runtime_error, one line: not found, with the places and what to set; older than
  ///          13.0; a function that it lacks.
  explicit CublasLt(const std::string& file);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// "13.1.0"
  std::string version() const;

  struct Algorithm {
    std::string name;  ///< id/tile/stages/split/reduction/swizzle/custom/inner/cluster, as numbers
    bool splits_k = false;
    std::array<uint64_t, 8> data{};  ///< the library's own
  };
  /// What its heuristics offer for M tokens, the one it deems fastest first; at most 32. Without
  /// `may_split` none that sums K in parts.
  std::vector<Algorithm> algorithms(const ProductShape& shape, int64_t num_tokens, bool may_split,
                                    size_t workspace_bytes) const;

  struct Workspace {
    void* data = nullptr;
    size_t bytes = 0;
  };
  /// False: launched nothing, as the library has this algorithm for other M only. May be captured.
  /// Errors   std::runtime_error: the library's status.
  bool run(const ProductShape& shape, const Algorithm& algorithm, const ProductTensors& tensors,
           Workspace workspace, CUstream_st* stream) const;

 private:
  struct Functions;
  std::unique_ptr<Functions> functions_;
};

}  // namespace loratory::gpu
