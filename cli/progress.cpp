#include "cli/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
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

// 0: it does not say. Its window may change its size at any time.
int columns_of(std::FILE* terminal) {
  winsize size{};
  return ::ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string line_with_bar(const std::string& label, int64_t done, int64_t total, double elapsed_s,
                          std::string_view unit, int64_t bar_width) {
  const std::string_view blank = unit.empty() ? "" : " ";
  if (total <= 0 && done <= 0) return fmt::format("{}  {:.0f} s", label, elapsed_s);
  if (total <= 0) return fmt::format("{}  {}{}{}  {:.0f} s", label, done, blank, unit, elapsed_s);
  const int64_t filled =
      std::clamp<int64_t>(int64_t(double(bar_width) * double(done) / double(total)), 0, bar_width);
  std::string line = fmt::format("{}  [{:#<{}}{:.<{}}]  {}/{}{}{}  {:.0f} s", label, "", filled, "",
                                 bar_width - filled, done, total, blank, unit, elapsed_s);
  if (done > 0 && done < total) {
    const double left_s = elapsed_s * double(total - done) / double(done);
    line += fmt::format(", {:.0f} s left", left_s);
  }
  return line;
}

}  // namespace

std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s,
                          std::string_view unit, int columns) {
  const auto line_of = [&](int64_t bar_width) {
    return line_with_bar(label, done, total, elapsed_s, unit, bar_width);
  };
  std::string line = line_of(kBarWidth);
  const int64_t excess = std::ssize(line) - (columns - 1);  // one that is full may wrap
  if (columns == 0 || excess <= 0) return line;
  line = line_of(std::max<int64_t>(0, kBarWidth - excess));
  line.resize(std::min(line.size(), size_t(columns - 1)));
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
        kWipeLine + progress_line(label_, done_, total_, elapsed_s, unit_.load(), columns_of(out_));
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
