#include "reference/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace loratory {

void assertion_failed(const char* expression, const char* why, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s (%s)\n", file, line, expression, why);
  std::abort();
}

}  // namespace loratory
