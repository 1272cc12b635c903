#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace loratory::sim {

/// A stream of bytes read once, front to back, in bounded memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Puts up to `capacity` bytes (at least 1) at `out` and returns how many; 0 = the end.
  /// Throws InputError when the device fails or compressed data is damaged.
  virtual size_t read(char* out, size_t capacity) = 0;
  /// After the end: the data stops in the middle of a compressed stream.
  virtual bool is_truncated() const { return false; }
  /// Bytes from front to back; 0 = not known before the end.
  virtual uint64_t total_bytes() const { return 0; }
};

/// The file at `path`, "-" = stdin. A named pipe that has no writer within a second throws
/// InputError.
std::unique_ptr<ByteSource> open_file(const std::string& path);

/// Bytes that outlive the source.
std::unique_ptr<ByteSource> open_bytes(std::string_view bytes);

/// `raw` with the checksum of all that went through it.
class ChecksummedSource final : public ByteSource {
 public:
  explicit ChecksummedSource(std::unique_ptr<ByteSource> raw);
  ~ChecksummedSource() override;
  size_t read(char* out, size_t capacity) override;
  /// "xxh3:<16 hex digits>" of the bytes read so far: XXH3, 64 bits, seed 0, as `xxhsum -H3`.
  std::string checksum() const;
  uint64_t total_bytes() const override { return raw_->total_bytes(); }
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct State;
  std::unique_ptr<ByteSource> raw_;
  uint64_t bytes_read_ = 0;
  std::unique_ptr<State> state_;
};

/// What `raw` holds once unpacked: gzip (several members too) and zstd (several frames too) are
/// known by their first bytes, anything else passes through. `raw` outlives the result; `name` is
/// for messages. Memory: 64 KiB and the window of the compressor (zstd: at most 128 MiB).
std::unique_ptr<ByteSource> decompressed(ByteSource& raw, std::string name);

/// All that `source` holds. Throws InputError at `name`: over `largest` bytes, with `remedy`, or
/// the compressed data stops in the middle.
std::string read_to_end(ByteSource& source, const std::string& name, size_t largest,
                        std::string_view remedy);

/// The first bytes of `source`, `count` of them or all, and in `whole` a source that gives them
/// again and then the rest. Lifetime: `source` outlives `whole`.
std::string peek(ByteSource& source, size_t count, std::unique_ptr<ByteSource>& whole);

/// The same, but fewer bytes if `is_enough` says so: it is asked about the first 64 KiB, then about
/// twice as much, and so on, and not about all `count`.
std::string peek(ByteSource& source, size_t count, std::unique_ptr<ByteSource>& whole,
                 const std::function<bool(std::string_view)>& is_enough);

}  // namespace loratory::sim
