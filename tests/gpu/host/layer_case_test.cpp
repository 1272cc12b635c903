// What the cases of the GPU tests may cost: everything that a test allocates, launches or looks at
// grows with it.
#include "fuzz/support/layer_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace loratory::reference {
namespace {

constexpr LayerLimits kLayerLimits{.num_products = int64_t(1) << 26,
                                   .weight_bytes = int64_t(1) << 22};

int64_t weights_per_rank(const LayerCase& c) {
  const auto columns = std::accumulate(c.num_out.begin(), c.num_out.end(), int64_t(0));
  return int64_t(c.num_out.size()) * c.num_in + columns;
}

// x and y count as rank 16, since of rank 1 they are most of the work.
TEST(LayerCase, TokensStayWithinTheProducts) {
  int num_cut = 0, num_of_few_ranks = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const LayerCase c = layer_case(seed, kLayerLimits);
    const int64_t each = std::max<int64_t>(16, c.max_rank) * weights_per_rank(c);
    EXPECT_TRUE(c.num_tokens <= 1 || c.num_tokens * each <= kLayerLimits.num_products)
        << describe(c);
    const bool is_cut = c.num_tokens > 0 && (c.num_tokens + 1) * each > kLayerLimits.num_products;
    num_cut += is_cut;
    num_of_few_ranks += is_cut && c.max_rank < 16;
  }
  EXPECT_GT(num_cut, 100);
  EXPECT_GT(num_of_few_ranks, 20);
}

TEST(LayerCase, SlotsStayWithinTheWeights) {
  int num_of_many_slots = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const LayerCase c = layer_case(seed, kLayerLimits);
    const int64_t bytes = 2 * c.max_loras * c.max_rank * weights_per_rank(c);
    EXPECT_TRUE(c.max_loras == 1 || bytes <= kLayerLimits.weight_bytes) << describe(c);
    num_of_many_slots += c.max_loras > 100;
  }
  EXPECT_GT(num_of_many_slots, 20);
}

}  // namespace
}  // namespace loratory::reference
