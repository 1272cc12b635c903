#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/support/layer_case.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "guarded_tensor.hpp"

namespace loratory::gpu {

/// A half of a linear layer.
LoraLayerDesc with_op(LoraLayerDesc linear, LoraOp op);

/// Every variant of an operation that this GPU can launch.
std::vector<LoraVariant> variants_here(LoraOp op);

/// One way to compute a layer. Every one of them gives the same bits.
struct KernelUnderTest {
  std::string name;
  std::string expand = "";  ///< of a pair of two operations: the second
  int32_t segment_size = 0;
  std::function<void(const DeviceView& x, const DeviceView& y, const SegmentView& segments,
                     CUstream_st* stream, LaunchOrder order)>
      launch;
};

/// Segments that build() would not make: any cut, any order of segments and of tokens in a slot.
struct Cut {
  std::vector<Segment> segments;
  std::vector<int32_t> token_indices;
};
Cut random_cut(const std::vector<int32_t>& slots, int32_t segment_size, uint64_t seed);

/// Who makes the segments of a step.
enum class SegmentsFrom : uint8_t { host, device };

/// The weights of a case on the GPU; they stay there.
class LayerOnGpu {
 public:
  explicit LayerOnGpu(const reference::LayerData& data);

  /// What the rules choose, then every kernel that there is for this layer and tensors of
  /// these strides.
  std::vector<KernelUnderTest> kernels(const reference::LayerBatch& batch) const;

  /// y after one launch on a batch of its own. Fails the test if anything but covered elements was
  /// written: uncovered ones, what lies between and around rows, x, weights, canaries.
  reference::Tensor run(const KernelUnderTest& kernel, const reference::LayerBatch& batch,
                        SegmentsFrom from = SegmentsFrom::host) const;
  reference::Tensor run(const KernelUnderTest& kernel, const reference::LayerBatch& batch,
                        const Cut& cut) const;
  /// By no more clusters than one segment has work for, however many segments there are.
  reference::Tensor run_on_few_clusters(const KernelUnderTest& kernel,
                                        const reference::LayerBatch& batch) const;

  /// Other weights, ranks and scalings, in place, as loading an adapter does.
  void write(const reference::LayerData& data);
  const LoraLayer& layer() const { return *layer_; }

 private:
  const reference::LayerData* data_;
  std::vector<GuardedTensor> weights_;  // a0, b0, a1, b1, ...
  std::vector<DeviceBuffer> tables_;    // ranks0, scalings0, ...
  DeviceBuffer workspace_, split_sums_;
  std::unique_ptr<LoraLayer> layer_;

  KernelUnderTest kernel_of(const LoraVariant& variant) const;
  std::vector<KernelUnderTest> kernels_of_halves(const DeviceView& x, const DeviceView& y) const;
  bool fits(const KernelUnderTest& kernel, const DeviceView& x, const DeviceView& y) const;
  int64_t shift() const { return data_->shape.padded && !data_->shape.aligned ? 1 : 0; }
  LoraLayerDesc desc() const;
  reference::Tensor launch(const KernelUnderTest& kernel, const reference::LayerBatch& batch,
                           const SegmentView& segments) const;
  void expect_inputs_intact(const GuardedTensor& x, const reference::LayerBatch& batch) const;
};

}  // namespace loratory::gpu
