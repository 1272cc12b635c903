#include "gpu/engine/adapter_store.hpp"

#include <fmt/format.h>

#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using sim::Uid;

AdapterStore::AdapterStore(SlotLayout layout, int num_workers, int64_t num_images,
                           Allocate allocate)
    : layout_(std::move(layout)), allocate_(std::move(allocate)) {
  for (int64_t i = 0; i < num_images; ++i) {
    buffers_.push_back(allocate_(size_t(layout_.bytes())));
  }
  for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this] { work(); });
}

AdapterStore::~AdapterStore() {
  {
    const std::scoped_lock lock(mutex_);
    stops_ = true;
  }
  wakes_worker_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void AdapterStore::add(Uid uid, sim::AdapterSource source) {
  const bool is_new = sources_.emplace(uid, std::move(source)).second;
  LORATORY_ASSERT(is_new && uid != sim::kBaseUid, "a uid is used once");
}

void AdapterStore::remove(Uid uid) {
  sources_.erase(uid);
  images_.erase(uid);
}

std::shared_ptr<std::byte> AdapterStore::free_buffer() const {
  for (const auto& buffer : buffers_) {
    if (buffer.use_count() == 1) return buffer;
  }
  return nullptr;
}

// --- loads ------------------------------------------------------------------------------------

void AdapterStore::begin_load(Uid uid) {
  const auto source = sources_.find(uid);
  LORATORY_ASSERT(source != sources_.end(), "only a registered adapter is loaded");
  ++num_loading_;
  std::shared_ptr<std::byte> image = free_buffer();
  const bool allocates = image == nullptr;
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back({uid, source->second, std::move(image), allocates, ""});
  }
  wakes_worker_.notify_one();
}

void AdapterStore::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wakes_worker_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
    if (stops_) return;
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    run(job);
    lock.lock();
    done_.push_back(std::move(job));
    ended_.notify_all();
  }
}

void AdapterStore::run(Job& job) const {
  try {
    const reference::Adapter adapter = job.source();
    job.error = layout_.problem(adapter);
    if (!job.error.empty()) {
      job.error = fmt::format("adapter {}: {}", job.uid, job.error);
      return;
    }
    // Here, because page-locking takes its time and the caller plans steps.
    if (job.allocates) job.image = allocate_(size_t(layout_.bytes()));
    write_slot_image(layout_, adapter, {job.image.get(), size_t(layout_.bytes())});
  } catch (const std::exception& error) {
    job.error = error.what();
  }
}

bool AdapterStore::has_ended() const {
  const std::scoped_lock lock(mutex_);
  return !done_.empty();
}

AdapterStore::Ended AdapterStore::take_ended() {
  Job job;
  {
    const std::scoped_lock lock(mutex_);
    LORATORY_ASSERT(!done_.empty(), "only what began ends");
    job = std::move(done_.front());
    done_.pop_front();
  }
  --num_loading_;
  if (job.allocates && job.image != nullptr) buffers_.push_back(job.image);
  if (job.error.empty()) images_.insert_or_assign(job.uid, std::move(job.image));
  return {job.uid, job.error};
}

void AdapterStore::wait(std::chrono::nanoseconds most) const {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, most, [this] { return !done_.empty(); });
}

std::shared_ptr<const std::byte> AdapterStore::image(Uid uid) const {
  const auto it = images_.find(uid);
  return it == images_.end() ? nullptr : it->second;
}

}  // namespace loratory::gpu
