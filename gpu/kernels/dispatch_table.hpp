#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/kernels/lora_variant.hpp"

namespace loratory::gpu {

/// A variant, for launches of a stage that are in nothing larger than this.
struct DispatchEntry {
  LoraStage stage = LoraStage::linear;
  int64_t num_slices = 1;
  int64_t num_in = 0;  ///< of an expand 0
  int64_t max_rank = 0;
  int64_t num_tokens = 0;
  LoraVariant variant{1, 1, 1, 2, true};

  bool covers(const LaunchShape& shape) const;
};

/// What a tuner measured on one GPU, in place of the rules of choose_variant().
///
/// Chosen   the first entry that covers the shape. Entries ascend by (stage, num_slices, num_in,
///          max_rank, num_tokens), so this is the one of the fewest slices that are enough, of
///          those the one of the smallest K, and so on. The rules choose where no entry covers the
///          shape, where tensors are unaligned or the GPU has no clusters, where the entry needs
///          wgmma that the GPU has not, and where it takes two launches and a linear layer has no
///          workspace.
/// Repeats  depends on the LaunchShape alone, as choose_variant() does. Any choice gives the same
///          bits, so a table from another GPU is slow, not wrong.
/// Cost     one pass over the entries, a comparison each; nothing is allocated.
class DispatchTable {
 public:
  /// Errors   InputError "entries[i]...: ..." for a size or a variant out of range, a variant that
  ///          no kernel of the stage has, and an entry that is not above the one before it.
  explicit DispatchTable(std::vector<DispatchEntry> entries);

  LoraVariant choose(const LaunchShape& shape) const;
  const std::vector<DispatchEntry>& entries() const { return entries_; }

 private:
  std::vector<DispatchEntry> entries_;
};

/// The file that bench/gpu/lora_tune.py writes:
///   {"gpu": "NVIDIA H200", "driver": "...", "commit": "...", "date": "...", "command": "...",
///    "entries": [{"stage": "linear", "num_slices": 1, "num_in": 4096, "max_rank": 16,
///                 "num_tokens": 64, "variant": {"rank_tiles": 1, "token_tiles": 1, "cluster": 8,
///                 "stages": 2, "launches": 1}}, ...],
///    "times": ...}
/// An expand has no num_in. Every variant is an aligned one. "times" are for readers.
/// Errors   InputError "place: key: what is wrong".
DispatchTable parse_dispatch_table(std::string_view text, const std::string& place);

/// As parse_dispatch_table(), of a file. Errors also: it cannot be read.
DispatchTable read_dispatch_table(const std::string& path);

}  // namespace loratory::gpu
