#pragma once

#include <vector>

#include "check/loratory_plugin.h"
#include "python/src/arrays.hpp"

namespace loratory::python {

/// LoratoryClaims from the dictionary of loratory.checking.Claims.compiled(), with what they point
/// to.
class Claims {
 public:
  explicit Claims(const nb::dict& claims);
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  const LoratoryClaims& get() const { return claims_; }

 private:
  std::vector<LoratoryMode> modes_;
  LoratoryClaims claims_{};
};

}  // namespace loratory::python
