#include "reference/adapter/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "reference/adapter/adapter_error.hpp"
#include "reference/base/files.hpp"

namespace loratory::reference {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view rule,
                       std::string_view remedy = {}) {
  throw AdapterError(AdapterErrorCode::io, path, rule, remedy);
}

[[noreturn]] void fail_for_errno(const std::string& path, std::string_view what) {
  fail(path, fmt::format("{}: {}", what, std::strerror(errno)));
}

class FileDescriptor {
 public:
  // To open a named pipe may wait for its writer for ever, unless it is opened so.
  explicit FileDescriptor(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail_for_errno(path, "cannot be opened");
  }
  ~FileDescriptor() { close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const FileDescriptor file(path);
  struct stat info {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) fail(path, "is not a regular file");
  const auto size = size_t(info.st_size);
  if (size == 0) return;  // mmap refuses empty files
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_for_errno(path, "cannot be mapped");
  bytes_ = {static_cast<const std::byte*>(data), size};
  if (!text().starts_with(kLfsPointer)) return;
  munmap(data, size);
  fail(path, kLfsRule, kLfsRemedy);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::read_ahead() const {
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_WILLNEED);
}

}  // namespace loratory::reference
