#pragma once

#include <vector>

#include "tests/gpu/support/attention_batch.hpp"

// A decode step whose heads are not rotated yet: what rotary() takes, and attention that does its
// work.

namespace loratory::gpu {

class RotaryStep {
 public:
  /// `batch` has one token a row. In the blocks, keys and values of these tokens are NaN.
  RotaryStep(const AttentionBatch& batch, bool has_norms, int64_t gap);

  enum Role : uint8_t { kQkv, kKeys, kValues, kCos, kSin, kQNorm, kKNorm, kNumTensors };
  const reference::Tensor& tensor(Role which) const { return tensors_[which]; }
  RotaryArgs args(const DeviceView (&views)[kNumTensors]) const;
  /// The query's part of q|k|v.
  DeviceView query(const DeviceView& qkv) const;
  /// Of every token, 0 for padding.
  std::vector<int32_t> positions() const;
  /// Row of a head of a row's own token in the tensors of keys and values.
  int64_t newest(size_t row, int64_t kv_head) const;
  double eps() const { return 1e-3; }

 private:
  const AttentionBatch& batch_;
  bool has_norms_;
  std::vector<reference::Tensor> tensors_;

  void fill_heads();
  void fill_tables();
};

}  // namespace loratory::gpu
