#pragma once

#include <cstdint>

#include "gpu/plan/host_device.hpp"

// Which rows of an expert layer belong together: those of one slot and one expert, or of one
// expert. Letters as in reference/moe/expert_rows.hpp.

namespace loratory::gpu {

/// Where the rows of a step go, in device memory.
struct ExpertRowsView {
  int64_t num_tokens = 0;                    ///< T
  const int32_t* experts = nullptr;          ///< [T·k] of the whole model; -1: nowhere (padding)
  const int32_t* expert_map = nullptr;       ///< [all experts] -> 0..E-1 or -1; null: all are here
  const int32_t* slots = nullptr;            ///< [T], -1: base; null: group by expert alone
  const int32_t* adapter_enabled = nullptr;  ///< [L + 1], 0: off; null: all are on
};

/// What pairs are numbered by.
struct ExpertPairs {
  ExpertRowsView rows;
  uint32_t experts_per_token = 1;  ///< k
  uint32_t num_known = 1;          ///< experts of the whole model
  uint32_t num_experts = 1;        ///< E
  uint32_t num_slots = 1;          ///< L
};

/// Of a row whose expert or slot does not exist.
inline constexpr int32_t kBadPair = INT32_MIN;

/// slot · E + expert of a row, or its expert if slots are null. -1: nothing is computed for it
/// here. No load waits behind a branch that depends on another one.
LORATORY_HOST_DEVICE inline int32_t pair_of(const ExpertPairs& p, int32_t row) {
  const int32_t expert = p.rows.experts[row];
  int32_t slot = 0;
  if (p.rows.slots != nullptr) slot = p.rows.slots[uint32_t(row) / p.experts_per_token];
  const bool is_known = uint32_t(expert) < p.num_known;
  int32_t local = is_known ? expert : 0;
  if (p.rows.expert_map != nullptr) local = p.rows.expert_map[local];
  const bool is_here = uint32_t(local) < p.num_experts;
  const bool has_slot = uint32_t(slot) < p.num_slots;
  bool is_on = true;
  if (p.rows.adapter_enabled != nullptr) {
    is_on = p.rows.adapter_enabled[has_slot ? slot : 0] != 0;
  }
  const bool is_good = (is_known || expert == -1) && (is_here || local == -1 || !is_known) &&
                       (has_slot || slot == -1);
  if (!is_good) return kBadPair;
  const bool is_computed = is_known && is_here && has_slot && is_on;
  return is_computed ? slot * int32_t(p.num_experts) + local : -1;
}

}  // namespace loratory::gpu
