#pragma once

#include <functional>

#include "check/cases/case.hpp"

namespace loratory::check {

/// The smallest case found that still fails: fewer tokens, slots, slices, smaller K, N and ranks,
/// plainer forms, each kept if `fails` says so. The seed stays. At most `most_tries` are asked.
Case shrink_case(const Case& failing, const LoratoryClaims& claims,
                 const std::function<bool(const Case&)>& fails, int most_tries = 300);

}  // namespace loratory::check
