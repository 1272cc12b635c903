#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "reference/moe/moe_layer.hpp"

namespace loratory::reference {

/// What the numbers of a case are.
enum class MoeFill : uint8_t {
  integers,  ///< -1, 0, 1, mostly 0; scalings and router weights powers of two
  reals,     ///< in (-2, 2)
};

/// A batch on one mixture-of-experts layer: a few sizes and a seed, from which everything else
/// follows. Base tokens, slots that are off, adapters without some experts are common.
struct MoeCase {
  uint64_t seed = 0;
  int num_tokens = 0, hidden = 1, inner = 1, num_experts = 1, k = 1, max_loras = 1, max_rank = 1;
  int dtype = 0;       ///< f32, f16, bf16
  int mode = 0;        ///< 0..15, all modes
  int activation = 0;  ///< of Activation

  NumericMode mode_value() const;
};

/// "REPRO: LORATORY_CASE=... <this binary> --gtest_filter=<this test>".
std::ostream& operator<<(std::ostream& out, const MoeCase& c);

/// The case that LORATORY_CASE names, or a random one; logs it and classifies its corners.
/// hidden, inner and max_rank are multiples of `multiple`, num_experts too.
MoeCase any_moe_case(int multiple = 1);

/// The tensors of a case, owned. Everything that must not be read is NaN: beyond a rank, in slots
/// and experts of rank 0.
struct MoeData {
  MoeData(const MoeCase& c, MoeFill fill);

  /// Reads this object's tensors.
  MoeArgs args() const;
  MoeLora lora() const;
  /// The slices of `moe` on `y` [T·k, ...], from x by token or by row.
  ExpertLoraArgs lora_args(const std::vector<ExpertLoraSlice>& slices, const Tensor& x,
                           Tensor& y) const;
  int32_t rank(size_t slice, int32_t slot, int32_t expert) const;
  /// The slot if it is on, else -1.
  int32_t active_slot(int64_t token) const;

  MoeCase c;
  Tensor x, w13, w2;
  std::vector<int32_t> experts, expert_map, slots, adapter_enabled;
  std::vector<float> router_weights;
  std::vector<Tensor> a, b;  ///< gate, up, down; of gate and down alone if not gated
  std::vector<std::vector<int32_t>> ranks;
  std::vector<std::vector<float>> scalings;
  bool gated = true, weight_on_input = false;

 private:
  int64_t pick(uint64_t stream, int64_t index, int64_t count) const;
  void add_experts(int64_t t, MoeFill fill);
  void add_slice(int64_t num_in, int64_t num_out, MoeFill fill);
};

}  // namespace loratory::reference
