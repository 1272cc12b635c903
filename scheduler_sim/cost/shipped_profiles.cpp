#include "scheduler_sim/cost/shipped_profiles.hpp"

#include <algorithm>
#include <array>

#include "reference/base/text.hpp"

// The files, which profile_data.S puts into the library.
#define LORATORY_PROFILES(USE)                      \
  USE(vllm_08_llama_31_8b, "vllm-0.8/llama-3.1-8b") \
  USE(vllm_08_qwen_25_7b, "vllm-0.8/qwen2.5-7b")
#define LORATORY_DECLARE_PROFILE(symbol, name)           \
  extern const char loratory_profile_##symbol##_begin[]; \
  extern const char loratory_profile_##symbol##_end[];
extern "C" {
LORATORY_PROFILES(LORATORY_DECLARE_PROFILE)
}

namespace loratory::sim {
namespace {

struct ShippedProfile {
  std::string_view name;
  const char* begin;
  const char* end;
};
#define LORATORY_SHIPPED_PROFILE(symbol, name) \
  ShippedProfile{name, loratory_profile_##symbol##_begin, loratory_profile_##symbol##_end},
const std::array kShipped{LORATORY_PROFILES(LORATORY_SHIPPED_PROFILE)};

}  // namespace

std::vector<std::string> shipped_profile_names() {
  std::vector<std::string> names;
  for (const ShippedProfile& profile : kShipped) names.emplace_back(profile.name);
  return names;
}

std::string_view shipped_profile(std::string_view name) {
  for (const ShippedProfile& profile : kShipped) {
    if (equal_ignoring_case(profile.name, name)) {
      return {profile.begin, size_t(profile.end - profile.begin)};
    }
  }
  return {};
}

}  // namespace loratory::sim
