#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace loratory::cli {
namespace {

constexpr int64_t kBarWidth = 30;
constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr std::chrono::milliseconds kPatience{500};
constexpr const char* kWipeLine = "\r\x1b[K";

// Held while a line is drawn; and by wipe_for_good(), which never lets go.
std::mutex& terminal() {
  static auto& mutex = *new std::mutex;  // outlives every thread
  return mutex;
}

std::FILE* drawn_on = nullptr;  // where there is a line to be wiped; guarded by terminal()

void wipe() {
  if (drawn_on == nullptr) return;
  std::fputs(kWipeLine, drawn_on);
  std::fflush(drawn_on);
  drawn_on = nullptr;
}

}  // namespace

std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s,
                          std::string_view unit) {
  const std::string_view blank = unit.empty() ? "" : " ";
  if (total <= 0 && done <= 0) return fmt::format("{}  {:.0f} s", label, elapsed_s);
  if (total <= 0) return fmt::format("{}  {}{}{}  {:.0f} s", label, done, blank, unit, elapsed_s);
  const int64_t filled =
      std::clamp<int64_t>(int64_t(double(kBarWidth) * double(done) / double(total)), 0, kBarWidth);
  std::string line = fmt::format("{}  [{:#<{}}{:.<{}}]  {}/{}{}{}  {:.0f} s", label, "", filled, "",
                                 kBarWidth - filled, done, total, blank, unit, elapsed_s);
  if (done > 0 && done < total) {
    const double left_s = elapsed_s * double(total - done) / double(done);
    line += fmt::format(", {:.0f} s left", left_s);
  }
  return line;
}

Progress::Progress(std::string label, std::FILE* out)
    : label_(std::move(label)), out_(out), start_(Clock::now()) {
  if (isatty(fileno(out)) == 1) {
    drawing_ = std::jthread([this](const std::stop_token& stop) { draw_until(stop); });
  }
}

Progress::~Progress() {
  if (!drawing_.joinable()) return;
  drawing_.request_stop();
  drawing_.join();
  const std::scoped_lock lock(terminal());
  wipe();
}

void Progress::show(int64_t done, int64_t total, const char* unit) {
  done_ = done;
  total_ = total;
  unit_ = unit;
}

void Progress::draw_until(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock waiting(mutex);
  auto pause = kPatience;
  while (!wake.wait_for(waiting, stop, pause, [&] { return stop.stop_requested(); })) {
    pause = kRedrawInterval;
    const double elapsed_s = std::chrono::duration<double>(Clock::now() - start_).count();
    const std::string line =
        kWipeLine + progress_line(label_, done_, total_, elapsed_s, unit_.load());
    const std::scoped_lock lock(terminal());
    std::fputs(line.c_str(), out_);
    std::fflush(out_);
    drawn_on = out_;
  }
}

void Progress::wipe_for_good() {
  terminal().lock();
  wipe();
}

}  // namespace loratory::cli
