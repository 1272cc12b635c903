#include "check/kernels/kernel.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

void require(bool ok, std::string_view place, std::string_view rule) {
  if (!ok) throw InputError(fmt::format("plugin: {}", place), std::string(rule));
}

// Where the structs of version 1 end.
constexpr uint32_t kPluginBytes = sizeof(LoratoryPlugin), kClaimsBytes = sizeof(LoratoryClaims);

// A struct that another version of the header may have filled in: what it lacks is 0.
template <typename Struct>
Struct as_far_as_it_goes(const Struct* from, uint32_t least, const char* name) {
  require(from != nullptr, name, "is null");
  const uint32_t bytes = from->struct_bytes;
  require(bytes >= least, fmt::format("{}.struct_bytes", name),
          fmt::format("is {}, needs {} at least: set it to sizeof(struct {})", bytes, least, name));
  Struct out{};
  std::memcpy(&out, from, std::min<size_t>(bytes, sizeof(Struct)));
  return out;
}

void check_functions(const LoratoryPlugin& plugin) {
  require(plugin.version == LORATORY_PLUGIN_VERSION, "version",
          fmt::format("is {}, and this harness speaks {}; build it with this loratory_plugin.h",
                      plugin.version, LORATORY_PLUGIN_VERSION));
  require(plugin.name != nullptr && *plugin.name != '\0', "name", "is empty; give it one line");
  require(plugin.create != nullptr, "create", "is null, and every plugin needs it");
  require(plugin.run != nullptr, "run", "is null, and every plugin needs it");
  require(plugin.destroy != nullptr, "destroy", "is null, and every plugin needs it");
}

// A set of bits, none of them above the last.
void require_set(uint32_t bits, uint32_t count, std::string_view place, bool may_be_empty) {
  require(bits >> count == 0, place, fmt::format("has a bit above {}", count - 1));
  require(may_be_empty || bits != 0, place, "is empty: nothing is left to judge");
}

void check_modes(const LoratoryClaims& claims) {
  require((claims.modes == nullptr) == (claims.num_modes == 0) && claims.num_modes >= 0,
          "num_modes", "does not agree with modes");
  for (int64_t i = 0; i < claims.num_modes; ++i) {
    const LoratoryMode& m = claims.modes[i];
    require(m.h >= 0 && m.h <= 3 && m.sum >= 0 && m.sum <= 1 && m.scale >= 0 && m.scale <= 1,
            fmt::format("modes[{}]", i), "has a value that no mode has");
  }
}

void check_claims(const LoratoryPlugin& plugin, const LoratoryClaims& claims) {
  require(plugin.memory == LORATORY_MEMORY_HOST || plugin.memory == LORATORY_MEMORY_CUDA, "memory",
          "is neither LORATORY_MEMORY_HOST nor LORATORY_MEMORY_CUDA");
  require_set(claims.operations, LORATORY_NUM_OPERATIONS, "claims.operations", false);
  require_set(claims.weight_dtypes, 6, "claims.weight_dtypes", false);
  require_set(claims.x_dtypes, 6, "claims.x_dtypes", true);
  require_set(claims.y_dtypes, 3, "claims.y_dtypes", true);
  require_set(claims.h_dtypes, 3, "claims.h_dtypes", true);
  require_set(claims.layouts, 3, "claims.layouts", false);
  require_set(claims.weight_scales, 5, "claims.weight_scales", true);
  require_set(claims.activation_scales, 5, "claims.activation_scales", true);
  check_modes(claims);
  require(claims.unit >= 0 && claims.unit < 0x1p-7, "claims.unit", "is not within [0, 2^-7)");
  require(claims.operand_rounding >= 0 && claims.operand_rounding < 0.125,
          "claims.operand_rounding", "is not within [0, 0.125)");
  const bool is_power = claims.alignment >= 0 && std::has_single_bit(uint64_t(claims.alignment));
  require(claims.alignment == 0 || (is_power && claims.alignment <= 256), "claims.alignment",
          "is neither 0 nor a power of two up to 256");
  const bool is_on_device = plugin.memory == LORATORY_MEMORY_CUDA;
  require(is_on_device || (claims.promises & LORATORY_CAPTURABLE) == 0, "claims.promises",
          "LORATORY_CAPTURABLE is for LORATORY_MEMORY_CUDA");
}

}  // namespace

Kernel::Kernel(const LoratoryPlugin& plugin)
    : plugin_(as_far_as_it_goes(&plugin, kPluginBytes, "LoratoryPlugin")) {
  check_functions(plugin_);
  claims_ = as_far_as_it_goes(plugin_.claims, kClaimsBytes, "LoratoryClaims");
  check_claims(plugin_, claims_);
}

Kernel Kernel::load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw InputError(path, fmt::format("cannot be loaded: {}", dlerror()));
  }
  void* const symbol = dlsym(library, "loratory_plugin");
  if (symbol == nullptr) {
    throw InputError(path, "has no function loratory_plugin(); export it with C linkage");
  }
  const auto* const plugin = reinterpret_cast<const LoratoryPlugin* (*)()>(symbol)();
  if (plugin == nullptr) throw InputError(path, "its loratory_plugin() gave null");
  return Kernel(*plugin);
}

}  // namespace loratory::check
