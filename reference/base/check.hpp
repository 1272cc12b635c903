#pragma once

/// LORATORY_ASSERT(condition, "why it must hold"): a programmer error. On in every build; prints
/// the expression, the reason and the place, then aborts.
#define LORATORY_ASSERT(condition, why) \
  (bool(condition) ? void(0) : ::loratory::assertion_failed(#condition, why, __FILE__, __LINE__))

namespace loratory {

[[noreturn]] void assertion_failed(const char* expression, const char* why, const char* file,
                                   int line);

}  // namespace loratory
