#pragma once

#include <cstdint>
#include <vector>

#include "gpu/kernels/lora_params.hpp"
#include "gpu/layout/segments.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/numerics/numeric_mode.hpp"

struct CUstream_st;

// LoRA on linear layers, on the GPU. Letters as in reference/lora/linear.hpp, which says what is
// computed; here is how it is asked for.
//
// Covered  as there: nothing else is read or written.
// Repeats  bitwise: row t depends on x[t], its slot's weights and the layer alone. Not on the
// batch,
//          its segments, the variant of the kernel, the stream, or whether a graph replays it.
// Bound    Arithmetic{mode with h = split2 in place of fp32, unit = 2^-22} of error_bound.hpp.

namespace loratory::gpu {

/// One slice of a packed layer, for all slots. What the pointers show may change between launches
/// (an adapter is copied into a slot), the pointers may not.
struct LoraSliceDesc {
  DeviceView a;                     ///< [L, R, K], innermost stride 1
  DeviceView b;                     ///< [L, N_i, R], innermost stride 1
  const int32_t* ranks = nullptr;   ///< [L] on the device, each in [0, R]
  const float* scalings = nullptr;  ///< [L] on the device, finite
};

struct LoraLinearDesc {
  std::vector<LoraSliceDesc> slices;  ///< S, at most kMaxSlices
  int64_t offset_start = 0;           ///< first column of slice 0 in y
  bool add_inputs = true;
  reference::NumericMode mode{};  ///< h: fp32 (kept as split2), split2, or store_as_x; scale:
                                  ///< accumulator
};

/// How the kernel is cut for one launch. Any variant gives the same bits; they differ in speed.
struct LoraVariant {
  int rank_tiles;   ///< ranks at a time, in 16
  int token_tiles;  ///< tokens of a segment, in 8
  int cluster;      ///< CTAs that share a segment
  bool aligned;     ///< every access of x, A, B and y is a whole one of 8 or 16 bytes

  int segment_size() const { return 8 * token_tiles; }
  friend bool operator==(const LoraVariant&, const LoraVariant&) = default;
};

/// Every variant that has a kernel for these dtypes of weights and y; none in a build without CUDA.
std::vector<LoraVariant> lora_variants(reference::Dtype weight, reference::Dtype out);

/// The dispatch table: from what a captured graph keeps, the padded number of tokens among them.
LoraVariant choose_variant(int64_t num_tokens, int64_t max_rank, bool aligned);

/// When a launch may start.
enum class LaunchOrder : uint8_t {
  after_previous,  ///< as any kernel in a stream
  /// While the kernel before still runs (programmatic dependent launch): weights are fetched ahead,
  /// x and y only after it has ended. That kernel must not write A, B, ranks, scalings or segments.
  overlaps_previous,
};

/// What is left once everything is checked; in lora_launch.cu, the only part that needs CUDA.
struct LoraLaunch {
  LoraVariant variant;
  reference::Dtype weight, out;
  const LinearParams& params;
  CUstream_st* stream;
  LaunchOrder order;
};
/// Errors   InputError: no kernel of this variant. std::runtime_error: CUDA's name and text.
void launch_lora_linear(const LoraLaunch& launch);

/// The delta of one packed layer, checked once and launched every step.
class LoraLinear {
 public:
  /// Errors   InputError naming the argument: shapes, dtypes, strides or alignment that do not fit,
  ///          a mode that the kernel does not have.
  explicit LoraLinear(LoraLinearDesc desc);

  /// y += scaling · (x A^T) B^T for the tokens of `segments`, whose size is that of the variant.
  /// x [T, K] of the weights' dtype, y [T, >= columns] of the weights' dtype or f32.
  /// Never allocates, never waits; may be captured. Grid and arguments follow from the number of
  /// rows of x alone, so a replayed graph follows the segments that are on the device then.
  /// Errors   InputError for x, y or the segment size; std::runtime_error from CUDA.
  void launch(const DeviceView& x, const DeviceView& y, const SegmentView& segments,
              CUstream_st* stream, LaunchOrder order = LaunchOrder::after_previous) const;

  /// With another variant than the dispatch table's, for tests and tuners.
  void launch(const LoraVariant& variant, const DeviceView& x, const DeviceView& y,
              const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const;

  LoraVariant variant_for(const DeviceView& x, const DeviceView& y) const;
  int64_t num_columns() const { return num_columns_; }
  int64_t max_rank() const { return max_rank_; }

 private:
  LinearParams params(const DeviceView& x, const DeviceView& y, const SegmentView& segments) const;

  LoraLinearDesc desc_;
  LinearParams params_;  // all but x, y and segments
  int64_t max_rank_ = 0;
  int64_t num_columns_ = 0;
  bool weights_aligned_ = false;
};

}  // namespace loratory::gpu
