// Kernels that differ in order, tiling and rounding, and are all right: what must never be flagged.
#include <algorithm>
#include <cmath>

#include "fuzz/bug_zoo/wrong_kernels.hpp"

namespace loratory::zoo {
namespace {

using Span = std::span<const double>;

// The sums in fp32 of a kernel that has its own order.
struct FloatKernel : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    if (is_quantized()) return NaiveKernel::dot(p, q);
    std::vector<float> products(p.size());
    for (size_t i = 0; i < p.size(); ++i) products[i] = float(p[i]) * float(q[i]);
    return double(sum(products));
  }
  virtual float sum(std::span<const float> products) const = 0;
};

struct Backwards : FloatKernel {
  using FloatKernel::FloatKernel;
  float sum(std::span<const float> v) const override {
    float s = 0;
    for (size_t i = v.size(); i-- > 0;) s += v[i];
    return s;
  }
};

struct Pairwise : FloatKernel {
  using FloatKernel::FloatKernel;
  float sum(std::span<const float> v) const override {
    if (v.size() < 2) return v.empty() ? 0 : v[0];
    const size_t half = v.size() / 2;
    return sum(v.first(half)) + sum(v.subspan(half));
  }
};

template <size_t kTile>
struct Tiled : FloatKernel {
  using FloatKernel::FloatKernel;
  float sum(std::span<const float> v) const override {
    float s = 0;
    for (size_t i = 0; i < v.size(); i += kTile) {
      float part = 0;
      for (size_t c = i; c < std::min(i + kTile, v.size()); ++c) part += v[c];
      s += part;
    }
    return s;
  }
};

// The lanes of a warp, then a butterfly.
struct Lanes : FloatKernel {
  using FloatKernel::FloatKernel;
  float sum(std::span<const float> v) const override {
    float lanes[32] = {};
    for (size_t i = 0; i < v.size(); ++i) lanes[i % 32] += v[i];
    for (size_t width = 16; width > 0; width /= 2) {
      for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
  }
};

// The largest first: one of the worst orders there is.
struct Sorted : FloatKernel {
  using FloatKernel::FloatKernel;
  float sum(std::span<const float> v) const override {
    std::vector<float> sorted(v.begin(), v.end());
    std::ranges::sort(sorted, [](float l, float r) { return std::abs(l) > std::abs(r); });
    float s = 0;
    for (const float f : sorted) s += f;
    return s;
  }
};

struct SplitOfK : FloatKernel {
  using FloatKernel::FloatKernel;
  float sum(std::span<const float> v) const override {
    const size_t split = (v.size() + 7) / 8;
    float s = 0;
    for (size_t i = 0; i < v.size(); i += split) {
      float part = 0;
      for (size_t c = i; c < std::min(i + split, v.size()); ++c) part += v[c];
      s += part;
    }
    return s;
  }
};

struct Fused : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    float s = 0;
    for (size_t i = 0; i < p.size(); ++i) s = std::fma(float(p[i]), float(q[i]), s);
    return double(s);
  }
};

struct InDouble : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    double s = 0;
    for (size_t i = 0; i < p.size(); ++i) s += p[i] * q[i];
    return s;
  }
};

// A tensor core: exact products of 16 columns and the accumulator, aligned to the largest and cut
// to 24 bits. Source: docs/error_bounds.md on truncating tensor cores.
struct TensorCore : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    double acc = 0;
    for (size_t i = 0; i < p.size(); i += 16) acc = fragment(acc, p, q, i);
    return double(float(acc));
  }
  static double fragment(double acc, Span p, Span q, size_t first) {
    const size_t end = std::min(first + 16, p.size());
    double largest = std::abs(acc);
    for (size_t c = first; c < end; ++c) largest = std::max(largest, std::abs(p[c] * q[c]));
    if (largest == 0) return 0;
    const double unit = std::ldexp(1.0, std::ilogb(largest) - 23);
    double sum = cut(acc, unit);
    for (size_t c = first; c < end; ++c) sum += cut(p[c] * q[c], unit);
    return cut(sum, std::ldexp(1.0, std::ilogb(sum == 0 ? 1.0 : sum) - 23));
  }
  static double cut(double v, double unit) { return std::trunc(v / unit) * unit; }
};

struct Tf32Said : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    float s = 0;
    for (size_t i = 0; i < p.size(); ++i) s += tf32(p[i]) * tf32(q[i]);
    return double(s);
  }
  static float tf32(double v) {
    int exponent = 0;
    const double mantissa = std::frexp(v, &exponent);
    return float(std::ldexp(std::nearbyint(std::ldexp(mantissa, 11)), exponent - 11));
  }
};

// 8-bit numbers that meet their factors before the product, in fp32, the last column first.
struct FactorsFirst : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    float s = 0;
    for (size_t i = p.size(); i-- > 0;) s += float(p[i]) * float(q[i]);
    return double(s);
  }
};

// Everything the last row first, and the slices backwards too.
struct RowsBackwards : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    call_ = &call;
    step_ = call.step;
    for (int64_t row = num_rows(); row-- > 0;) {
      for (int64_t i = layer_.num_slices; i-- > 0;) run_one(row, i);
    }
  }
  void run_one(int64_t row, int64_t i) {
    const int64_t slot = slot_of(row);
    if (slot < 0) return;
    const int64_t expert = expert_of(row);
    const int64_t r = rank(i, slot, expert);
    if (r > 0) run_slice({.row = row, .slice = i, .slot = slot, .expert = expert, .rank = r});
  }
};

struct ReadsTheZerosBeyondRank : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  int64_t rank(int64_t slice, int64_t slot, int64_t expert) const override {
    return NaiveKernel::rank(slice, slot, expert) > 0 ? layer_.max_rank : 0;
  }
};

// Right, and no promise broken: it made none.
struct UnrepeatableUnpromised : FloatKernel {
  using FloatKernel::FloatKernel;
  void run(const LoratoryCall& call) override {
    ++num_runs_;
    NaiveKernel::run(call);
  }
  float sum(std::span<const float> v) const override {
    const size_t first = num_runs_ * 7 % v.size();
    float s = 0;
    for (size_t i = 0; i < v.size(); ++i) s += v[(first + i) % v.size()];
    return s;
  }
  size_t num_runs_ = 0;
};

constexpr LoratoryMode kVllm[] = {
    {LORATORY_H_CAST_TO_WEIGHT, LORATORY_SUM_TWO_ROUND, LORATORY_SCALE_FOLDED_B}};
constexpr LoratoryMode kSglang[] = {
    {LORATORY_H_STORE_AS_X, LORATORY_SUM_TWO_ROUND, LORATORY_SCALE_ACCUMULATOR}};
constexpr LoratoryMode kSplit[] = {
    {LORATORY_H_SPLIT2, LORATORY_SUM_ONE_ROUND, LORATORY_SCALE_ACCUMULATOR}};

LoratoryClaims in_mode(const LoratoryMode* mode) {
  LoratoryClaims c = claims_of(kLinear, bit(LORATORY_BF16) | bit(LORATORY_F16));
  c.modes = mode;
  c.num_modes = 1;
  return c;
}

std::vector<ZooKernel> right_dense_kernels() {
  const uint32_t dense = kLinear | kShrink | kExpand;
  const LoratoryClaims all = claims_of(dense);
  LoratoryClaims cores = claims_of(dense, bit(LORATORY_BF16) | bit(LORATORY_F16));
  cores.unit = 0x1p-22;
  LoratoryClaims tf32 = claims_of(kLinear | kShrink, bit(LORATORY_F32));
  tf32.operand_rounding = 0x1p-10;
  LoratoryClaims beyond = claims_of(dense);
  beyond.abilities |= LORATORY_READS_BEYOND_RANK;
  LoratoryClaims unpromised = claims_of(kLinear);
  unpromised.promises = 0;
  LoratoryClaims stacked = claims_of(kLinear);
  stacked.layouts = bit(LORATORY_LAYOUT_STACKED);
  return {
      inhabitant<NaiveKernel>({"in_order", "column by column", ""}, all),
      inhabitant<Backwards>({"backwards", "the last column first", ""}, all),
      inhabitant<Pairwise>({"pairwise", "a tree", ""}, all),
      inhabitant<Tiled<16>>({"tiles_of_16", "sums of 16 columns", ""}, all),
      inhabitant<Tiled<128>>({"tiles_of_128", "sums of 128 columns", ""}, all),
      inhabitant<Lanes>({"lanes", "32 lanes and a butterfly", ""}, all),
      inhabitant<Sorted>({"largest_first", "the largest product first", ""}, all),
      inhabitant<SplitOfK>({"split_of_k", "8 parts of K, whatever the batch", ""}, all),
      inhabitant<Fused>({"fused_multiply_add", "one rounding for product and sum", ""}, all),
      inhabitant<InDouble>({"in_double", "a wide accumulator", ""}, all),
      inhabitant<RowsBackwards>({"rows_backwards", "rows and slices last first", ""}, all),
      inhabitant<TensorCore>({"tensor_core", "truncating sums of 16, unit 2^-22", ""}, cores),
      inhabitant<Tf32Said>({"tf32", "operands of 11 bits, and says so", ""}, tf32),
      inhabitant<ReadsTheZerosBeyondRank>(
          {"whole_rank", "reads zeros beyond the rank, and says so", ""}, beyond),
      inhabitant<UnrepeatableUnpromised>(
          {"unrepeatable", "another order every run, and promises nothing", ""}, unpromised),
      inhabitant<NaiveKernel>({"vllm_mode", "h cast, delta rounded, scaling in B", ""},
                              in_mode(kVllm)),
      inhabitant<NaiveKernel>({"sglang_mode", "h stored as x, delta rounded", ""},
                              in_mode(kSglang)),
      inhabitant<NaiveKernel>({"split_h", "h as high and low", ""}, in_mode(kSplit)),
      inhabitant<NaiveKernel>({"stack", "weights of all slices in one", ""}, stacked),
  };
}

std::vector<ZooKernel> right_special_kernels() {
  LoratoryClaims of_experts = claims_of(kExpertLinear | kExpertShrink | kExpertExpand);
  of_experts.abilities |= LORATORY_TAKES_ABSENT_EXPERTS | LORATORY_TAKES_DISABLED_SLOTS;
  return {
      inhabitant<NaiveKernel>({"experts", "rows of experts", ""}, of_experts),
      inhabitant<Pairwise>({"experts_pairwise", "rows of experts, a tree", ""}, of_experts),
      inhabitant<NaiveKernel>({"vocabulary", "embeddings and logits", ""},
                              claims_of(kEmbedding | kLogits)),
  };
}

std::vector<ZooKernel> right_8_bit_kernels() {
  const uint32_t dense = kLinear | kShrink | kExpand;
  const uint32_t fp8 = bit(LORATORY_F8_E4M3FN) | bit(LORATORY_F8_E5M2);
  const uint32_t by_row = bit(LORATORY_SCALES_TENSOR) | bit(LORATORY_SCALES_CHANNEL);
  const uint32_t by_token = bit(LORATORY_SCALES_TENSOR) | bit(LORATORY_SCALES_TOKEN);
  const uint32_t block = bit(LORATORY_SCALES_BLOCK);
  const uint32_t token = bit(LORATORY_SCALES_TOKEN) | block;
  LoratoryClaims fp8_cores = claims_of_quantized(dense, fp8, by_row | block, token);
  fp8_cores.unit = 0x1p-22;
  LoratoryClaims fp8_beyond =
      claims_of_quantized(kShrink | kExpand, fp8, by_row | block, by_token | block);
  fp8_beyond.abilities |= LORATORY_READS_BEYOND_RANK;
  return {
      inhabitant<NaiveKernel>({"fp8", "8-bit weights and activations by row and token", ""},
                              claims_of_quantized(kShrink | kExpand, fp8, by_row, by_token)),
      inhabitant<ReadsTheZerosBeyondRank>(
          {"fp8_whole_rank", "reads 8-bit zeros beyond the rank, and says so", ""}, fp8_beyond),
      inhabitant<NaiveKernel>({"fp8_blocks", "8-bit weights and activations in blocks", ""},
                              claims_of_quantized(kShrink | kExpand, fp8, block, block)),
      inhabitant<NaiveKernel>({"fp8_linear", "h is quantised between the stages", ""},
                              claims_of_quantized(kLinear, fp8, by_row | block, token)),
      inhabitant<FactorsFirst>({"fp8_factors_first", "factors meet the numbers, then fp32", ""},
                               claims_of_quantized(dense, fp8, by_row | block, token)),
      inhabitant<TensorCore>({"fp8_tensor_core", "8-bit weights, truncating sums of 16", ""},
                             fp8_cores),
      inhabitant<FactorsFirst>(
          {"int8_linear", "h in signed bytes", ""},
          claims_of_quantized(kLinear, bit(LORATORY_I8), by_row | block, token)),
      inhabitant<NaiveKernel>(
          {"int8", "signed bytes", ""},
          claims_of_quantized(kShrink | kExpand, bit(LORATORY_I8), by_row, by_token)),
  };
}

std::vector<ZooKernel> make_right_kernels() {
  std::vector<ZooKernel> zoo = right_dense_kernels();
  for (const auto& more : {right_special_kernels(), right_8_bit_kernels()}) {
    zoo.insert(zoo.end(), more.begin(), more.end());
  }
  return zoo;
}

std::vector<ZooKernel> make_wrong_kernels() {
  std::vector<ZooKernel> zoo;
  add_wrong_linear_kernels(zoo);
  add_wrong_special_kernels(zoo);
  return zoo;
}

}  // namespace

const std::vector<ZooKernel>& wrong_kernels() {
  static const std::vector<ZooKernel> kZoo = make_wrong_kernels();
  return kZoo;
}

const std::vector<ZooKernel>& right_kernels() {
  static const std::vector<ZooKernel> kZoo = make_right_kernels();
  return kZoo;
}

}  // namespace loratory::zoo
