#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "check/kernels/memory.hpp"

namespace loratory::check {

/// Everything that a plugin gets in its memory, side by side with guard bands between: one copy
/// there, one copy back, and every byte that changed is seen.
class Arena {
 public:
  explicit Arena(Memory& memory) : memory_(&memory) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  struct Region {
    std::string name;  ///< "x", "A of slice 0", ...
    const void* host;  ///< what it holds before a run; null: NaN (a workspace)
    size_t bytes;
    bool is_input;     ///< may not change
    size_t shift = 0;  ///< bytes behind a multiple of 256
    size_t begin = 0;
  };

  /// Forgets the regions. The memory stays, so that the next tensors lie where others lay.
  void clear() { regions_.clear(); }
  void add(Region region) { regions_.push_back(std::move(region)); }
  /// Finds a place for all regions; their addresses hold until the next clear().
  void place();
  void* address(size_t region) const { return base_ + regions_[region].begin; }

  /// Brings all regions there as their hosts have them now, and the guards.
  void upload();
  /// What a region holds now.
  std::span<const std::byte> after(size_t region) const {
    return {after_ + regions_[region].begin, regions_[region].bytes};
  }
  std::span<const std::byte> before(size_t region) const {
    return std::span(before_).subspan(regions_[region].begin, regions_[region].bytes);
  }

  /// A byte that changed and must not have.
  struct Change {
    bool in_guard = false;  ///< else in an input
    std::string where;      ///< "x, byte 12", "12 bytes behind x"
  };
  /// Reads everything back; the first change in a guard and the first in an input.
  std::vector<Change> read_back();

 private:
  bool guard_changed(size_t begin, size_t end, const std::string& region, bool is_behind,
                     std::vector<Change>& out) const;

  Memory* memory_;
  std::byte* base_ = nullptr;
  size_t capacity_ = 0, size_ = 0;
  std::vector<Region> regions_;
  std::vector<std::byte> before_, copy_;
  const std::byte* after_ = nullptr;
};

}  // namespace loratory::check
