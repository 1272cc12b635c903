#pragma once

#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace loratory {

/// A file that could be opened could not be written to its end: the disk is full, the pipe closed.
/// Nobody's input is wrong, so it is no InputError.
class OutputError : public std::runtime_error {
  using runtime_error::runtime_error;
};

/// A file that appears whole or not at all: it is written beside its final name and renamed by
/// commit(). Without commit() (an exception, Ctrl-C) nothing is left under the final name; what
/// was there before stays.
///
/// Compressed by the name: `.gz` (zlib level 6) and `.zst` (level 3). "-" writes to stdout, as it
/// comes. Throws InputError when it cannot be opened (no such folder, not writable), OutputError
/// when it cannot be written later.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  std::ostream& stream() { return *stream_; }

  /// Writes all that is still missing from the disk. Nothing may be written afterwards. Who has
  /// several files finishes all before the first commit(): then they appear together or not at all.
  void finish();

  /// Finishes the file if it is not, and renames it into place. At most once.
  void commit();

  /// What the file is to hold if the process ends before anything was written to it, in place of
  /// earlier last words.
  void set_last_words(std::string_view text);

  /// For who ends the process, also in a signal handler: the file appears with its last words, if
  /// it has any. Takes no lock and no memory. What cannot be written does not appear.
  void publish_last_words() noexcept;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<std::ostream> stream_;
};

/// For who is about to end the process at any moment (Ctrl-C): waits until no file is on its way to
/// its name, removes the temporary ones, and lets no further one appear.
void abandon_files();

}  // namespace loratory
