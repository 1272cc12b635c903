#include "tests/gpu/emulated/emulated_gpu.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/gpu/emulated/emulated_memory.hpp"

// glibc's swapcontext() asks the kernel for the signal mask at every switch: half of the time of
// these tests. Sanitizers know it, and other processors have it.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LORATORY_SWITCHES_STACKS 1
extern "C" void loratory_switch_stacks(void** from, void* to);
asm(R"(
  .text
  .type loratory_switch_stacks, @function
loratory_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#endif

namespace loratory::gpu::emulated {
namespace {

constexpr size_t kStackBytes = 64 << 10;

/// Where a stack goes on.
#ifdef LORATORY_SWITCHES_STACKS
using Context = void*;

void begin(Context& context, std::byte* stack, void (*main)()) {
  auto** const top = reinterpret_cast<void**>(stack + kStackBytes - 8 * sizeof(void*));
  std::memset(top, 0, 8 * sizeof(void*));  // six registers, main, and where main would return to
  top[6] = reinterpret_cast<void*>(main);
  context = top;
}
void go_on(Context& from, Context& to) { loratory_switch_stacks(&from, to); }
#else
using Context = ucontext_t;

void begin(Context& context, std::byte* stack, void (*main)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, main, 0);
}
void go_on(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

/// How often a group of threads has met.
struct Meeting {
  int arrived = 0;
  int64_t times = 0;
};

struct Copy {
  void* to;
  const void* from;
  int num_bytes, size;
};

using Stack = std::unique_ptr<std::byte[]>;

struct Fiber {
  Thread thread;
  Context context{};
  Stack stack;
  bool has_ended = false;
  // What it waits for, asked without a switch to its stack; null: it can go on.
  bool (*is_met)(const void* condition) = nullptr;
  const void* condition = nullptr;
  int64_t cluster_times = 0;  // when it arrived at the cluster's barrier
  int num_exchanges = 0;
  std::vector<Copy> open;  // not committed
  std::deque<std::vector<Copy>> groups;
};

struct Barrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0;
  int64_t phases = 0;
};

/// A box on its way to one CTA.
struct BoxInFlight {
  Box box;
  int cta;
  size_t to;
  uint64_t* barrier;
};

/// A thread that arrives once its copies have ended.
struct LateArrival {
  std::vector<Copy> copies;
  uint64_t* barrier;
};

struct Cta {
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;
  int num_running = 0;  // threads
  Meeting meeting;
  std::vector<Meeting> warps;
  Meeting named[16];
  std::vector<std::vector<std::byte>> exchanged[2];  // of each warp; in turns
};

/// Stacks of threads that have ended: fresh memory takes longer than most CTAs run.
std::vector<Stack> free_stacks;

Stack take_stack() {
  if (free_stacks.empty()) return std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  Stack out = std::move(free_stacks.back());
  free_stacks.pop_back();
  return out;
}

struct Machine {
  Launch launch;
  const std::function<void(std::byte*)>* kernel = nullptr;
  Context scheduler{};
  std::vector<Cta> ctas;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::map<uint64_t*, Barrier> barriers;
  std::vector<BoxInFlight> boxes;
  std::vector<LateArrival> late;
  Meeting cluster;
  bool has_prior_ended = false;
  Fiber* now = nullptr;
  std::exception_ptr error;  // of a thread, whose stack it cannot leave
  bool has_moved = false;
  int64_t num_rounds = 0;  // in which every warp has run
};
Machine* machine = nullptr;
std::function<void()> next_prior_grid;

Cta& cta() { return machine->ctas[size_t(machine->now->thread.cta)]; }
size_t warp() { return machine->now->thread.thread.x / 32; }

void yield() { go_on(machine->now->context, machine->scheduler); }

template <typename Condition>
void wait_until(const Condition& condition) {
  if (!condition()) {
    Fiber& me = *machine->now;
    me.condition = &condition;
    me.is_met = [](const void* of) { return (*static_cast<const Condition*>(of))(); };
    yield();
    me.is_met = nullptr;
  }
  machine->has_moved = true;
}

void meet(Meeting& meeting, int size) {
  machine->has_moved = true;
  const int64_t before = meeting.times;
  if (++meeting.arrived == size) {
    meeting.arrived = 0;
    ++meeting.times;
    return;
  }
  wait_until([&] { return meeting.times > before; });
}

void fiber_main() {
  try {
    (*machine->kernel)(machine->now->thread.shared);
  } catch (...) {
    machine->error = std::current_exception();
  }
  machine->now->has_ended = true;
  machine->has_moved = true;
  --cta().num_running;
  yield();
}

void end_phase_if_complete(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  ++b.phases;
  machine->has_moved = true;
}

void end_fibers() {
  for (auto& fiber : machine->fibers) free_stacks.push_back(std::move(fiber->stack));
  machine->fibers.clear();
}

void make_ctas(Index first_block) {
  const Launch& l = machine->launch;
  machine->ctas = std::vector<Cta>(size_t(l.cluster));
  end_fibers();
  machine->barriers.clear();
  machine->boxes.clear();
  machine->late.clear();
  machine->cluster = {};
  for (int i = 0; i < l.cluster; ++i) {
    Cta& c = machine->ctas[size_t(i)];
    c.memory.assign(l.shared_bytes + 2048, std::byte{0xFF});
    auto at = reinterpret_cast<uintptr_t>(c.memory.data());
    c.shared = reinterpret_cast<std::byte*>((at + 1023) / 1024 * 1024);
    c.num_running = l.num_threads;
    c.warps.resize(size_t(l.num_threads / 32));
    for (auto& rooms : c.exchanged) rooms.assign(c.warps.size(), std::vector<std::byte>(32 * 64));
    for (int t = 0; t < l.num_threads; ++t) {
      auto& fiber = *machine->fibers.emplace_back(std::make_unique<Fiber>());
      fiber.stack = take_stack();
      fiber.thread = {
          {unsigned(t)},
          {first_block.x + unsigned(i), first_block.y, first_block.z},
          {unsigned(l.cluster * l.num_clusters), unsigned(l.grid_y), unsigned(l.grid_z)},
          {unsigned(l.num_threads), 1, 1},
          i,
          c.shared};
      begin(fiber.context, fiber.stack.get(), fiber_main);
    }
  }
}

void end_bytes(Barrier& b, int64_t bytes) {
  b.bytes -= bytes;
  if (b.bytes == 0) end_phase_if_complete(b);
}

/// That of a CTA in the cluster, which has none once it has ended.
std::byte* shared_of(int cta) {
  const Cta& c = machine->ctas[size_t(cta)];
  if (c.num_running == 0) throw std::runtime_error("shared memory of a CTA that has ended");
  return c.shared;
}

/// Where byte `at` of shared memory lies in the swizzle of 128 bytes.
size_t swizzled(size_t at) { return at ^ (at / 128 % 8 * 16); }

/// Of the matrix. Rows beyond its end stay there.
int64_t matrix_row(const Box& b, int64_t row) {
  if (b.half_rows == 0 || row >= b.num_rows) return row;
  return row / 8 % 2 * b.half_rows + row / 16 * 8 + row % 8;
}

void deliver(const BoxInFlight& flight) {
  const Box& b = flight.box;
  std::byte* const shared = shared_of(flight.cta);
  for (int i = 0; i < 64 * b.box_rows; ++i) {
    const int64_t row = matrix_row(b, b.row + i / 64), column = b.column + i % 64;
    std::byte* const to = shared + swizzled(flight.to + 2 * size_t(i));
    std::memset(to, 0, 2);
    if (row >= b.num_rows || column >= b.num_columns) continue;
    std::memcpy(to, b.matrix + row * b.row_bytes + 2 * column, 2);
  }
  end_bytes(machine->barriers.at(flight.barrier), 128 * b.box_rows);
}

void end(const Copy& copy) {
  std::memset(copy.to, 0, size_t(copy.size));
  std::memcpy(copy.to, copy.from, size_t(copy.num_bytes));
}

void deliver(const LateArrival& late) {
  for (const Copy& copy : late.copies) end(copy);
  arrive(late.barrier, 0);
}

/// About half of what is under way arrives; one at least, if nothing else moves. Whether any did.
template <typename Flight>
bool deliver_some(std::vector<Flight>& all, std::mt19937_64& random, bool has_moved) {
  std::ranges::shuffle(all, random);
  size_t num = 0;
  for (size_t i = 0; i < all.size(); ++i) num += random() % 2;
  if (num == 0 && !has_moved && !all.empty()) num = 1;
  for (size_t i = 0; i < num; ++i) {
    deliver(all.back());
    all.pop_back();
  }
  return num > 0;
}

/// Runs the lanes of a warp, from a random one on, until all of them wait. Whether any moved.
bool run_warp(size_t first, size_t lane) {
  bool has_moved = false;
  do {
    machine->has_moved = false;
    for (size_t i = 0; i < 32; ++i) {
      Fiber* const fiber = machine->fibers[first + (lane + i) % 32].get();
      if (fiber->has_ended) continue;
      if (fiber->is_met != nullptr && !fiber->is_met(fiber->condition)) continue;
      machine->now = fiber;
      go_on(machine->scheduler, fiber->context);
      if (machine->error) std::rethrow_exception(machine->error);
    }
    has_moved = has_moved || machine->has_moved;
  } while (machine->has_moved);
  return has_moved;
}

void run_cluster(std::mt19937_64& random) {
  std::vector<size_t> warps;
  for (size_t i = 0; i < machine->fibers.size(); i += 32) warps.push_back(i);
  const auto is_alive = [](const auto& fiber) { return !fiber->has_ended; };
  while (std::ranges::any_of(machine->fibers, is_alive)) {
    std::ranges::shuffle(warps, random);
    ++machine->num_rounds;
    bool has_moved = false;
    for (const size_t first : warps) has_moved = run_warp(first, random() % 32) || has_moved;
    has_moved = deliver_some(machine->boxes, random, has_moved) || has_moved;
    has_moved = deliver_some(machine->late, random, has_moved) || has_moved;
    if (!has_moved) throw std::runtime_error("all threads wait");
  }
}

}  // namespace

Thread& current() { return machine->now->thread; }
const Launch& launched() { return machine->launch; }

void set_prior_grid(std::function<void()> prior_grid) { next_prior_grid = std::move(prior_grid); }

void run(const Launch& launch, const std::function<void(std::byte*)>& kernel) {
  Machine all;
  all.launch = launch;
  if (next_prior_grid) all.launch.prior_grid = std::exchange(next_prior_grid, nullptr);
  all.kernel = &kernel;
  machine = &all;
  std::mt19937_64 random(launch.seed);
  for (int i = 0; i < launch.num_clusters * launch.grid_y * launch.grid_z; ++i) {
    const int row = i / launch.num_clusters;
    make_ctas({unsigned(i % launch.num_clusters * launch.cluster), unsigned(row % launch.grid_y),
               unsigned(row / launch.grid_y)});
    run_cluster(random);
  }
  end_fibers();
  machine = nullptr;
  if (all.launch.prior_grid && !all.has_prior_ended) {
    throw std::runtime_error("ends before the grid before it");
  }
}

void pause() {
  machine->has_moved = true;
  wait_until([now = machine->num_rounds] { return machine->num_rounds > now; });
}
void sync_cta() { meet(cta().meeting, machine->launch.num_threads); }
void sync_warp() { meet(cta().warps[warp()], 32); }
void sync_some(int id, int num_threads) { meet(cta().named[id], num_threads); }

void exchange(const void* value, size_t bytes, void* all) {
  std::vector<std::byte>& room = cta().exchanged[machine->now->num_exchanges++ % 2][warp()];
  std::memcpy(room.data() + current().thread.x % 32 * bytes, value, bytes);
  sync_warp();
  std::memcpy(all, room.data(), 32 * bytes);
}

void wait_for_prior_grid() {
  if (!launched().prior_grid || machine->has_prior_ended) return;
  for (int i = 0; i < 3; ++i) pause();
  if (machine->has_prior_ended) return;
  launched().prior_grid();
  machine->has_prior_ended = true;
}

void launch_dependents() {
  if (!launched().dependents_find_x || !launched().prior_grid || machine->has_prior_ended) return;
  throw std::runtime_error("lets the next grid start before x is ready");
}

void arrive_cluster() {
  machine->now->cluster_times = machine->cluster.times;
  machine->has_moved = true;
  if (++machine->cluster.arrived < int(machine->fibers.size())) return;
  machine->cluster.arrived = 0;
  ++machine->cluster.times;
}
void wait_cluster() {
  Fiber* const me = machine->now;
  wait_until([me] { return machine->cluster.times > me->cluster_times; });
}

void init_barrier(uint64_t* barrier, int arrivals) {
  machine->barriers[barrier] = {.arrivals = arrivals, .pending = arrivals};
}
void arrive(uint64_t* barrier, int bytes, int num_threads) {
  Barrier& b = machine->barriers.at(barrier);
  b.pending -= num_threads;
  b.bytes += bytes;
  end_phase_if_complete(b);
}
void wait_barrier(uint64_t* barrier, int parity) {
  Barrier& b = machine->barriers.at(barrier);
  wait_until([&] { return b.phases % 2 != parity; });
}
void send(void* destination, uint64_t* barrier, int to, const void* bytes16) {
  std::byte* const there = shared_of(to);
  const auto offset = [](const void* p) {
    return static_cast<const std::byte*>(p) - current().shared;
  };
  std::memcpy(there + offset(destination), bytes16, 16);
  end_bytes(machine->barriers.at(reinterpret_cast<uint64_t*>(there + offset(barrier))), 16);
}

void arrive_at(uint64_t* barrier, int to) {
  const auto offset = reinterpret_cast<std::byte*>(barrier) - current().shared;
  arrive(reinterpret_cast<uint64_t*>(shared_of(to) + offset), 0);
}

void copy_box(const Box& box, void* to, uint64_t* barrier, unsigned ctas) {
  const auto offset = [](void* p) { return size_t(static_cast<std::byte*>(p) - current().shared); };
  const size_t at = offset(to), bytes = 128 * size_t(box.box_rows);
  if (at % 128 != 0) throw std::runtime_error("bulk copy: to is not aligned");
  if (at + bytes > launched().shared_bytes) throw std::runtime_error("bulk copy: no shared memory");
  if (reinterpret_cast<uintptr_t>(box.matrix) % 16 != 0 || box.row_bytes % 16 != 0) {
    throw std::runtime_error("bulk copy: rows are not aligned");
  }
  for (int cta = 0; cta < launched().cluster; ++cta) {
    if ((ctas >> cta & 1) == 0) continue;
    std::byte* const there = shared_of(cta);
    std::memset(there + at, 0xFF, bytes);
    machine->boxes.push_back({box, cta, at, reinterpret_cast<uint64_t*>(there + offset(barrier))});
  }
}

void copy_later(void* to, const void* from, int num_bytes, int size) {
  const auto is_aligned = [&](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % uintptr_t(size) == 0;
  };
  if (!is_aligned(to)) throw std::runtime_error("cp.async: to");
  if (num_bytes > 0 && !is_aligned(from)) {
    throw std::runtime_error("cp.async: from is not aligned");
  }
  const auto* const bytes = static_cast<const std::byte*>(from);
  if (num_bytes == 16 && std::count(bytes, bytes + 16, kCanary) == 16) {
    throw std::runtime_error("cp.async: from lies beside a tensor");
  }
  std::memset(to, 0xFF, size_t(size));
  machine->now->open.push_back({to, from, num_bytes, size});
}
void commit_copies() {
  machine->now->groups.push_back(std::move(machine->now->open));
  machine->now->open.clear();
}
void wait_for_copies(int most_open) {
  auto& groups = machine->now->groups;
  while (int(groups.size()) > most_open) {
    for (const Copy& copy : groups.front()) end(copy);
    groups.pop_front();
  }
}
void arrive_after_copies(uint64_t* barrier) {
  machine->late.push_back({std::move(machine->now->open), barrier});
  machine->now->open.clear();
}

}  // namespace loratory::gpu::emulated
