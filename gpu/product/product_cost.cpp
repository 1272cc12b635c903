#include "gpu/product/product_cost.hpp"

#include <cmath>

#include "gpu/plan/lora_variant.hpp"
#include "gpu/product/skinny_plan.hpp"

namespace loratory::gpu {
namespace {

// A kernel of the library starts when the small kernels before it have ended; an own one has its
// first weights by then. The next product of the chain begins on SMs that one has no tile for, or
// fewer than for others, and while its last tiles are stored; a small kernel hardly gains by that.
// Idle SMs cost a share of the product's time, the end of a tile so many us for each result of a
// thread.
constexpr double kWaitUs = 4, kIdleCost = 0.12, kUnevenCost = 0.25, kEndUs = 0.02;
constexpr double kSiluMulUs = 4;  ///< of a launch of its own
// With more tokens, each round of tiles but the first costs a layer more than the chain shows.
constexpr int64_t kTokensOfFreeRounds = 64;
constexpr double kRoundUs = 2;
// Before LoRA, of few tokens, idle SMs are of use. A product that leaves so many from its start has
// the shrink beside it (on_idle_sms() of lora_variant.hpp), which saves so many us: less than
// every measured case. In a last round that some SMs have no tile of, these take the shrink's CTAs,
// which load their A by then: a share of the product's time. CTAs that share loads leave as many
// idle, and gained nothing, but for pairs in the last round. Behind a kernel of the library a
// shrink has not asked for A, whatever the tokens.
constexpr int32_t kSmsOfShrink = 32;
constexpr double kShrinkUs = 2, kUnevenGain = 0.2;
// Before the shrink of few tokens with long rows (gains_by_idle_sms()) a product of few tiles is
// faster in a layer than a chain shows. Steps gain by up to so many idle SMs, and lose by more.
constexpr int32_t kMostSmsOfLongShrink = 60;

/// How a product's tiles fill the SMs.
struct Rounds {
  double count;      ///< 1: no SM has two tiles
  double idle;       ///< share of the rounds' SMs that have no tile
  int32_t idle_sms;  ///< from the start
  double end_us;     ///< of the last tile
};
Rounds rounds_of(const SkinnyLayout& layout, int32_t ctas, int num_sms) {
  const double tiles = double(layout.num_items()) * ctas / num_sms;  // of an SM
  const double count = std::ceil(tiles);
  return {.count = count,
          .idle = 1 - tiles / count,
          .idle_sms = layout.idle_sms(ctas, num_sms),
          .end_us = kEndUs * layout.results_of_thread()};
}

double us_of_own(const Rounds& r, double us) {
  return us * (1 + (r.count == 1 ? kIdleCost : kUnevenCost) * r.idle) + r.end_us;
}

bool has_shrink_beside(const Rounds& r, int32_t ctas) {
  return ctas == 1 && r.idle_sms >= kSmsOfShrink;
}

double us_of_own_before_lora(const Rounds& r, int32_t ctas, double us) {
  if (r.count > 1 && ctas <= 2) return us * (1 - kUnevenGain * r.idle) + r.end_us;
  return us_of_own(r, us) - (has_shrink_beside(r, ctas) ? kShrinkUs : 0);
}

bool suits_long_shrink(const ProductShape& shape, int64_t num_tokens, const Rounds& r,
                       int32_t ctas) {
  return shape.num_in > h200::kLongRows && shape.num_in <= kLongestRows &&
         num_tokens <= kMostTokensBesideLongRows && has_shrink_beside(r, ctas) &&
         r.idle_sms <= kMostSmsOfLongShrink;
}

}  // namespace

double us_in_a_layer(const ProductShape& shape, int64_t num_tokens, const ProductChoice& choice,
                     ProductUse use, double us, int num_sms) {
  const bool is_before_lora = use == ProductUse::before_lora;
  const bool needs_silu_mul =
      shape.feeds_silu_mul && !is_before_lora && !may_fuse_silu(shape, choice);
  double more = needs_silu_mul ? kSiluMulUs : 0;
  if (choice.kernel != ProductKernel::skinny) {
    return us + more + kWaitUs + (is_before_lora ? kShrinkUs : 0);
  }
  const Rounds r = rounds_of(skinny_layout(shape, num_tokens, choice), choice.num_ctas(), num_sms);
  if (num_tokens > kTokensOfFreeRounds) more += kRoundUs * (r.count - 1);
  const bool has_use_of_idle_sms = is_before_lora && num_tokens <= kMostTokensThroughMemory;
  if (!has_use_of_idle_sms) return more + us_of_own(r, us);
  if (suits_long_shrink(shape, num_tokens, r, choice.num_ctas())) return 0;  // the first choice
  return more + us_of_own_before_lora(r, choice.num_ctas(), us);
}

}  // namespace loratory::gpu
