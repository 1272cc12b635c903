#pragma once

#include <cstdint>
#include <vector>

#include "gpu/model/batch_view.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "reference/numerics/tensor.hpp"
#include "suite.hpp"

// What the properties of the kernels of a model share: numbers, batches, and how a result is
// judged.

namespace loratory::gpu {

/// One of the dtypes of a model.
reference::Dtype model_dtype(const Trial& trial, uint64_t index);

/// Uniform in (-1, 1), the same for a seed and an index.
double unit_number(uint64_t seed, uint64_t index);

/// [rows, columns] of unit numbers times `scale`, rounded; rows lie `gap` numbers further apart
/// than they are long, and what lies between them is NaN.
reference::Tensor random_matrix(reference::Dtype dtype, int64_t rows, int64_t columns,
                                uint64_t seed, double scale = 1, int64_t gap = 0);
/// The same sizes, NaN everywhere.
reference::Tensor poisoned(const reference::Tensor& like);
/// The rows, side by side without gaps.
reference::Tensor rows_of(const reference::Tensor& from, const std::vector<int64_t>& rows);

/// Fails the test if an element of `got` is further from exact[i] than bound[i]; `got` has one row
/// for each row of numbers. The worst error over its bound.
struct Expected {
  std::vector<double> exact, bound;  ///< [rows][columns]
};
double judged(const reference::Tensor& got, const Expected& expected);

/// A step of random rows: prompts, chunks and single tokens, padding between them or not.
struct StepCase {
  int32_t num_rows = 0, max_blocks = 0, block_size = 0;
  int64_t num_blocks = 0;
  std::vector<int32_t> token_ids, positions, token_rows, row_starts, contexts, block_tables;
  std::vector<int32_t> last_sampled;

  int64_t num_tokens() const { return int64_t(token_ids.size()); }
  /// Where the K and V of a token begin in a tensor [num_blocks, kv_heads, block_size, head_dim].
  int64_t block_of(int64_t token) const;
  int64_t place_of(int64_t token) const { return positions[size_t(token)] % block_size; }
  /// The step that has this token alone.
  StepCase alone(int64_t token) const;
};
StepCase step_case(const Trial& trial, int64_t most_tokens, int64_t vocab);

/// A step on the device.
class StepOnGpu {
 public:
  explicit StepOnGpu(const StepCase& step);
  const BatchView& view() const { return view_; }

 private:
  std::vector<DeviceBuffer> buffers_;
  BatchView view_;

  const int32_t* keep(const std::vector<int32_t>& values);
};

}  // namespace loratory::gpu
