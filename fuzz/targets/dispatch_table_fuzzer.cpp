// parse_dispatch_table: any bytes give a usable table or one InputError, of one line, that names
// the file. A table chooses nothing that needs what there is not.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gpu/kernels/dispatch_table.hpp"
#include "reference/base/input_error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::gpu;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const DispatchTable table = parse_dispatch_table(text, "table.json");
    for (const DispatchEntry& e : table.entries()) {
      // Covered: by this entry, or by one before it.
      LaunchShape largest{.stage = e.stage,
                          .num_tokens = e.num_tokens,
                          .num_in = e.num_in,
                          .max_rank = e.max_rank,
                          .num_slices = e.num_slices};
      const LoraVariant chosen = table.choose(largest);
      const bool is_of_an_entry = std::ranges::any_of(table.entries(), [&](const auto& one) {
        return one.covers(largest) && one.variant == chosen;
      });
      if (!is_of_an_entry) std::abort();
      largest.has_workspace = largest.has_wgmma = false;
      const LoraVariant least = table.choose(largest);
      if (least.needs_wgmma() || least.launches != 1) std::abort();
    }
  } catch (const loratory::InputError& error) {
    const std::string_view line(error.what());
    if (!line.starts_with("table.json: ") || line.find('\n') != line.npos) std::abort();
  }
  return 0;
}
