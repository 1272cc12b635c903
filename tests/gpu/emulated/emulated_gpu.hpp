#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// A GPU for functional tests of kernels without one: the threads of one cluster at a time, each on
// a stack of its own, in an order that a seed shuffles. Barriers, warp exchanges, ldmatrix, mma,
// st.async with its barriers, cp.async whose bytes arrive when they are waited for, not before, and
// bulk copies of tiles and copies that a barrier waits for, whose bytes arrive at any time: until
// then there is NaN. wgmma is in overlay/. No timing, no memory model beyond that. A product's sum
// is rounded once per step of k16, so bits are not those of a GPU, but they do not depend on what
// the GPU's do not depend on.

namespace loratory::gpu::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// The thread that runs now.
struct Thread {
  Index thread, block, grid, block_size;
  int cta = 0;  ///< in the cluster
  std::byte* shared = nullptr;
};
Thread& current();

struct Launch {
  int num_threads = 256;
  int cluster = 1;
  int num_clusters = 1;  ///< run one after the other; along x
  int grid_y = 1, grid_z = 1;
  size_t shared_bytes = 0;
  uint64_t seed = 1;
  // Of a product's results, which are numbers: nobody uses the others.
  /// Rows, of the operand that begins at this byte of shared memory; null: all.
  std::function<int(size_t)> wgmma_rows{};
  int wgmma_columns = 256;
  /// What the grid before this one still has to write. It ends at any time before the first wait
  /// for it does; null: it has ended.
  std::function<void()> prior_grid{};
  /// A kernel behind this one may read what the grid before wrote: to let it start before that
  /// grid has ended is an error.
  bool dependents_find_x = false;
};
/// The next run() has this `prior_grid`.
void set_prior_grid(std::function<void()> prior_grid);
/// The one that runs.
const Launch& launched();
/// Runs `kernel` once for each thread. Shared memory holds NaN at first.
/// Errors   std::runtime_error: all threads wait; none waits for the grid before; what a thread
///          threw.
void run(const Launch& launch, const std::function<void(std::byte* shared)>& kernel);

void sync_cta();
/// Lets the other warps run.
void pause();
void sync_warp();
/// Barrier `id` of the CTA, 1 to 15, of so many threads.
void sync_some(int id, int num_threads);
/// Every lane gives `bytes` of `value`; `all` becomes those of the 32 lanes.
void exchange(const void* value, size_t bytes, void* all);

void wait_for_prior_grid();
void launch_dependents();
void arrive_cluster();
void wait_cluster();
void init_barrier(uint64_t* barrier, int arrivals);
void arrive(uint64_t* barrier, int bytes, int num_threads = 1);
void wait_barrier(uint64_t* barrier, int parity);
void send(void* destination, uint64_t* barrier, int cta, const void* bytes16);
/// At the same barrier of another CTA.
void arrive_at(uint64_t* barrier, int cta);

/// Rows of 64 numbers of 16 bits, from a place in a matrix on.
struct Box {
  const std::byte* matrix = nullptr;
  int64_t num_rows = 0, num_columns = 0, row_bytes = 0;  ///< of the matrix
  int64_t row = 0, column = 0;                           ///< the first of the box
  int box_rows = 0;
  /// If not 0, rows are counted as if the matrix's eights of the first so many rows and of the
  /// others took turns.
  int64_t half_rows = 0;
};
/// To the same place in every CTA of the mask, in the swizzle of 128 bytes; zeros outside of the
/// matrix. Each CTA's barrier counts the bytes.
/// Errors   std::runtime_error: `to` or a row is not aligned, or shared memory ends before the box.
void copy_box(const Box& box, void* to, uint64_t* barrier, unsigned ctas);

/// `num_bytes` are read at the wait, the rest of `size` bytes, 4 or 16, becomes 0.
void copy_later(void* to, const void* from, int num_bytes, int size = 16);
void commit_copies();
void wait_for_copies(int most_open);
/// At any time once this thread's copies that are not committed have ended, which they do then.
void arrive_after_copies(uint64_t* barrier);

}  // namespace loratory::gpu::emulated
