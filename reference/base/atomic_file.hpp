#pragma once

#include <memory>
#include <ostream>
#include <string>

namespace loratory {

/// A file that appears whole or not at all: it is written beside its final name and renamed by
/// commit(). Without commit() (an exception, Ctrl-C) nothing is left under the final name; what
/// was there before stays.
///
/// Compressed by the name: `.gz` (zlib level 6) and `.zst` (level 3). "-" writes to stdout, as it
/// comes. Throws InputError when the folder is not writable or the disk is full.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  std::ostream& stream() { return *stream_; }

  /// Finishes the file, renames it into place and makes it durable. At most once.
  void commit();

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<std::ostream> stream_;
};

}  // namespace loratory
