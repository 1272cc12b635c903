#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::sim {

/// One line of text. `text` is valid until the next line is asked for.
struct Line {
  std::string_view text;      ///< without "\n" or "\r\n"; kPaddingBytes after it are readable
  uint64_t number = 0;        ///< 1-based
  bool is_terminated = true;  ///< false: the last line, and no newline ends it
  bool is_too_long = false;   ///< text is empty: the line is over the limit, and not read further
};

/// Splits a source into lines. Memory: one chunk and the longest line.
class LineReader {
 public:
  static constexpr size_t kPaddingBytes = 64;            ///< what simdjson may read past the end
  static constexpr size_t kMaxBytes = 16u << 20;         ///< about 2 M token ids
  static constexpr size_t kMaxDroppedBytes = 64u << 20;  ///< of a line that is too long
  explicit LineReader(ByteSource& source, size_t max_bytes = kMaxBytes);
  ~LineReader();

  /// False at the end. In a truncated compressed stream the last, torn line is not given.
  bool next(Line& line);
  /// After the end: it came before that of the source, in a line over kMaxDroppedBytes.
  bool is_endless() const { return is_endless_; }
  bool is_truncated() const { return source_.is_truncated(); }

 private:
  bool refill();
  bool take(size_t end, bool is_terminated, Line& line);
  bool take_too_long(Line& line);
  bool drop_rest_of_line();

  ByteSource& source_;
  size_t max_bytes_;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_;
  size_t begin_ = 0;    // of the line being looked for
  size_t end_ = 0;      // of the bytes read
  size_t scanned_ = 0;  // no newline before here
  uint64_t number_ = 0;
  bool is_too_long_ = false;  // the line before [begin_, ...) goes on there
  bool is_endless_ = false;
};

}  // namespace loratory::sim
