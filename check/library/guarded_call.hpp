#pragma once

#include <fmt/format.h>

#include <cfenv>
#include <exception>
#include <new>
#include <string_view>

#include "reference/base/escape.hpp"

namespace loratory::check {

/// Puts back at its end how this thread rounds and whether it flushes subnormals: what a library
/// sets must not reach its judge.
class OwnArithmetic {
 public:
  OwnArithmetic() { std::fegetenv(&ours_); }
  ~OwnArithmetic() { std::fesetenv(&ours_); }
  OwnArithmetic(const OwnArithmetic&) = delete;
  OwnArithmetic& operator=(const OwnArithmetic&) = delete;

 private:
  std::fenv_t ours_{};
};

/// Calls into a library through a header of C, which has no exceptions, where a library of C++ may.
/// Errors   Failure: it threw, but std::bad_alloc: memory that ends is not the library's fault.
template <typename Failure, typename Call>
auto guarded(std::string_view function, const Call& call) {
  const OwnArithmetic own;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Failure(fmt::format("{} threw: {}", function, printable(error.what())));
  } catch (...) {
    throw Failure(fmt::format("{} threw what is no std::exception", function));
  }
}

}  // namespace loratory::check
