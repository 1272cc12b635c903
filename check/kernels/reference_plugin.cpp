#include <array>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "check/kernels/kernel.hpp"
#include "check/kernels/reference_call.hpp"

namespace loratory::check {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

int create(void*, const LoratoryLayer* layer, void** state) {
  *state = const_cast<LoratoryLayer*>(layer);  // it lives as long as the state
  return 0;
}

int run(void* state, const LoratoryCall* call, void*) {
  try {
    run_reference(*static_cast<const LoratoryLayer*>(state), *call);
  } catch (const std::exception& error) {
    last_error() = error.what();
    return 1;
  }
  return 0;
}

void destroy(void*) {}
const char* error(void*) { return last_error().c_str(); }

std::array<LoratoryMode, 16> all_modes() {
  std::array<LoratoryMode, 16> out{};
  for (int32_t i = 0; i < 16; ++i) out[size_t(i)] = {i % 4, i / 4 % 2, i / 8};
  return out;
}

LoratoryClaims make_claims() {
  static const std::array<LoratoryMode, 16> kModes = all_modes();
  LoratoryClaims claims{};
  claims.struct_bytes = sizeof claims;
  claims.operations = (1U << LORATORY_NUM_OPERATIONS) - 1;
  claims.weight_dtypes = 0x3F;
  claims.x_dtypes = 0x3F;
  claims.y_dtypes = claims.h_dtypes = 0x7;
  claims.layouts = 0x7;
  claims.weight_scales =
      1U << LORATORY_SCALES_TENSOR | 1U << LORATORY_SCALES_CHANNEL | 1U << LORATORY_SCALES_BLOCK;
  claims.activation_scales =
      1U << LORATORY_SCALES_TENSOR | 1U << LORATORY_SCALES_TOKEN | 1U << LORATORY_SCALES_BLOCK;
  claims.modes = kModes.data();
  claims.num_modes = int64_t(kModes.size());
  claims.promises = LORATORY_REPEATABLE | LORATORY_BATCH_INVARIANT;
  claims.abilities = LORATORY_TAKES_OFFSET | LORATORY_TAKES_NO_INPUTS | LORATORY_TAKES_GAPS |
                     LORATORY_TAKES_ABSENT_SLICES | LORATORY_TAKES_ROUTER_WEIGHTS |
                     LORATORY_TAKES_ROWS_OF_X | LORATORY_TAKES_ABSENT_EXPERTS |
                     LORATORY_TAKES_DISABLED_SLOTS;
  return claims;
}

LoratoryPlugin make_plugin() {
  static const LoratoryClaims kClaims = make_claims();
  LoratoryPlugin out{};
  out.struct_bytes = sizeof out;
  out.version = LORATORY_PLUGIN_VERSION;
  out.name = "the reference of loratory";
  out.memory = LORATORY_MEMORY_HOST;
  out.claims = &kClaims;
  out.create = create;
  out.run = run;
  out.destroy = destroy;
  out.error = error;
  return out;
}

}  // namespace

const LoratoryPlugin& reference_plugin() {
  static const LoratoryPlugin kPlugin = make_plugin();
  return kPlugin;
}

}  // namespace loratory::check
