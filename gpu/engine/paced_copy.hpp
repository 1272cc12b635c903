#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace loratory::gpu {

/// A transfer in parts that leaves room to the steps beside it. A copy at the full rate of PCIe
/// writes memory that a step reads, and costs it 2 to 4 % while it lasts. So it rests between parts
/// as long as steps run, and takes all that is left at once where none does.
class PacedCopy {
 public:
  /// An 8 MB part takes 0.15 ms by PCIe 5.0 x16: with its rest, a quarter of that rate.
  static constexpr int64_t kPartBytes = int64_t{8} << 20;
  static constexpr int64_t kRestNs = 450'000;

  struct Part {
    int64_t begin, end;  ///< bytes
  };

  PacedCopy(int64_t bytes, int64_t part_bytes) : bytes_(bytes), part_bytes_(part_bytes) {}

  /// What to enqueue now; none while a part is under way, and while the copy rests.
  std::optional<Part> take(int64_t now_ns, bool steps_run) {
    if (is_under_way_ || next_ == bytes_ || (steps_run && now_ns < rests_until_ns_)) return {};
    const int64_t begin = next_;
    next_ = steps_run ? std::min(bytes_, begin + part_bytes_) : bytes_;
    is_under_way_ = true;
    return Part{begin, next_};
  }
  /// The part that was taken last has ended.
  void end_part(int64_t now_ns) {
    is_under_way_ = false;
    rests_until_ns_ = now_ns + kRestNs;
  }
  bool is_under_way() const { return is_under_way_; }
  bool has_ended() const { return next_ == bytes_ && !is_under_way_; }

 private:
  int64_t bytes_, part_bytes_;
  int64_t next_ = 0;  // byte
  int64_t rests_until_ns_ = 0;
  bool is_under_way_ = false;
};

}  // namespace loratory::gpu
