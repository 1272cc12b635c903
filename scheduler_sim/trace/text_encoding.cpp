#include "scheduler_sim/trace/text_encoding.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

using namespace std::string_view_literals;

void append_utf8(std::string& out, uint32_t code) {
  const auto tail = [&](int shift) { out += char(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    out += char(code);
  } else if (code < 0x800) {
    out += char(0xc0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += char(0xe0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += char(0xf0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_high(uint32_t unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool is_low(uint32_t unit) { return unit >= 0xdc00 && unit < 0xe000; }

// A surrogate without its other half is written as UTF-8 would write any other unit, which is not
// valid UTF-8.
class Utf16Source final : public ByteSource {
 public:
  Utf16Source(std::unique_ptr<ByteSource> bytes, bool is_big_endian)
      : bytes_(std::move(bytes)), is_big_endian_(is_big_endian) {}

  size_t read(char* out, size_t capacity) override {
    while (text_.empty() && !is_at_end_) convert();
    const size_t count = text_.copy(out, capacity);
    text_.erase(0, count);
    return count;
  }
  bool is_truncated() const override { return bytes_->is_truncated(); }

 private:
  void convert() {
    std::array<char, 1 << 14> chunk;
    const size_t count = bytes_->read(chunk.data(), chunk.size());
    for (size_t i = 0; i < count; ++i) take_byte(uint8_t(chunk[i]));
    if (count > 0) return;
    is_at_end_ = true;
    if (high_ != 0) append_utf8(text_, std::exchange(high_, 0));
    if (has_half_) text_ += '\xff';
  }

  void take_byte(uint8_t byte) {
    if (!has_half_) {
      half_ = byte;
      has_half_ = true;
      return;
    }
    has_half_ = false;
    take_unit(is_big_endian_ ? uint32_t{half_} << 8 | byte : uint32_t{byte} << 8 | half_);
  }

  void take_unit(uint32_t unit) {
    const uint32_t high = std::exchange(high_, 0);
    if (high != 0 && is_low(unit)) {
      append_utf8(text_, 0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00));
      return;
    }
    if (high != 0) append_utf8(text_, high);
    if (is_high(unit)) {
      high_ = unit;
    } else {
      append_utf8(text_, unit);
    }
  }

  std::unique_ptr<ByteSource> bytes_;
  bool is_big_endian_;
  bool has_half_ = false, is_at_end_ = false;
  uint8_t half_ = 0;
  uint32_t high_ = 0;  // a first half that waits for its second
  std::string text_;
};

}  // namespace

std::unique_ptr<ByteSource> utf8_text(ByteSource& bytes, const std::string& name) {
  std::unique_ptr<ByteSource> text;
  const std::string head = peek(bytes, 4, text);
  const auto starts_with = [&](std::string_view mark) { return head.starts_with(mark); };
  const auto is_nul = [&](size_t i) { return i < head.size() && head[i] == '\0'; };
  if (starts_with("\xff\xfe\0\0"sv) || (is_nul(1) && is_nul(2)) || (is_nul(0) && is_nul(1))) {
    throw InputError(name, "is binary or UTF-32, not text", "give UTF-8 text, plain, gzip or zstd");
  }
  std::array<char, 3> mark;
  if (starts_with("\xef\xbb\xbf")) {
    text->read(mark.data(), 3);
    return text;
  }
  const bool has_mark = starts_with("\xff\xfe") || starts_with("\xfe\xff");
  const bool is_big_endian = starts_with("\xfe\xff") || (!has_mark && is_nul(0));
  if (!has_mark && !is_nul(0) && !is_nul(1)) return text;
  if (has_mark) text->read(mark.data(), 2);
  return std::make_unique<Utf16Source>(std::move(text), is_big_endian);
}

}  // namespace loratory::sim
