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
#include <utility>

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

// Where the bytes of a file go.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const char* data, size_t count) = 0;
};

class StringSink final : public Sink {
 public:
  void write(const char* data, size_t count) override { text.append(data, count); }
  std::string text;
};

// False: the rest could not be written.
bool write_all(int fd, const char* data, size_t count) noexcept {
  while (count > 0) {
    const ssize_t written = ::write(fd, data, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    data += written;
    count -= size_t(written);
  }
  return true;
}

// A file descriptor that a whole file grows behind, out of sight until publish().
class HiddenFile final : public Sink {
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
    temporary_name_ = fmt::format("{}.{}.tmp", final_, ::getpid());
    if (!exists) require_new_name();
    open_hidden();
    if (exists) keep_owner_and_mode(status);
    own_fd_ = fmt::format("/proc/self/fd/{}", fd_);
  }

  ~HiddenFile() override {
    if (fd_ >= 0 && path_ != "-") ::close(fd_);
    if (temporary_.empty()) return;
    const std::scoped_lock lock(temporaries().mutex);
    ::unlink(temporary_.c_str());
    temporaries().names.erase(temporary_);
  }
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  void write(const char* data, size_t count) override {
    if (!write_all(fd_, data, count)) fail_to_write(path_);
  }

  void sync() {
    if (!in_place_ && ::fsync(fd_) != 0) fail_to_write(path_);
  }

  void publish() {
    if (in_place_) return;
    const std::scoped_lock lock(temporaries().mutex);
    if (temporary_.empty()) {
      if (!link_anonymous()) fail_to_write(path_);
      temporary_ = temporary_name_;
    }
    if (::rename(temporary_.c_str(), final_.c_str()) != 0) fail_to_write(path_);
    temporaries().names.erase(temporary_);
    temporary_.clear();
  }

  // Nothing has been written before, and nothing is done with the file afterwards.
  void publish_at_once(std::string_view text) const noexcept {
    if (!write_all(fd_, text.data(), text.size()) || in_place_) return;
    if (::fsync(fd_) != 0 || (temporary_.empty() && !link_anonymous())) return;
    if (::rename(temporary_name_.c_str(), final_.c_str()) != 0) ::unlink(temporary_name_.c_str());
  }

 private:
  // Its temporary name is the longer one; what else is wrong with it, open_hidden() says.
  void require_new_name() const {
    struct stat status {};
    if (::lstat(path_.c_str(), &status) == 0) {
      throw InputError(path_, "is a link to no file", "remove the link, or name another file");
    }
    if (::lstat(temporary_name_.c_str(), &status) != 0 && errno == ENAMETOOLONG) {
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
    const std::scoped_lock lock(temporaries().mutex);
    fd_ = ::open(temporary_name_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_to_open(path_, "cannot be created");
    temporaries().names.insert(temporary_name_);
    temporary_ = temporary_name_;
  }

  // A private file stays private. Group and owner are kept where the system allows it; another
  // group gets nothing by what its place allowed. One of another owner is a new file.
  void keep_owner_and_mode(const struct stat& replaced) const noexcept {
    constexpr mode_t kPermissions = 0777, kOfGroup = 0070;
    constexpr auto kSame = static_cast<uid_t>(-1);
    [[maybe_unused]] const bool keeps_group = ::fchown(fd_, kSame, replaced.st_gid) == 0;
    [[maybe_unused]] const bool keeps_owner = ::fchown(fd_, replaced.st_uid, kSame) == 0;
    struct stat now {};
    if (::fstat(fd_, &now) != 0 || now.st_uid != replaced.st_uid) return;
    const bool is_same_group = now.st_gid == replaced.st_gid;
    [[maybe_unused]] const int done =
        ::fchmod(fd_, replaced.st_mode & (is_same_group ? kPermissions : kPermissions & ~kOfGroup));
  }

  bool link_anonymous() const noexcept {
    const char* const name = temporary_name_.c_str();
    ::unlink(name);
    return ::linkat(AT_FDCWD, own_fd_.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
  }

  std::string path_;  // as the user wrote it, for messages
  std::string final_;
  std::string temporary_name_;
  std::string temporary_;  // empty = the file has no name yet
  std::string own_fd_;     // what a file without a name is linked from
  int fd_ = -1;
  bool in_place_ = false;  // stdout, a device, a pipe: it has its name already
};

// What turns the bytes of the stream into the bytes of the file.
class Encoder {
 public:
  explicit Encoder(Sink& sink) : sink_(sink) {}
  virtual ~Encoder() = default;
  virtual void write(const char* data, size_t count) { sink_.write(data, count); }
  virtual void finish() {}

 protected:
  Sink& sink_;
  std::array<char, kBufferBytes> out_;
};

class GzipEncoder final : public Encoder {
 public:
  explicit GzipEncoder(Sink& sink) : Encoder(sink) {
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
      sink_.write(out_.data(), out_.size() - deflate_.avail_out);
    } while (deflate_.avail_out == 0);
  }
  z_stream deflate_{};
};

class ZstdEncoder final : public Encoder {
 public:
  explicit ZstdEncoder(Sink& sink) : Encoder(sink), context_(ZSTD_createCCtx()) {
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
    sink_.write(out_.data(), out.pos);
    return remaining;
  }
  ZSTD_CCtx* context_;
};

std::unique_ptr<Encoder> make_encoder(std::string_view path, Sink& sink) {
  if (path.ends_with(".gz")) return std::make_unique<GzipEncoder>(sink);
  if (path.ends_with(".zst")) return std::make_unique<ZstdEncoder>(sink);
  return std::make_unique<Encoder>(sink);
}

}  // namespace

class AtomicFile::Buffer final : public std::streambuf {
 public:
  explicit Buffer(const std::string& path)
      : path_(path), file_(path), encoder_(make_encoder(path, file_)) {
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
  void set_last_words(std::string_view text) {
    StringSink sink;
    const auto encoder = make_encoder(path_, sink);
    encoder->write(text.data(), text.size());
    encoder->finish();
    last_words_ = std::move(sink.text);
  }
  void publish_last_words() const noexcept {
    if (!last_words_.empty()) file_.publish_at_once(last_words_);
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
  const std::string path_;
  HiddenFile file_;
  std::unique_ptr<Encoder> encoder_;
  std::string last_words_;  // as the file will have them
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

void AtomicFile::set_last_words(std::string_view text) { buffer_->set_last_words(text); }

void AtomicFile::publish_last_words() noexcept { buffer_->publish_last_words(); }

void abandon_files() {
  temporaries().mutex.lock();  // for good: no file is opened or published any more
  for (const std::string& name : temporaries().names) ::unlink(name.c_str());
}

}  // namespace loratory
