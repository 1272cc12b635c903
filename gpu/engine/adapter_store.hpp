#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gpu/engine/slot_layout.hpp"
#include "scheduler_sim/executors/model_runner.hpp"
#include "scheduler_sim/residency/residency.hpp"

namespace loratory::gpu {

/// The adapters in host memory, each as the image of a slot, so that a copy to the GPU is one
/// transfer. Worker threads read and parse files; nothing of that happens on the caller's thread.
/// All calls come from one thread.
class AdapterStore {
 public:
  /// Memory of at least so many bytes that the GPU copies from. Kept and used again. Workers call
  /// it too, several at once.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;

  /// Allocates `num_images` at once; more only when all are in use.
  AdapterStore(SlotLayout layout, int num_workers, int64_t num_images, Allocate allocate);
  /// Waits for the loads under way; those that have not begun are dropped.
  ~AdapterStore();
  AdapterStore(const AdapterStore&) = delete;
  AdapterStore& operator=(const AdapterStore&) = delete;

  void add(sim::Uid uid, sim::AdapterSource source);
  /// Forgets source and image.
  void remove(sim::Uid uid);

  /// Calls the adapter's source on a worker, which allocates memory too if none is free. Whatever
  /// they throw, or an adapter that slots have no room for, fails this load alone.
  void begin_load(sim::Uid uid);
  struct Ended {
    sim::Uid uid = sim::kBaseUid;
    std::string error;  ///< one line; empty: the image is there
  };
  bool has_ended() const;
  /// The first that ended and was not taken yet; its image can be had from now on.
  Ended take_ended();
  /// Waits until a load has ended, or for so long.
  void wait(std::chrono::nanoseconds most) const;
  int num_loading() const { return num_loading_; }

  /// Nullptr: not in host memory. A copy under way keeps what it holds.
  std::shared_ptr<const std::byte> image(sim::Uid uid) const;
  void drop(sim::Uid uid) { images_.erase(uid); }

  const SlotLayout& layout() const { return layout_; }
  int64_t num_images() const { return int64_t(buffers_.size()); }

 private:
  struct Job {
    sim::Uid uid = sim::kBaseUid;
    sim::AdapterSource source;
    std::shared_ptr<std::byte> image;  // null: the worker allocates
    bool allocates = false;
    std::string error;
  };
  std::shared_ptr<std::byte> free_buffer() const;
  void work();
  void run(Job& job) const;

  SlotLayout layout_;
  Allocate allocate_;
  std::unordered_map<sim::Uid, sim::AdapterSource> sources_;
  std::unordered_map<sim::Uid, std::shared_ptr<std::byte>> images_;
  // Free: nobody else holds it. What a load allocates joins them when the load is taken.
  std::vector<std::shared_ptr<std::byte>> buffers_;
  int num_loading_ = 0;

  mutable std::mutex mutex_;
  mutable std::condition_variable wakes_worker_, ended_;
  std::deque<Job> waiting_, done_;
  bool stops_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace loratory::gpu
