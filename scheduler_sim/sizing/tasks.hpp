#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace loratory::sim {

/// Runs task(0) .. task(n-1), in this order of starting, on so many threads (0 = one per core), or
/// on as many as the system gives. The exception of the first task that throws one is thrown again
/// here, after all others have ended.
template <typename Task>
void run_tasks(int64_t num_tasks, int num_threads, Task task) {
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  int64_t failed_task = num_tasks;
  const auto work = [&] {
    for (int64_t i = next++; i < num_tasks; i = next++) {
      try {
        task(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (i < failed_task) failed_task = i, failure = std::current_exception();
      }
    }
  };
  const int cores = int(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t threads = std::min<int64_t>(num_threads > 0 ? num_threads : cores, num_tasks);
  std::vector<std::jthread> helpers;
  try {
    for (int64_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: those that run do all of it
  }
  work();
  helpers.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace loratory::sim
