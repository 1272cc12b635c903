#pragma once

#include <vector>

#include "check/kernels/memory.hpp"
#include "check/kernels/place_case.hpp"

namespace loratory::check {

/// Elements from which on an offset of 32 bits wraps.
inline constexpr int64_t kWraps = int64_t(1) << 31;

/// Where the rows of a tensor lie: row i at index at[i] of `count`, `stride` elements apart.
struct Places {
  std::vector<int64_t> at;
  int64_t count = 0;
  int64_t stride = 0;
};

/// Parts of a call in memory of their own, and tensors of more than 2^31 elements of which few are
/// touched. Before the first element of those there is as much again, where offsets that wrapped
/// below 0 lead.
class FarMemory final : public Placing {
 public:
  explicit FarMemory(Memory& memory) : memory_(&memory) {}
  ~FarMemory() override;
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;

  void* operator()(const Part& part) override;
  template <typename Number>
  const Number* copy(const std::vector<Number>& numbers) {
    return static_cast<const Number*>(
        (*this)({"", 0, numbers.data(), numbers.size() * sizeof(Number), true}));
  }
  /// The rows of `host`, along `axis`, to their places; `t` is that tensor then. Axes before `axis`
  /// have one element.
  /// Errors   NoRoom.
  void spread(LoratoryTensor& t, const reference::Tensor& host, const Places& to, size_t axis = 0);
  /// Back into `host`.
  void collect(const LoratoryTensor& t, reference::Tensor& host, const Places& from,
               size_t axis = 0) const;
  /// Full of NaN on a device; on the host zeros if it is large.
  void* workspace(size_t bytes);

  /// What spread() asks for.
  static int64_t bytes_of(const reference::Tensor& host, const Places& to, size_t axis = 0);

 private:
  Memory* memory_;
  std::vector<void*> owned_;
};

}  // namespace loratory::check
