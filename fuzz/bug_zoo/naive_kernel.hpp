#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "check/loratory_plugin.h"
#include "fuzz/bug_zoo/note.hpp"

namespace loratory::zoo {

/// What is computed at one time: a row of y (or h), a slice, and whose weights they meet.
struct At {
  int64_t row = 0;
  int64_t slice = 0;
  int64_t slot = 0;
  int64_t expert = 0;
  int64_t rank = 0;
};

/// A right kernel for host memory, one element after the other, in pieces that a wrong one
/// replaces. It takes every operation, layout and mode of loratory_plugin.h but linear on 8-bit x
/// by tensor, where rows depend on each other, and it is slow.
class NaiveKernel {
 public:
  explicit NaiveKernel(const LoratoryLayer& layer) : layer_(layer) {}
  virtual ~NaiveKernel() = default;

  virtual int64_t workspace_bytes(int64_t /*max_tokens*/) { return 0; }
  virtual void prepare(const LoratoryStep& /*step*/) {}
  virtual void weights_changed(int32_t /*slot*/) {}
  virtual void run(const LoratoryCall& call);

 protected:
  // --- which ---------------------------------------------------------------------------------
  virtual int64_t num_rows() const { return step().num_tokens * layer_.experts_per_token; }
  virtual int64_t slot_of(int64_t row) const;  ///< -1: nothing of the row is covered
  virtual int64_t expert_of(int64_t row) const;
  virtual int64_t row_of_x(int64_t row) const { return row / layer_.rows_per_x; }
  virtual int64_t token_id(int64_t row) const { return step().token_ids[row]; }
  virtual int64_t rank(int64_t slice, int64_t slot, int64_t expert) const;
  virtual double scaling(const At& at) const;
  virtual double router_weight(const At& at) const;
  virtual int64_t num_columns(int64_t slice) const { return layer_.slices[slice].num_out; }
  virtual int64_t first_column(int64_t slice) const;

  // --- numbers: bits times factor ------------------------------------------------------------
  virtual double x(const At& at, int64_t c) const;
  virtual double a(const At& at, int64_t j, int64_t c) const;
  virtual double b(const At& at, int64_t n, int64_t j) const;
  virtual double h(const At& at, int64_t j) const;
  virtual double a_factor(const At& at, int64_t j, int64_t c) const;
  virtual double b_factor(const At& at, int64_t n, int64_t j) const;
  virtual double x_factor(const At& at, int64_t c) const;
  virtual double h_factor(const At& at, int64_t j) const;
  virtual double base(const At& at, int64_t column) const;

  // --- arithmetic ----------------------------------------------------------------------------
  /// A sum of products; fp32, in order. Double where a factor belongs to the numbers.
  virtual double dot(std::span<const double> p, std::span<const double> q) const;
  virtual std::vector<double> shrink(const At& at) const;                          ///< [rank]
  virtual std::vector<double> between(const At& at, std::vector<double> h) const;  ///< mode.h
  /// h of 8-bit x, in groups that share a factor.
  virtual double factor_of(const At& at, std::span<const double> h) const;
  virtual double to_8_bits(double quotient) const;
  virtual double delta(const At& at, std::span<const double> h, int64_t n) const;
  virtual double finish(const At& at, int64_t column, double d) const;  ///< before y's rounding
  virtual void store(const At& at, int64_t column, double value) const;
  virtual void run_slice(const At& at);

  std::vector<double> quantised(const At& at, std::vector<double> h) const;
  const LoratoryCall& call() const { return *call_; }
  const LoratoryStep& step() const { return *step_; }
  const LoratorySlice& slice(const At& at) const { return layer_.slices[at.slice]; }
  bool has_experts() const { return layer_.operation >= LORATORY_OP_EXPERT_LINEAR; }
  bool is_shrink() const;
  bool is_expand() const;
  bool is_embedding() const { return layer_.operation == LORATORY_OP_EMBEDDING; }
  bool is_quantized() const { return layer_.weight_scales != LORATORY_SCALES_NONE; }
  /// Element [at.slot, at.expert, i, j] of a weight.
  double weight(const LoratoryTensor& tensor, const At& at, int64_t i, int64_t j) const;
  /// Factor of element [i, j] of a weight in blocks of n x k.
  double weight_factor(const LoratoryTensor& scale, const At& at, int64_t i, int64_t j, int64_t n,
                       int64_t k) const;

  LoratoryLayer layer_;
  const LoratoryCall* call_ = nullptr;
  const LoratoryStep* step_ = nullptr;
};

double round_to(int32_t dtype, double value);
/// Elements of a view, at up to four indices.
double get(const LoratoryTensor& tensor, int64_t i = 0, int64_t j = 0, int64_t k = 0,
           int64_t l = 0);
void set(const LoratoryTensor& tensor, double value, int64_t i, int64_t j, int64_t k = 0);

/// An inhabitant, and what it says of itself.
struct ZooKernel {
  Note note;
  LoratoryClaims claims{};
  std::function<std::unique_ptr<NaiveKernel>(const LoratoryLayer&)> make;

  /// Lives as long as this object stays where it is.
  LoratoryPlugin plugin() const;
};

const std::vector<ZooKernel>& wrong_kernels();
/// Other orders, tilings and roundings, all of them right.
const std::vector<ZooKernel>& right_kernels();

// --- claims ------------------------------------------------------------------------------------
constexpr uint32_t bit(int n) { return 1U << unsigned(n); }
inline constexpr uint32_t kFloats = bit(LORATORY_F32) | bit(LORATORY_F16) | bit(LORATORY_BF16);
/// Everything but 8-bit numbers, limits and stacked weights; repeatable and batch invariant.
LoratoryClaims claims_of(uint32_t operations, uint32_t weight_dtypes = kFloats);
/// 8-bit weights with these scales, with float and with 8-bit activations.
LoratoryClaims claims_of_quantized(uint32_t operations, uint32_t dtypes, uint32_t weight_scales,
                                   uint32_t activation_scales);

template <typename Kernel>
ZooKernel inhabitant(const Note& note, const LoratoryClaims& claims) {
  return {note, claims, [](const LoratoryLayer& layer) { return std::make_unique<Kernel>(layer); }};
}

}  // namespace loratory::zoo
