#include "scheduler_sim/trace/byte_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kChunkBytes = 1 << 16;
constexpr std::chrono::seconds kPipePatience{1};  // for a writer that starts together with us
constexpr std::chrono::milliseconds kPipePoll{10};
constexpr const char* kReadableRemedy = "name a readable file, or - for stdin";

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path) : path_(path) {
    if (path == "-") {
      fd_ = STDIN_FILENO;
      return;
    }
    // To open a named pipe may wait for its writer for ever, unless it is opened so.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) fail("cannot be opened");
    struct stat status {};
    if (::fstat(fd_, &status) == 0 && S_ISFIFO(status.st_mode)) wait_for_writer();
    ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
  }
  ~FileSource() override {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  uint64_t total_bytes() const override {
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
    return uint64_t(status.st_size);
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  size_t read(char* out, size_t capacity) override {
    if (std::exchange(has_first_, false)) {
      *out = first_;
      return 1;
    }
    for (;;) {
      const ssize_t count = ::read(fd_, out, capacity);
      if (count >= 0) return size_t(count);
      if (errno != EINTR) fail("cannot be read");
    }
  }

 private:
  // A pipe without a writer is at its end (0), one whose writer has written nothing yet is not
  // (EAGAIN); a byte that comes is kept for read().
  void wait_for_writer() {
    const auto give_up = std::chrono::steady_clock::now() + kPipePatience;
    for (;;) {
      const ssize_t count = ::read(fd_, &first_, 1);
      has_first_ = count == 1;
      if (count != 0) return;
      if (std::chrono::steady_clock::now() > give_up) {
        throw InputError(path_, "is a pipe that nobody writes to",
                         "start its writer first, or name a file");
      }
      std::this_thread::sleep_for(kPipePoll);
    }
  }

  [[noreturn]] void fail(const char* what) const {
    throw InputError(path_, std::string(what) + ": " + std::strerror(errno), kReadableRemedy);
  }
  std::string path_;
  int fd_ = -1;
  char first_ = 0;
  bool has_first_ = false;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : rest_(bytes) {}
  size_t read(char* out, size_t capacity) override {
    const size_t count = std::min(capacity, rest_.size());
    if (count == 0) return 0;
    std::memcpy(out, rest_.data(), count);
    rest_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view rest_;
};

// The bytes looked at to tell the compression, then the rest of the source.
class PeekedSource : public ByteSource {
 public:
  PeekedSource(ByteSource& raw, std::string_view peeked) : raw_(raw), peeked_(peeked) {}
  size_t read(char* out, size_t capacity) override {
    if (peeked_.empty()) return raw_.read(out, capacity);
    const size_t count = peeked_.copy(out, capacity, given_);
    given_ += count;
    if (given_ == peeked_.size()) peeked_ = {};
    return count;
  }
  bool is_truncated() const override { return raw_.is_truncated(); }

 private:
  ByteSource& raw_;
  std::string peeked_;
  size_t given_ = 0;
};

// Common to the unpackers: a chunk of compressed input and the way they end.
class UnpackingSource : public ByteSource {
 public:
  UnpackingSource(ByteSource& raw, std::string_view peeked, std::string name)
      : raw_(raw, peeked), name_(std::move(name)), in_(kChunkBytes) {}
  bool is_truncated() const override { return is_truncated_; }

 protected:
  // False at the end of the compressed bytes.
  bool refill() {
    in_begin_ = 0;
    in_end_ = raw_.read(in_.data(), in_.size());
    return in_end_ > 0;
  }
  bool has_input() const { return in_begin_ < in_end_; }
  [[noreturn]] void fail(const char* kind, const char* why) const {
    throw InputError(name_, fmt::format("damaged {} data ({})", kind, why),
                     "fetch or compress the file again");
  }

  PeekedSource raw_;
  std::string name_;
  std::vector<char> in_;
  size_t in_begin_ = 0, in_end_ = 0;
  bool is_truncated_ = false;
};

class GzipSource final : public UnpackingSource {
 public:
  GzipSource(ByteSource& raw, std::string_view peeked, std::string name)
      : UnpackingSource(raw, peeked, std::move(name)) {
    constexpr int kGzipWindowBits = 15 + 16;
    const int rc = inflateInit2(&inflate_, kGzipWindowBits);
    LORATORY_ASSERT(rc == Z_OK, "zlib has memory for one stream");
  }
  ~GzipSource() override { inflateEnd(&inflate_); }

  size_t read(char* out, size_t capacity) override {
    inflate_.next_out = reinterpret_cast<Bytef*>(out);
    inflate_.avail_out = static_cast<uInt>(std::min<size_t>(capacity, 1U << 30));
    const uInt room = inflate_.avail_out;
    while (inflate_.avail_out == room) {
      if (!has_input() && !refill()) {
        is_truncated_ = is_inside_member_;
        return 0;
      }
      unpack();
    }
    return room - inflate_.avail_out;
  }

 private:
  void unpack() {
    inflate_.next_in = reinterpret_cast<Bytef*>(in_.data() + in_begin_);
    inflate_.avail_in = static_cast<uInt>(in_end_ - in_begin_);
    is_inside_member_ = true;
    const int rc = ::inflate(&inflate_, Z_NO_FLUSH);
    in_begin_ = in_end_ - inflate_.avail_in;
    if (rc == Z_STREAM_END) {  // another member may follow, as `cat a.gz b.gz` gives
      is_inside_member_ = false;
      inflateReset(&inflate_);
    } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
      fail("gzip", inflate_.msg != nullptr ? inflate_.msg : "unknown stream");
    }
  }
  z_stream inflate_{};
  bool is_inside_member_ = true;
};

class ZstdSource final : public UnpackingSource {
 public:
  ZstdSource(ByteSource& raw, std::string_view peeked, std::string name)
      : UnpackingSource(raw, peeked, std::move(name)), context_(ZSTD_createDCtx()) {
    LORATORY_ASSERT(context_ != nullptr, "zstd has memory for one stream");
  }
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }

  size_t read(char* out, size_t capacity) override {
    ZSTD_outBuffer output{out, capacity, 0};
    while (output.pos == 0) {
      // Even without new input the decoder may still hold output of the frame it is in.
      if (!has_input() && !may_hold_output_ && !refill()) {
        is_truncated_ = is_inside_frame_;
        return 0;
      }
      unpack(output);
    }
    return output.pos;
  }

 private:
  void unpack(ZSTD_outBuffer& output) {
    ZSTD_inBuffer input{in_.data(), in_end_, in_begin_};
    const size_t hint = ZSTD_decompressStream(context_, &output, &input);
    if (ZSTD_isError(hint)) fail("zstd", ZSTD_getErrorName(hint));
    // Asked again after the end of a frame, zstd hints at the header of a next one.
    if (hint == 0 || input.pos > in_begin_) is_inside_frame_ = hint != 0;
    in_begin_ = input.pos;
    may_hold_output_ = output.pos == output.size;
  }
  ZSTD_DCtx* context_;
  bool is_inside_frame_ = true;
  bool may_hold_output_ = false;
};

}  // namespace

struct ChecksummedSource::State {
  XXH3_state_t xxh3;
};

ChecksummedSource::ChecksummedSource(std::unique_ptr<ByteSource> raw)
    : raw_(std::move(raw)), state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

ChecksummedSource::~ChecksummedSource() = default;

size_t ChecksummedSource::read(char* out, size_t capacity) {
  const size_t count = raw_->read(out, capacity);
  XXH3_64bits_update(&state_->xxh3, out, count);
  bytes_read_ += count;
  return count;
}

std::string ChecksummedSource::checksum() const {
  return fmt::format("xxh3:{:016x}", XXH3_64bits_digest(&state_->xxh3));
}

std::unique_ptr<ByteSource> open_file(const std::string& path) {
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<ByteSource> open_bytes(std::string_view bytes) {
  return std::make_unique<MemorySource>(bytes);
}

std::string read_to_end(ByteSource& source, const std::string& name, size_t largest,
                        std::string_view remedy) {
  std::string all;
  for (size_t count = 1; count > 0;) {
    const size_t before = all.size();
    all.resize(before + kChunkBytes);
    count = source.read(all.data() + before, kChunkBytes);
    all.resize(before + count);
    if (all.size() > largest) {
      throw InputError(name, fmt::format("has over {}", format_bytes(double(largest))), remedy);
    }
  }
  if (source.is_truncated()) {
    throw InputError(name, "the compressed data stops in the middle", "fetch or compress it again");
  }
  return all;
}

std::string peek(ByteSource& source, size_t count, std::unique_ptr<ByteSource>& whole) {
  return peek(source, count, whole, [](std::string_view) { return false; });
}

std::string peek(ByteSource& source, size_t count, std::unique_ptr<ByteSource>& whole,
                 const std::function<bool(std::string_view)>& is_enough) {
  std::string head;
  size_t next_question = kChunkBytes;
  while (head.size() < count) {
    if (head.size() >= next_question) {
      if (is_enough(head)) break;
      next_question *= 2;
    }
    const size_t before = head.size();
    head.resize(std::min(count, before + kChunkBytes));
    const size_t got = source.read(head.data() + before, head.size() - before);
    head.resize(before + got);
    if (got == 0) break;
  }
  whole = std::make_unique<PeekedSource>(source, head);
  return head;
}

std::unique_ptr<ByteSource> decompressed(ByteSource& raw, std::string name) {
  std::unique_ptr<ByteSource> whole;
  const std::string head = peek(raw, 4, whole);
  if (head.starts_with("\x1f\x8b")) {
    return std::make_unique<GzipSource>(raw, head, std::move(name));
  }
  if (head == "\x28\xb5\x2f\xfd") {
    return std::make_unique<ZstdSource>(raw, head, std::move(name));
  }
  return whole;
}

}  // namespace loratory::sim
