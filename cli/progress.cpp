#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace loratory::cli {
namespace {

constexpr int64_t kBarWidth = 30;
constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr const char* kWipeLine = "\r\x1b[K";

}  // namespace

std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s) {
  const int64_t filled =
      total > 0 ? std::clamp<int64_t>(kBarWidth * done / total, 0, kBarWidth) : 0;
  std::string line = fmt::format("{}  [{:#<{}}{:.<{}}]  {}/{}  {:.0f} s", label, "", filled, "",
                                 kBarWidth - filled, done, total, elapsed_s);
  if (done > 0 && done < total) {
    const double left_s = elapsed_s * double(total - done) / double(done);
    line += fmt::format(", {:.0f} s left", left_s);
  }
  return line;
}

Progress::Progress(std::string label, std::FILE* out)
    : label_(std::move(label)),
      out_(out),
      enabled_(isatty(fileno(out)) == 1),
      start_(Clock::now()) {}

Progress::~Progress() {
  if (!enabled_) return;
  std::fputs(kWipeLine, out_);
  std::fflush(out_);
}

void Progress::show(int64_t done, int64_t total) {
  if (!enabled_) return;
  const std::scoped_lock lock(mutex_);
  const auto now = Clock::now();
  if (now - drawn_ < kRedrawInterval && done < total) return;
  drawn_ = now;
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  std::fputs((kWipeLine + progress_line(label_, done, total, elapsed_s)).c_str(), out_);
  std::fflush(out_);
}

}  // namespace loratory::cli
