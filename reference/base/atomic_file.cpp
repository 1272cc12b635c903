#include "reference/base/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <streambuf>
#include <string_view>
#include <thread>

#include "reference/base/check.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"

namespace loratory {
namespace {

constexpr size_t kBufferBytes = 1 << 16;
constexpr size_t kLongestShown = 60;
constexpr std::chrono::seconds kPipePatience{1};  // for a reader that starts together with us
constexpr std::chrono::milliseconds kPipePoll{10};
constexpr int kGzipLevel = 6;
constexpr int kZstdLevel = 3;

[[noreturn]] void fail_to_open(const std::string& path, const char* what) {
  const int error = errno;
  throw InputError(path, fmt::format("{}: {}", what, std::strerror(error)),
                   error == EISDIR ? "name a file in it"
                                   : "name a folder that exists, is writable and has room");
}

[[noreturn]] void fail_to_write(const std::string& path) {
  throw OutputError(
      fmt::format("{}: cannot be written to its end: {}", path, std::strerror(errno)));
}

// Temporary files that have a name: between a link and a rename, or as long as the file is open
// where the file system knows no file without a name.
struct Temporaries {
  std::mutex mutex;
  std::set<std::string> names;
};

Temporaries& temporaries() {
  static auto& all = *new Temporaries;  // outlives every thread
  return all;
}

// A file descriptor that a whole file grows behind, out of sight until publish().
class HiddenFile {
 public:
  explicit HiddenFile(const std::string& path) : path_(path), final_(path) {
    if (path == "-") {
      fd_ = STDOUT_FILENO;
      in_place_ = true;
      return;
    }
    struct stat status {};
    const bool exists = ::stat(path.c_str(), &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
      open_in_place(S_ISFIFO(status.st_mode));
      return;
    }
    if (exists && ::access(path.c_str(), W_OK) != 0) fail_to_open(path, "cannot be replaced");
    // A link keeps pointing at its file: it is the file that is replaced.
    if (exists) final_ = std::filesystem::canonical(path).string();
    if (!exists) require_new_name();
    open_hidden();
  }

  ~HiddenFile() {
    if (fd_ >= 0 && path_ != "-") ::close(fd_);
    if (temporary_.empty()) return;
    const std::scoped_lock lock(temporaries().mutex);
    ::unlink(temporary_.c_str());
    temporaries().names.erase(temporary_);
  }
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  void write(const char* data, size_t count) {
    while (count > 0) {
      const ssize_t written = ::write(fd_, data, count);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_to_write(path_);
      data += written;
      count -= size_t(written);
    }
  }

  void sync() {
    if (!in_place_ && ::fsync(fd_) != 0) fail_to_write(path_);
  }

  void publish() {
    if (in_place_) return;
    const std::scoped_lock lock(temporaries().mutex);
    if (temporary_.empty()) link_anonymous();
    if (::rename(temporary_.c_str(), final_.c_str()) != 0) fail_to_write(path_);
    temporaries().names.erase(temporary_);
    temporary_.clear();
  }

 private:
  // Its temporary name is the longer one; what else is wrong with it, open_hidden() says.
  void require_new_name() const {
    struct stat status {};
    if (::lstat(path_.c_str(), &status) == 0) {
      throw InputError(path_, "is a link to no file", "remove the link, or name another file");
    }
    if (::lstat(temporary_name().c_str(), &status) != 0 && errno == ENAMETOOLONG) {
      throw InputError(cut(path_, kLongestShown), "cannot be created: File name too long",
                       "choose a shorter one");
    }
  }

  // /dev/null, a pipe: there is nothing to rename over. To open a pipe waits for its reader, for
  // ever if need be, unless it is opened so.
  void open_in_place(bool is_pipe) {
    in_place_ = true;
    const auto give_up = std::chrono::steady_clock::now() + kPipePatience;
    for (;;) {
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | (is_pipe ? O_NONBLOCK : 0));
      if (fd_ >= 0 || !is_pipe || errno != ENXIO) break;
      if (std::chrono::steady_clock::now() > give_up) {
        throw InputError(path_, "is a pipe that nobody reads",
                         "start its reader first, or name a file");
      }
      std::this_thread::sleep_for(kPipePoll);
    }
    if (fd_ < 0) fail_to_open(path_, "cannot be opened");
    if (is_pipe) ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
  }

  // An anonymous file vanishes by itself when the process is killed; where the file system has
  // none, a named one beside the final name has to do.
  void open_hidden() {
    const std::filesystem::path folder = std::filesystem::path(final_).parent_path();
    fd_ = ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ >= 0) return;
    const std::string name = temporary_name();
    const std::scoped_lock lock(temporaries().mutex);
    fd_ = ::open(name.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_to_open(path_, "cannot be created");
    temporaries().names.insert(name);
    temporary_ = name;
  }

  void link_anonymous() {
    const std::string name = temporary_name();
    ::unlink(name.c_str());
    const std::string self = fmt::format("/proc/self/fd/{}", fd_);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      fail_to_write(path_);
    }
    temporary_ = name;
  }

  std::string temporary_name() const { return fmt::format("{}.{}.tmp", final_, ::getpid()); }

  std::string path_;  // as the user wrote it, for messages
  std::string final_;
  std::string temporary_;  // empty = the file has no name yet
  int fd_ = -1;
  bool in_place_ = false;  // stdout, a device, a pipe: it has its name already
};

// What turns the bytes of the stream into the bytes of the file.
class Encoder {
 public:
  explicit Encoder(HiddenFile& file) : file_(file) {}
  virtual ~Encoder() = default;
  virtual void write(const char* data, size_t count) { file_.write(data, count); }
  virtual void finish() {}

 protected:
  HiddenFile& file_;
  std::array<char, kBufferBytes> out_;
};

class GzipEncoder final : public Encoder {
 public:
  explicit GzipEncoder(HiddenFile& file) : Encoder(file) {
    constexpr int kGzipWindowBits = 15 + 16;  // + 16: a gzip header, without name or time
    const int rc =
        deflateInit2(&deflate_, kGzipLevel, Z_DEFLATED, kGzipWindowBits, 8, Z_DEFAULT_STRATEGY);
    LORATORY_ASSERT(rc == Z_OK, "zlib has memory for one stream");
  }
  ~GzipEncoder() override { deflateEnd(&deflate_); }
  void write(const char* data, size_t count) override {
    deflate_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data));
    deflate_.avail_in = uInt(count);
    drain(Z_NO_FLUSH);
  }
  void finish() override { drain(Z_FINISH); }

 private:
  void drain(int flush) {
    do {
      deflate_.next_out = reinterpret_cast<Bytef*>(out_.data());
      deflate_.avail_out = uInt(out_.size());
      ::deflate(&deflate_, flush);
      file_.write(out_.data(), out_.size() - deflate_.avail_out);
    } while (deflate_.avail_out == 0);
  }
  z_stream deflate_{};
};

class ZstdEncoder final : public Encoder {
 public:
  explicit ZstdEncoder(HiddenFile& file) : Encoder(file), context_(ZSTD_createCCtx()) {
    LORATORY_ASSERT(context_ != nullptr, "zstd has memory for one stream");
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, kZstdLevel);
    ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1);
  }
  ~ZstdEncoder() override { ZSTD_freeCCtx(context_); }
  void write(const char* data, size_t count) override {
    ZSTD_inBuffer in{data, count, 0};
    while (in.pos < in.size) drain(in, ZSTD_e_continue);
  }
  void finish() override {
    ZSTD_inBuffer in{nullptr, 0, 0};
    while (drain(in, ZSTD_e_end) > 0) {
    }
  }

 private:
  size_t drain(ZSTD_inBuffer& in, ZSTD_EndDirective directive) {
    ZSTD_outBuffer out{out_.data(), out_.size(), 0};
    const size_t remaining = ZSTD_compressStream2(context_, &out, &in, directive);
    LORATORY_ASSERT(!ZSTD_isError(remaining), "zstd compresses any bytes");
    file_.write(out_.data(), out.pos);
    return remaining;
  }
  ZSTD_CCtx* context_;
};

std::unique_ptr<Encoder> make_encoder(std::string_view path, HiddenFile& file) {
  if (path.ends_with(".gz")) return std::make_unique<GzipEncoder>(file);
  if (path.ends_with(".zst")) return std::make_unique<ZstdEncoder>(file);
  return std::make_unique<Encoder>(file);
}

}  // namespace

class AtomicFile::Buffer final : public std::streambuf {
 public:
  explicit Buffer(const std::string& path) : file_(path), encoder_(make_encoder(path, file_)) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }
  void finish() {
    if (is_finished_) return;
    flush();
    encoder_->finish();
    file_.sync();
    is_finished_ = true;
  }
  void commit() {
    finish();
    file_.publish();
  }

 protected:
  int_type overflow(int_type c) override {
    flush();
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    return sputc(traits_type::to_char_type(c));
  }
  int sync() override {
    flush();
    return 0;
  }

 private:
  void flush() {
    encoder_->write(pbase(), size_t(pptr() - pbase()));
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }
  HiddenFile file_;
  std::unique_ptr<Encoder> encoder_;
  std::array<char, kBufferBytes> buffer_;
  bool is_finished_ = false;
};

AtomicFile::AtomicFile(const std::string& path)
    : buffer_(std::make_unique<Buffer>(path)),
      stream_(std::make_unique<std::ostream>(buffer_.get())) {
  // With badbit in the mask the stream rethrows our InputError instead of hiding it.
  stream_->exceptions(std::ios::badbit);
}

AtomicFile::~AtomicFile() = default;

void AtomicFile::finish() { buffer_->finish(); }

void AtomicFile::commit() { buffer_->commit(); }

void abandon_files() {
  temporaries().mutex.lock();  // for good: no file is opened or published any more
  for (const std::string& name : temporaries().names) ::unlink(name.c_str());
}

}  // namespace loratory
