#pragma once

#include <cuda.h>

#include <cstring>
#include <stdexcept>

#include "gpu/kernels/ptx.cuh"

// gpu/kernels/bulk_tensor.cuh for an emulated GPU. A map holds a Box whose place is not known yet.

namespace loratory::gpu {

inline bool is_elected() {
  __syncwarp();  // a whole warp asks
  return lane_id() == 0;
}
inline void arrive_at(uint64_t* barrier, int cta) { emulated::arrive_at(barrier, cta); }

constexpr uint64_t kEvictFirst = 0, kEvictLast = 0;

inline CUtensorMap map_of(const emulated::Box& box) {
  CUtensorMap map{};
  static_assert(sizeof box <= sizeof map);
  std::memcpy(&map, &box, sizeof box);
  return map;
}
inline emulated::Box box_at(const CUtensorMap& map, int column, int row, bool has_halves) {
  emulated::Box box;
  std::memcpy(&box, &map, sizeof box);
  if ((box.half_rows != 0) != has_halves) throw std::runtime_error("bulk copy: another map's");
  box.column = column;
  box.row = row;
  return box;
}
inline void multicast_box(void* to, const CUtensorMap& map, int column, int row, uint64_t* barrier,
                          uint16_t ctas, uint64_t) {
  emulated::copy_box(box_at(map, column, row, false), to, barrier, ctas);
}
inline void multicast_halves(void* to, const CUtensorMap& map, int column, int eight,
                             uint64_t* barrier, uint16_t ctas, uint64_t) {
  emulated::copy_box(box_at(map, column, 16 * eight, true), to, barrier, ctas);
}
inline void load_halves(void* to, const CUtensorMap& map, int column, int eight, uint64_t* barrier,
                        uint64_t policy) {
  multicast_halves(to, map, column, eight, barrier, uint16_t(1 << cluster_rank()), policy);
}
inline void load_box(void* to, const CUtensorMap& map, int column, int row, uint64_t* barrier,
                     uint64_t policy) {
  multicast_box(to, map, column, row, barrier, uint16_t(1 << cluster_rank()), policy);
}
/// The map's box has so many rows of all columns.
inline void load_eights(void* to, const CUtensorMap& map, int eight, uint64_t* barrier, uint64_t) {
  emulated::Box box = box_at(map, 0, 8 * eight, false);
  const int64_t end = box.row + box.box_rows;
  auto* at = static_cast<std::byte*>(to);
  for (box.box_rows = 8; box.row < end; box.row += 8) {
    for (box.column = 0; box.column < box.num_columns; box.column += 64, at += 1024) {
      emulated::copy_box(box, at, barrier, 1U << cluster_rank());
    }
  }
}
inline void prefetch_map(const CUtensorMap&) {}
inline void fence_global_for_bulk_copies() {}
inline void fence_shared_for_bulk_copies() {}

}  // namespace loratory::gpu
