#include "scheduler_sim/trace/line_reader.hpp"

#include <cstring>

namespace loratory::sim {
namespace {

constexpr size_t kChunkBytes = 1 << 16;

}  // namespace

LineReader::LineReader(ByteSource& source)
    : source_(source), buffer_(new char[kChunkBytes + kPaddingBytes]()), capacity_(kChunkBytes) {}

LineReader::~LineReader() = default;

bool LineReader::next(Line& line) {
  for (;;) {
    const void* newline = std::memchr(buffer_.get() + scanned_, '\n', end_ - scanned_);
    if (newline != nullptr) {
      return take(size_t(static_cast<const char*>(newline) - buffer_.get()), true, line);
    }
    scanned_ = end_;
    if (refill()) continue;
    if (begin_ == end_ && !is_too_long_) return false;
    return !source_.is_truncated() && take(end_, false, line);
  }
}

// [begin_, end) is the line; a newline follows it when is_terminated.
bool LineReader::take(size_t end, bool is_terminated, Line& line) {
  line.text = std::string_view(buffer_.get() + begin_, end - begin_);
  if (line.text.ends_with('\r')) line.text.remove_suffix(1);
  line.number = ++number_;
  line.is_terminated = is_terminated;
  line.is_too_long = is_too_long_;
  if (is_too_long_) line.text = {};
  is_too_long_ = false;
  begin_ = scanned_ = end + (is_terminated ? 1 : 0);
  return true;
}

// Moves the unfinished line to the front and reads behind it. False at the end of the source.
bool LineReader::refill() {
  is_too_long_ = is_too_long_ || end_ - begin_ > kMaxBytes;
  if (is_too_long_) begin_ = end_;  // dropped chunk by chunk, up to the newline
  const size_t kept = end_ - begin_;
  if (kept + kChunkBytes > capacity_) {
    capacity_ = 2 * (kept + kChunkBytes);
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
