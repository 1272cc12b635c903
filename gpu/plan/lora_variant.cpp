#include "gpu/plan/lora_variant.hpp"

#include <fmt/format.h>

#include <ostream>

namespace loratory::gpu {

std::string describe(const LoraVariant& v) {
  return fmt::format(
      "rank_tiles={} token_tiles={} cluster={} stages={} aligned={} launches={} "
      "through_memory={} warps={}",
      v.rank_tiles, v.token_tiles, v.cluster, v.stages, v.aligned, v.launches, v.through_memory,
      v.warps);
}

std::ostream& operator<<(std::ostream& out, const LoraVariant& v) { return out << describe(v); }

}  // namespace loratory::gpu
