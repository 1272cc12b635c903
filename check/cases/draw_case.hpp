#pragma once

#include "check/cases/case.hpp"

namespace loratory::check {

/// What is drawn from: what a kernel claims, one of its operations, and how large a case may be.
struct CaseLimits {
  const LoratoryClaims& claims;
  LoratoryOperation operation;
  int64_t max_products = 1 << 22;  ///< Case::num_products()
  int64_t max_weights = 1 << 22;   ///< numbers in A and B of all slots
};

/// What sizes of rows are multiples of: the claim on them, and what keeps rows aligned as claimed.
int64_t size_multiple(const LoratoryClaims& claims, int64_t claimed, reference::Dtype weight);

/// A case that the claims cover: a third of toy sizes, a third of awkward ones, the rest of sizes
/// that engines serve, K = 4097 and no tokens at all among them.
Case draw_case(uint64_t seed, const CaseLimits& limits);

/// InputError naming the field of the label that the claims do not cover. They cover every case
/// that is drawn from them.
void check_claimed(const Case& c, const LoratoryClaims& claims);

}  // namespace loratory::check
