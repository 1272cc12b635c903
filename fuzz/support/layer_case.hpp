#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "check/cases/case_data.hpp"
#include "fuzz/support/lora_case.hpp"
#include "reference/lora/linear.hpp"

namespace loratory::reference {

using check::Mapping;

/// What a case may cost; sizes are drawn first and cut to this.
struct LayerLimits {
  int64_t num_products = int64_t(1) << 28;  ///< T·max(R, 16)·(S·K + N)
  int64_t weight_bytes = int64_t(1) << 26;  ///< of A and B, all slots
};

/// A batch on one packed layer of a size that engines serve: everything follows from the seed and
/// the limits. LoraCase is its small sibling, for properties on the CPU.
struct LayerCase {
  uint64_t seed = 0;
  int64_t num_tokens = 0, num_in = 1;
  std::vector<int64_t> num_out;  ///< of each slice
  int32_t max_loras = 1, max_rank = 1, min_rank = 0;
  Dtype weight = Dtype::bf16, out = Dtype::bf16;  ///< x has the dtype of the weights
  Mapping mapping = Mapping::uniform;
  Fill fill = Fill::reals;
  NumericMode mode{};
  int64_t offset_start = 0;
  bool add_inputs = true;
  bool aligned = true;          ///< every size and stride a multiple of 8, and the storage aligned
  bool padded = false;          ///< rows of all tensors lie further apart than they are long
  bool fill_all_slots = false;  ///< those without a token too

  int64_t num_columns() const;  ///< of y: the slices end there, or shortly before
};

/// Awkward K and ranks, N odd and even, up to 8 slices of unequal width, T of 0 to 8192, up to
/// 2,000 slots.
LayerCase layer_case(uint64_t seed, const LayerLimits& limits);

std::string describe(const LayerCase& c);

/// One slice for all slots. Beyond the rank, between rows, and in slots without a token: NaN.
struct LayerSlice {
  Tensor a, b;  ///< [L, R, K] and [L, N_i, R]
  std::vector<int32_t> ranks;
  std::vector<float> scalings;
};

/// Tokens of a step. Rows of x that nothing may read are NaN. y holds anything at all where it is
/// not covered, and NaN where it is if its old value must not be read.
struct LayerBatch {
  std::vector<int32_t> slots;
  Tensor x, y;

  int64_t num_tokens() const { return int64_t(slots.size()); }
};

/// Columns of y that one slice covers.
struct ColumnRange {
  int64_t begin, end;
};

/// The tensors of a case, owned. Filling is parallel and the same for any number of threads.
struct LayerData {
  explicit LayerData(const LayerCase& c);

  /// Of the reference; reads the weights of this object, reads and writes `of`.
  LinearArgs args(LayerBatch& of) const;
  /// Another step on these weights: x and y follow from the seed.
  LayerBatch make_batch(std::vector<int32_t> slots, uint64_t seed) const;
  /// y of the reference. Cost O(T·S·R·(K + N)).
  Tensor run(const LayerBatch& of) const;
  ColumnRange columns(size_t slice) const;
  /// The adapter of slot s moves to slot to[s]; the batch stays as it is.
  void move_slots(const std::vector<int64_t>& to);
  /// The adapter that `from` has in a slot comes into that slot.
  void copy_slot(const LayerData& from, int64_t slot);
  int32_t rank(int32_t slot, size_t slice) const { return slices[slice].ranks[size_t(slot)]; }
  bool is_covered(int32_t slot, size_t slice) const { return slot >= 0 && rank(slot, slice) > 0; }

  LayerCase shape;
  std::vector<LayerSlice> slices;
  LayerBatch batch;
};

/// The slots of a step of `c`'s tokens.
std::vector<int32_t> draw_slots(const LayerCase& c, Mapping mapping, uint64_t seed);

/// The tokens `rows` of a batch, as a batch with the same strides.
LayerBatch rows_of(const LayerBatch& batch, const std::vector<int64_t>& rows);

/// Bytes of row `t`: its columns, not what lies between rows.
std::span<const std::byte> row_bytes(const Tensor& t, int64_t row);
bool same_row(const Tensor& left, int64_t l, const Tensor& right, int64_t r);

/// `before` with the covered elements of `after`: equals `after` if and only if nothing else was
/// written.
Tensor covered_part(const LayerData& data, const LayerBatch& before, const Tensor& after);

/// Multiplies every number of a tensor of 16 bits that is not NaN.
void scale_numbers(Tensor& t, double factor);

using check::shuffled;

}  // namespace loratory::reference
