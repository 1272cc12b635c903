#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

namespace loratory::cli {

/// A progress bar, redrawn in place ten times a second at most and wiped at the end. Silent when
/// `out` is not a terminal, so that logs and pipes stay clean. show() may be called by any thread.
class Progress {
 public:
  explicit Progress(std::string label, std::FILE* out = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t done, int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  const std::string label_;
  std::FILE* const out_;
  const bool enabled_;
  const Clock::time_point start_;
  Clock::time_point drawn_;
};

/// "size  [#####.....]  5/10  12 s, 12 s left"
std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s);

}  // namespace loratory::cli
