#pragma once

#include <sys/types.h>

#include <cstdio>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "reference/base/atomic_file.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// A file or a folder that the run reads: what to call it in a message ("the trace"), and where.
/// "-" is stdin.
struct InputFile {
  std::string what;
  std::string path;
};

/// The files that a command was asked to write. They are opened before it runs, so that what cannot
/// be written costs no run, and appear when all are complete: a run that fails leaves every old
/// file as it was and nothing else.
///
/// "-" is stdout, and so is any other name of it (/dev/stdout, the file it goes to). Not more than
/// one output may go there, and then no table does.
class OutputFiles {
 public:
  /// The config file of `command` is an input too.
  OutputFiles(const CLI::App& command, std::vector<InputFile> inputs);

  /// Opens the file that `flag` asks for; none if `path` is empty. Throws InputError at `flag` if
  /// it is (or is a link to) one of the inputs, a file in one that is a folder, or an output that
  /// is open already, or cannot be written.
  void open(const std::string& flag, const std::string& path);

  /// Where to write what `flag` asks for; null if it does not.
  std::ostream* find(const std::string& flag);

  /// For what people read: stdout, or stderr when an output goes to stdout.
  std::FILE* table() const { return stdout_is_taken_ ? stderr : stdout; }

  /// Every file in its place. Once, at the end. Throws OutputError.
  void commit();

  /// What the file of `flag` is to hold if the process ends before commit(); nothing may have been
  /// written to it.
  void set_last_words(const std::string& flag, std::string_view text);

  /// For who ends the process, also in a signal handler: files that have last words appear.
  void publish_last_words() noexcept;

 private:
  // What makes two names one file. For one that does not exist yet: its folder and its name there.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    std::string name;
    bool operator==(const Identity&) const = default;
  };
  struct Known {
    Identity identity;
    std::string what;
  };
  struct Output {
    std::string flag;
    std::unique_ptr<AtomicFile> file;
  };

  AtomicFile* file_of(const std::string& flag);
  static bool identify(const std::string& path, int stream, Identity& identity);
  void refuse_file_in_folder(const std::string& flag, const std::string& path) const;

  std::vector<Known> known_;
  std::vector<InputFile> folders_;  // by their real paths
  std::vector<Output> outputs_;
  bool stdout_is_taken_ = false;
};

}  // namespace loratory::cli
