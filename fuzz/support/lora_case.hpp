#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "check/cases/draw.hpp"
#include "check/cases/fill.hpp"
#include "reference/lora/linear.hpp"

namespace loratory::reference {

using check::Fill;

/// A batch on one packed layer: a few sizes and a seed. Slots, ranks, scalings, column counts and
/// all numbers follow from them; slots without tokens, empty slots and absent slices are common.
struct LoraCase {
  uint64_t seed = 0;
  int num_tokens = 0, num_in = 1, num_slices = 1, max_loras = 1, max_rank = 1;
  int dtype = 0;  ///< f32, f16, bf16
  int mode = 0;   ///< 0..15, all modes

  Dtype dtype_value() const { return Dtype(dtype); }
  NumericMode mode_value() const;
};

/// "REPRO: LORATORY_CASE=... <this binary> --gtest_filter=<this test>".
std::ostream& operator<<(std::ostream& out, const LoraCase& c);

/// The case that LORATORY_CASE names, or a random one; logs it and classifies its corners.
LoraCase any_lora_case();

using check::random_bits;

/// The tensors of a case, owned.
struct LoraData {
  LoraData(const LoraCase& c, Fill fill);

  /// Reads and writes this object's tensors.
  LinearArgs args();
  /// y of lora_linear(args()); this object keeps its base.
  Tensor run() const;
  Tensor run(NumericMode mode) const;

  int32_t slot(int64_t t) const { return slots[size_t(t)]; }
  int64_t num_columns() const { return y.shape()[1]; }
  bool covered(int64_t t, int64_t column) const;

  Tensor x, y;
  std::vector<int32_t> slots;
  std::vector<int64_t> num_out;  ///< of each slice
  std::vector<Tensor> a, b;      ///< of each slice; beyond the rank and in empty slots: NaN
  std::vector<std::vector<int32_t>> ranks;
  std::vector<std::vector<float>> scalings;
  NumericMode mode;
};

/// The tokens `order` of the batch, as a batch.
LoraData with_tokens(const LoraData& data, const std::vector<int64_t>& order);

/// Reads number `index` of a tensor without gaps.
double number(const Tensor& t, int64_t index);
void set_number(Tensor& t, int64_t index, double value);
int64_t num_numbers(const Tensor& t);

bool same_bits(const Tensor& left, const Tensor& right);

}  // namespace loratory::reference
