#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

namespace loratory::cli {

/// A progress bar on a terminal, redrawn in place ten times a second and wiped at the end. It
/// appears after half a second, so that quick work shows none. Silent when `out` is not a terminal,
/// so that logs and pipes stay clean. One at a time.
class Progress {
 public:
  explicit Progress(std::string label, std::FILE* out = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// So much of `total` is done, in `unit`, which lives for ever; total = 0: nobody knows of how
  /// much, and there is no bar but the count and the time. By any thread; cheap.
  void show(int64_t done, int64_t total, const char* unit = "");

  /// For who is about to end the process: wipes what is drawn and lets nothing be drawn again.
  static void wipe_for_good();

 private:
  using Clock = std::chrono::steady_clock;
  void draw_until(const std::stop_token& stop);

  const std::string label_;
  std::FILE* const out_;
  const Clock::time_point start_;
  std::atomic<int64_t> done_ = 0, total_ = 0;
  std::atomic<const char*> unit_ = "";
  std::jthread drawing_;
};

/// "size  [#####.....]  5/10  12 s, 12 s left"; without a total "size  12 s" or, once some is done,
/// "reading  3000 rows  12 s". Shorter than a terminal of `columns`: the bar shrinks first, then
/// the end is cut off. 0: nobody knows how wide it is.
std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s,
                          std::string_view unit = "", int columns = 0);

}  // namespace loratory::cli
