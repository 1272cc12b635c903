#pragma once

#include <memory>
#include <string>

#include "check/loratory_plugin.h"

namespace loratory::check {

/// What a kernel claims to take and to promise, whatever its memory.
/// Errors   InputError: a set with no member or an unknown one, a number outside its range.
void check_claims(const LoratoryClaims& claims);

/// A kernel under test: what loratory_plugin.h has, checked once.
class Kernel {
 public:
  /// What `plugin` points to (names, modes, functions) must outlive this object. No library is
  /// loaded.
  /// Errors   InputError: another version, a missing function, claims that no case meets.
  explicit Kernel(const LoratoryPlugin& plugin);
  /// A shared library that exports loratory_plugin(); it stays loaded.
  /// Errors   InputError: no such file, no such function, what the dynamic linker says.
  static Kernel load(const std::string& path);

  const LoratoryPlugin& plugin() const { return plugin_; }
  const LoratoryClaims& claims() const { return claims_; }
  std::string name() const { return plugin_.name; }
  bool is_on_device() const { return plugin_.memory == LORATORY_MEMORY_CUDA; }
  bool promises(LoratoryPromise promise) const { return (claims().promises & promise) != 0; }
  bool has(LoratoryAbility ability) const { return (claims().abilities & ability) != 0; }

 private:
  LoratoryPlugin plugin_{};
  LoratoryClaims claims_{};
};

/// The operations of reference/ behind the same door: what `--impl reference` judges. It takes
/// everything there is and promises all but graphs.
const LoratoryPlugin& reference_plugin();

}  // namespace loratory::check
