#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "check/kernels/far_memory.hpp"

namespace loratory::check {

/// Which tensor is large.
enum class Far : uint8_t { a, b, x, y };
std::string_view name(Far far);

/// A case like `shape` with small sizes, one slice, `num_slots` slots of equal rank and a token of
/// each, the last slot first.
Case small_case(const Case& shape, const LoratoryClaims& claims, int32_t num_slots);

/// The slots and tokens of a small case among so many that a tensor has more than 2^31 elements.
/// The others have no adapter.
struct Crowd {
  std::vector<int64_t> slots, tokens;  ///< where those of the case are
  int64_t num_slots = 0, num_tokens = 0;
};

/// Makes the rows of `far` in small_case() `c` so long that its last slot, or token, lies beyond
/// 2^31 elements among few enough others. Nothing if the claims have no room for those.
std::optional<Crowd> make_crowd(Case& c, const LoratoryClaims& claims, Far far);

/// Of the largest tensor of a CrowdedCall.
int64_t largest_bytes(const CaseData& data, const Crowd& crowd);

/// The layer and the call of a case, in its crowd.
class CrowdedCall {
 public:
  /// Errors   NoRoom. What `place` has placed lives as long as it.
  CrowdedCall(const CaseData& data, const Crowd& crowd, FarMemory& place);
  CrowdedCall(const CrowdedCall&) = delete;
  CrowdedCall& operator=(const CrowdedCall&) = delete;
  /// What a run wrote to the rows of the case.
  reference::Tensor output(const FarMemory& place) const;

  PlacedLayer layer;
  PlacedCall call;

 private:
  void crowd_layer(FarMemory& place);
  void crowd_step(FarMemory& place);

  const CaseData* data_;
  const Crowd* crowd_;
  std::vector<std::vector<int32_t>> ranks_;
  std::vector<std::vector<float>> scalings_;
  std::vector<int32_t> slots_, experts_;
};

}  // namespace loratory::check
