#include "scheduler_sim/trace/line_reader.hpp"

#include <cstring>

namespace loratory::sim {
namespace {

constexpr size_t kReadBytes = 1 << 16;

}  // namespace

LineReader::LineReader(ByteSource& source, size_t max_bytes)
    : source_(source),
      max_bytes_(max_bytes),
      buffer_(new char[kReadBytes + kPaddingBytes]()),
      capacity_(kReadBytes) {}

LineReader::~LineReader() = default;

bool LineReader::next(Line& line) {
  if (is_too_long_ && !drop_rest_of_line()) return false;
  for (;;) {
    const void* newline = std::memchr(buffer_.get() + scanned_, '\n', end_ - scanned_);
    if (newline != nullptr) {
      return take(size_t(static_cast<const char*>(newline) - buffer_.get()), true, line);
    }
    scanned_ = end_;
    if (end_ - begin_ > max_bytes_) return take_too_long(line);
    if (refill()) continue;
    if (begin_ == end_) return false;
    return !source_.is_truncated() && take(end_, false, line);
  }
}

// [begin_, end) is the line; a newline follows it when is_terminated.
bool LineReader::take(size_t end, bool is_terminated, Line& line) {
  line = {std::string_view(buffer_.get() + begin_, end - begin_), ++number_, is_terminated, false};
  if (line.text.ends_with('\r')) line.text.remove_suffix(1);
  begin_ = scanned_ = end + (is_terminated ? 1 : 0);
  if (line.text.size() > max_bytes_) line = {{}, number_, is_terminated, true};
  return true;
}

// Given at once: a line without end would never be.
bool LineReader::take_too_long(Line& line) {
  line = {{}, ++number_, false, true};
  is_too_long_ = true;
  return true;
}

// Up to its newline; false when there is none.
bool LineReader::drop_rest_of_line() {
  size_t num_dropped = 0;
  for (;;) {
    const void* newline = std::memchr(buffer_.get() + begin_, '\n', end_ - begin_);
    if (newline != nullptr) {
      begin_ = scanned_ = size_t(static_cast<const char*>(newline) - buffer_.get()) + 1;
      is_too_long_ = false;
      return true;
    }
    num_dropped += end_ - begin_;
    begin_ = scanned_ = end_;
    is_endless_ = num_dropped > kMaxDroppedBytes;
    if (is_endless_ || !refill()) return false;
  }
}

// Moves the unfinished line to the front and reads behind it. False at the end of the source.
bool LineReader::refill() {
  const size_t kept = end_ - begin_;
  if (kept + kReadBytes > capacity_) {
    capacity_ = 2 * (kept + kReadBytes);
    std::unique_ptr<char[]> larger(new char[capacity_ + kPaddingBytes]());
    std::memcpy(larger.get(), buffer_.get() + begin_, kept);
    buffer_ = std::move(larger);
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, kept);
  }
  begin_ = 0;
  scanned_ = kept;
  const size_t count = source_.read(buffer_.get() + kept, capacity_ - kept);
  end_ = kept + count;
  return count > 0;
}

}  // namespace loratory::sim
