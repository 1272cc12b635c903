#include "check/kernels/kernel.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "check/library/guarded_call.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

void require_plugin(bool ok, std::string_view place, std::string_view rule) {
  if (!ok) throw InputError(fmt::format("plugin: {}", place), std::string(rule));
}

constexpr int64_t kMostMultiple = 1 << 16;

// Where the structs of version 1 end.
constexpr uint32_t kPluginBytes = sizeof(LoratoryPlugin), kClaimsBytes = sizeof(LoratoryClaims);

// A struct that another version of the header may have filled in: what it lacks is 0.
template <typename Struct>
Struct as_far_as_it_goes(const Struct* from, uint32_t least, const char* name) {
  require_plugin(from != nullptr, name, "is null");
  const uint32_t bytes = from->struct_bytes;
  require_plugin(
      bytes >= least, fmt::format("{}.struct_bytes", name),
      fmt::format("is {}, needs {} at least: set it to sizeof(struct {})", bytes, least, name));
  Struct out{};
  std::memcpy(&out, from, std::min<size_t>(bytes, sizeof(Struct)));
  return out;
}

void check_functions(const LoratoryPlugin& plugin) {
  require_plugin(
      plugin.version == LORATORY_PLUGIN_VERSION, "version",
      fmt::format("is {}, and this harness speaks {}; build it with this loratory_plugin.h",
                  plugin.version, LORATORY_PLUGIN_VERSION));
  require_plugin(plugin.name != nullptr && *plugin.name != '\0', "name",
                 "is empty; give it one line");
  require_plugin(plugin.create != nullptr, "create", "is null, and every plugin needs it");
  require_plugin(plugin.run != nullptr, "run", "is null, and every plugin needs it");
  require_plugin(plugin.destroy != nullptr, "destroy", "is null, and every plugin needs it");
}

// A set of bits, none of them above the last.
void require_set(uint32_t bits, uint32_t count, std::string_view place, bool may_be_empty) {
  require_plugin(bits >> count == 0, place, fmt::format("has a bit above {}", count - 1));
  require_plugin(may_be_empty || bits != 0, place, "is empty: nothing is left to judge");
}

constexpr uint32_t bit(int member) { return 1U << member; }

// 8-bit weights (and x) beside the factors that they come with.
constexpr uint32_t kWide = bit(LORATORY_F32) | bit(LORATORY_F16) | bit(LORATORY_BF16);
constexpr uint32_t kFp8 = bit(LORATORY_F8_E4M3FN) | bit(LORATORY_F8_E5M2);
constexpr uint32_t kPlainOperations =
    bit(LORATORY_OP_LINEAR) | bit(LORATORY_OP_SHRINK) | bit(LORATORY_OP_EXPAND);
constexpr uint32_t kBlock = bit(LORATORY_SCALES_BLOCK);
constexpr uint32_t kWeightScales =
    bit(LORATORY_SCALES_TENSOR) | bit(LORATORY_SCALES_CHANNEL) | kBlock;
constexpr uint32_t kActivationScales =
    bit(LORATORY_SCALES_TENSOR) | bit(LORATORY_SCALES_TOKEN) | kBlock;

void check_layouts(const LoratoryClaims& claims) {
  const bool is_wide_linear =
      (claims.operations & ~bit(LORATORY_OP_LINEAR)) == 0 && (claims.weight_dtypes & ~kWide) == 0;
  require_plugin(claims.layouts != bit(LORATORY_LAYOUT_STACKED) || is_wide_linear, "claims.layouts",
                 "stacked is a layout of linear on f32, f16 or bf16; add another for the rest");
}

// Block goes with block alone.
bool go_together(const LoratoryClaims& claims) {
  const uint32_t weights = claims.weight_scales, x = claims.activation_scales;
  return (weights & x & kBlock) != 0 || ((weights & ~kBlock) != 0 && (x & ~kBlock) != 0);
}

// An 8-bit dtype of x or of weights beside which there is no other would silently not be drawn.
void check_8_bit_x(const LoratoryClaims& claims) {
  const uint32_t x = claims.x_dtypes == 0 ? bit(LORATORY_BF16) : claims.x_dtypes;
  const uint32_t weights = claims.weight_dtypes;
  require_plugin(
      (x & ~kWide) == 0 || go_together(claims), "claims.activation_scales",
      "has none that goes with weight_scales, and 8-bit x needs some: block goes with block, "
      "tensor and token with tensor and channel");
  const auto all_of = [&](uint32_t scales) {
    return (claims.weight_scales & scales) == 0 || (claims.activation_scales & scales) != 0;
  };
  for (const uint32_t kind : {kFp8, bit(LORATORY_I8)}) {
    require_plugin((x & kind) == 0 || (weights & kind) != 0, "claims.x_dtypes",
                   "i8 goes with weights of i8, fp8 with fp8");
    const bool has_x = (x & kWide) != 0 || ((x & kind) != 0 && all_of(kBlock) && all_of(~kBlock));
    require_plugin(
        (weights & kind) == 0 || has_x, "claims.x_dtypes",
        "has none for some of the weights: i8 goes with i8, fp8 with fp8, block with block");
  }
}

void check_8_bit(const LoratoryClaims& claims) {
  require_plugin((claims.weight_scales & ~kWeightScales) == 0, "claims.weight_scales",
                 "has others than tensor, channel and block");
  require_plugin((claims.activation_scales & ~kActivationScales) == 0, "claims.activation_scales",
                 "has others than tensor, token and block");
  if ((claims.weight_dtypes & ~kWide) == 0) return;
  require_plugin(claims.weight_scales != 0, "claims.weight_scales",
                 "is empty, and 8-bit weights need tensor, channel or block");
  require_plugin((claims.operations & kPlainOperations) != 0, "claims.weight_dtypes",
                 "8-bit weights are for linear, shrink and expand");
  require_plugin(
      (claims.operations & ~kPlainOperations) == 0 || (claims.weight_dtypes & kWide) != 0,
      "claims.weight_dtypes",
      "8-bit weights are for linear, shrink and expand; the others need f32, f16 or bf16");
  check_8_bit_x(claims);
}

void check_modes(const LoratoryClaims& claims) {
  require_plugin((claims.modes == nullptr) == (claims.num_modes == 0) && claims.num_modes >= 0,
                 "num_modes", "does not agree with modes");
  for (int64_t i = 0; i < claims.num_modes; ++i) {
    const LoratoryMode& m = claims.modes[i];
    require_plugin(m.h >= 0 && m.h <= 3 && m.sum >= 0 && m.sum <= 1 && m.scale >= 0 && m.scale <= 1,
                   fmt::format("modes[{}]", i), "has a value that no mode has");
  }
}

void check_memory(const LoratoryPlugin& plugin, const LoratoryClaims& claims) {
  require_plugin(plugin.memory == LORATORY_MEMORY_HOST || plugin.memory == LORATORY_MEMORY_CUDA,
                 "memory", "is neither LORATORY_MEMORY_HOST nor LORATORY_MEMORY_CUDA");
  const bool is_on_device = plugin.memory == LORATORY_MEMORY_CUDA;
  require_plugin(is_on_device || (claims.promises & LORATORY_CAPTURABLE) == 0, "claims.promises",
                 "LORATORY_CAPTURABLE is for LORATORY_MEMORY_CUDA");
}

// Sizes of cases are computed from these: larger multiples would overflow, and no kernel has them.
void check_limits(const LoratoryClaims& claims) {
  const std::pair<const char*, int64_t> limits[] = {
      {"max_rank", claims.max_rank},
      {"max_slots", claims.max_slots},
      {"max_slices", claims.max_slices},
      {"max_tokens", claims.max_tokens},
      {"max_experts_per_token", claims.max_experts_per_token}};
  for (const auto& [name, limit] : limits) {
    require_plugin(limit >= 0, fmt::format("claims.{}", name), "is negative; 0 is no limit");
  }
  const std::pair<const char*, int64_t> multiples[] = {
      {"rank_multiple", claims.rank_multiple},
      {"num_in_multiple", claims.num_in_multiple},
      {"num_out_multiple", claims.num_out_multiple}};
  for (const auto& [name, multiple] : multiples) {
    require_plugin(multiple >= 0 && multiple <= kMostMultiple, fmt::format("claims.{}", name),
                   fmt::format("is not within [0, {}]", kMostMultiple));
  }
  require_plugin(claims.max_rank == 0 || claims.max_rank >= claims.rank_multiple, "claims.max_rank",
                 "is below claims.rank_multiple: no rank is left");
}

}  // namespace

void check_claims(const LoratoryClaims& claims) {
  require_set(claims.operations, LORATORY_NUM_OPERATIONS, "claims.operations", false);
  require_set(claims.weight_dtypes, 6, "claims.weight_dtypes", false);
  require_set(claims.x_dtypes, 6, "claims.x_dtypes", true);
  require_set(claims.y_dtypes, 3, "claims.y_dtypes", true);
  require_set(claims.h_dtypes, 3, "claims.h_dtypes", true);
  require_set(claims.layouts, 3, "claims.layouts", false);
  require_set(claims.weight_scales, 5, "claims.weight_scales", true);
  require_set(claims.activation_scales, 5, "claims.activation_scales", true);
  require_set(claims.promises, 3, "claims.promises", true);
  require_set(claims.abilities, 11, "claims.abilities", true);
  check_layouts(claims);
  check_8_bit(claims);
  check_modes(claims);
  require_plugin(claims.unit >= 0 && claims.unit < 0x1p-7, "claims.unit",
                 "is not within [0, 2^-7)");
  require_plugin(claims.operand_rounding >= 0 && claims.operand_rounding < 0.125,
                 "claims.operand_rounding", "is not within [0, 0.125)");
  const bool is_power = claims.alignment >= 0 && std::has_single_bit(uint64_t(claims.alignment));
  require_plugin(claims.alignment == 0 || (is_power && claims.alignment <= 256), "claims.alignment",
                 "is neither 0 nor a power of two up to 256");
  check_limits(claims);
}

Kernel::Kernel(const LoratoryPlugin& plugin)
    : plugin_(as_far_as_it_goes(&plugin, kPluginBytes, "LoratoryPlugin")) {
  check_functions(plugin_);
  claims_ = as_far_as_it_goes(plugin_.claims, kClaimsBytes, "LoratoryClaims");
  check_memory(plugin_, claims_);
  check_claims(claims_);
}

namespace {

// One that was linked with -ffast-math sets the process to flush subnormals, those of the judge
// too.
void* open_library(const std::string& path) {
  const OwnArithmetic own;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  // A name without a slash is looked for where the system has its libraries.
  const bool is_here = path.find('/') == std::string::npos && std::filesystem::exists(path);
  throw InputError(path, fmt::format("cannot be loaded: {}", dlerror()),
                   is_here ? fmt::format("name it ./{}", path) : "");
}

}  // namespace

Kernel Kernel::load(const std::string& path) {
  void* const library = open_library(path);
  void* const symbol = dlsym(library, "loratory_plugin");
  if (symbol == nullptr) {
    throw InputError(path, "has no function loratory_plugin(); export it with C linkage");
  }
  const auto* const plugin = reinterpret_cast<const LoratoryPlugin* (*)()>(symbol)();
  if (plugin == nullptr) throw InputError(path, "its loratory_plugin() gave null");
  return Kernel(*plugin);
}

}  // namespace loratory::check
