#pragma once

#include <functional>

#include "gpu/runtime/cuda_handles.hpp"

namespace loratory::gpu {

/// Launches captured on a stream of their own. Inside a graph none of them waits for the host.
class CapturedGraph {
 public:
  explicit CapturedGraph(const std::function<void(CUstream_st*)>& enqueue);

  /// Launches them, and waits for their end. First it waits for all copies and kernels under way:
  /// the graph's stream does not wait for the default one, and a copy may end after it returns.
  void replay() const;

 private:
  Stream stream_ = make_stream();
  Graph graph_;
};

}  // namespace loratory::gpu
