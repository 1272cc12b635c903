#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace loratory::reference {

/// A file mapped read-only. Pages come from disk when they are first touched.
/// Errors: E_IO (missing, not a regular file, cannot be mapped, a git-LFS pointer). A file that
/// another process cuts short while it is mapped ends this process with SIGBUS, as with every mmap.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Asks the disk for all of it: whoever touches the pages in any order does not wait for each.
  void read_ahead() const;
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace loratory::reference
