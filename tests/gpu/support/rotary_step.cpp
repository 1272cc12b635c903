#include "tests/gpu/support/rotary_step.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace loratory::gpu {

using reference::Dtype;
using reference::Tensor;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

BatchView on_host(const AttentionBatch& batch) {
  const int32_t* arrays[AttentionBatch::kNumArrays];
  for (int i = 0; i < AttentionBatch::kNumArrays; ++i) {
    arrays[i] = batch.array(AttentionBatch::Array(i)).data();
  }
  return batch.batch(arrays);
}

}  // namespace

RotaryStep::RotaryStep(const AttentionBatch& batch, bool has_norms, int64_t gap)
    : batch_(batch), has_norms_(has_norms) {
  const AttentionShape& s = batch.sequences().shape;
  const int64_t num_tokens = on_host(batch).num_tokens;
  const int64_t columns = (int64_t{s.num_heads} + 2 * s.kv_heads) * s.head_dim;
  const auto& contexts = batch.array(AttentionBatch::kContexts);
  const int64_t num_positions = std::max(1, *std::ranges::max_element(contexts));
  const Tensor angles(Dtype::f32, {num_positions, s.head_dim / 2});
  const Tensor norm(s.dtype, {1, s.head_dim});
  tensors_ = {Tensor(s.dtype, {num_tokens, columns}, {columns + gap, 1}),
              batch.tensor(AttentionBatch::kKeys),
              batch.tensor(AttentionBatch::kValues),
              angles,
              angles,
              norm,
              norm};
  fill_heads();
  fill_tables();
}

// Padding is NaN.
void RotaryStep::fill_heads() {
  const Sequences& s = batch_.sequences();
  const int64_t d = s.shape.head_dim, num_q = s.shape.num_heads * d, num_k = s.shape.kv_heads * d;
  Tensor& qkv = tensors_[kQkv];
  for (int64_t t = 0; t < qkv.shape()[0]; ++t) {
    for (int64_t i = 0; i < qkv.shape()[1]; ++i) qkv.set(kNan, t, i);
  }
  for (size_t row = 0; row < batch_.chunks().size(); ++row) {
    const Chunk& c = batch_.chunks()[row];
    if (c.sequence < 0) continue;
    const int64_t token = batch_.first_token(row), position = c.first;
    const auto sequence = size_t(c.sequence);
    const auto put = [&](const std::vector<float>& from, int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        qkv.set(double{from[size_t(position * count + i)]}, token, first + i);
      }
    };
    put(s.q[sequence], 0, num_q);
    put(s.k[sequence], num_q, num_k);
    put(s.v[sequence], num_q + num_k, num_k);
    for (int64_t n = 0; n < num_k; ++n) {
      for (const Role role : {kKeys, kValues}) {
        tensors_[role].set(kNan, newest(row, n / d), n % d);
      }
    }
  }
}

void RotaryStep::fill_tables() {
  Tensor &cos = tensors_[kCos], &sin = tensors_[kSin];
  for (int64_t p = 0; p < cos.shape()[0]; ++p) {
    for (int64_t i = 0; i < cos.shape()[1]; ++i) {
      const double angle = double(p) * std::pow(1e4, -double(i) / double(cos.shape()[1]));
      cos.set(std::cos(angle), p, i);
      sin.set(std::sin(angle), p, i);
    }
  }
  for (int64_t i = 0; i < tensors_[kQNorm].shape()[1]; ++i) {
    tensors_[kQNorm].set(double(64 + i * 37 % 101) / 128, 0, i);
    tensors_[kKNorm].set(double(64 + i * 53 % 97) / 128, 0, i);
  }
}

RotaryArgs RotaryStep::args(const DeviceView (&views)[kNumTensors]) const {
  const AttentionShape& s = batch_.sequences().shape;
  const BatchView batch = on_host(batch_);
  return {.qkv = views[kQkv],
          .num_heads = s.num_heads,
          .cos = views[kCos],
          .sin = views[kSin],
          .q_norm = has_norms_ ? views[kQNorm].data : nullptr,
          .k_norm = has_norms_ ? views[kKNorm].data : nullptr,
          .eps = eps(),
          .kv = {.dtype = s.dtype,
                 .k = views[kKeys].data,
                 .v = views[kValues].data,
                 .num_blocks = tensors_[kKeys].shape()[0] / (s.kv_heads * batch.block_size),
                 .kv_heads = s.kv_heads,
                 .block_size = batch.block_size,
                 .head_dim = s.head_dim}};
}

DeviceView RotaryStep::query(const DeviceView& qkv) const {
  const AttentionShape& s = batch_.sequences().shape;
  DeviceView out = qkv;
  out.shape[1] = int64_t{s.num_heads} * s.head_dim;
  return out;
}

std::vector<int32_t> RotaryStep::positions() const {
  std::vector<int32_t> out(size_t(on_host(batch_).num_tokens), 0);
  for (size_t row = 0; row < batch_.chunks().size(); ++row) {
    const Chunk& c = batch_.chunks()[row];
    if (c.sequence >= 0) out[size_t(batch_.first_token(row))] = c.first;
  }
  return out;
}

int64_t RotaryStep::newest(size_t row, int64_t kv_head) const {
  const BatchView batch = on_host(batch_);
  const int64_t position = batch.contexts[row] - 1, size = batch.block_size;
  const int64_t block = batch.block_tables[int64_t(row) * batch.max_blocks + position / size];
  return (block * batch_.sequences().shape.kv_heads + kv_head) * size + position % size;
}

}  // namespace loratory::gpu
