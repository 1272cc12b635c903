#pragma once

#include <vector>

#include "guarded_tensor.hpp"
#include "suite.hpp"
#include "tests/gpu/support/attention_batch.hpp"

namespace loratory::gpu {

/// A batch on the GPU.
class AttentionOnGpu : public AttentionBatch {
 public:
  AttentionOnGpu(const Sequences& sequences, std::vector<Chunk> chunks, const BatchLayout& layout);

  /// Enqueues build_work() and the launch; a captured graph may contain it.
  void enqueue(CUstream_st* stream) const;
  /// Enqueues them, waits and reads; fails if something was written around the results, or a
  /// padding token is not 0.
  reference::Tensor run() const;
  /// Results as they are now, after the device has finished.
  reference::Tensor read() const;

  /// Makes this batch another one of the same sizes, in place: what a graph sees when it is
  /// replayed.
  void become(const AttentionOnGpu& other) const;

 private:
  std::vector<GuardedTensor> on_gpu_;
  std::vector<DeviceBuffer> arrays_;
  DeviceBuffer workspace_;

  BatchView batch_on_gpu() const;
};

}  // namespace loratory::gpu
