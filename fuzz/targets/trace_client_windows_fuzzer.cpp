#include <cmath>
#include <cstdint>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/client_windows.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory;
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    for (const sim::ClientWindow& window : sim::read_client_windows_from(bytes, "input")) {
      LORATORY_ASSERT(window.rate_rps >= 0 && std::isfinite(window.rate_rps), "rates are real");
      LORATORY_ASSERT((window.pattern == sim::GapLaw::none) == (window.shape == 0),
                      "a law has parameters");
      LORATORY_ASSERT(!window.category.empty() && window.window_start_s >= 0, "checked cells");
    }
  } catch (const InputError&) {
  }
  return 0;
}
