// parse_step_profile: any bytes give a usable profile, which survives a round trip, or one
// InputError.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/step_profile.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::sim;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const StepProfile profile = parse_step_profile(text, "profile.json");
    const BatchShape shape{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    if (ProfileModel(profile).step_ns(shape) < 1) std::abort();
    if (!(parse_step_profile(format_step_profile(profile), "profile.json") == profile)) {
      std::abort();
    }
  } catch (const loratory::InputError&) {
  }
  return 0;
}
