#include "cli/output_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cli/config_file.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

namespace loratory::cli {

namespace fs = std::filesystem;

namespace {

bool is_name_of_stdout(const std::string& path) {
  return path == "-" || path == "/dev/stdout" || path == "/dev/fd/1" || path == "/proc/self/fd/1";
}

}  // namespace

// False for what any number may share: a terminal, /dev/null; and for what cannot be looked at.
bool OutputFiles::identify(const std::string& path, int stream, Identity& identity) {
  struct stat status {};
  const bool exists = (path == "-" ? ::fstat(stream, &status) : ::stat(path.c_str(), &status)) == 0;
  if (exists) {
    identity = {status.st_dev, status.st_ino, ""};
    return !S_ISCHR(status.st_mode);
  }
  const fs::path folder = fs::path(path).parent_path();
  if (::stat(folder.empty() ? "." : folder.c_str(), &status) != 0) return false;
  identity = {status.st_dev, status.st_ino, fs::path(path).filename().string()};
  return true;
}

OutputFiles::OutputFiles(const CLI::App& command, std::vector<InputFile> inputs) {
  inputs.push_back({"the config file", config_path(command)});
  for (const InputFile& input : inputs) {
    if (input.path.empty()) continue;
    Identity identity;
    if (identify(input.path, STDIN_FILENO, identity)) known_.push_back({identity, input.what});
    std::error_code none;
    if (!fs::is_directory(input.path, none)) continue;
    folders_.push_back({input.what, fs::canonical(input.path, none).string()});
  }
}

void OutputFiles::refuse_file_in_folder(const std::string& flag, const std::string& path) const {
  std::error_code none;
  if (!fs::exists(path, none)) return;
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = fs::canonical(parent.empty() ? "." : parent, none).string() + "/";
  for (const InputFile& input : folders_) {
    if (!folder.starts_with(input.path + "/")) continue;
    throw InputError(flag, fmt::format("{} is a file of {}", shown(path), input.what),
                     "it would be overwritten: name another file");
  }
}

void OutputFiles::open(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  Identity identity, standard;
  const bool is_unique = identify(path, STDOUT_FILENO, identity);
  const bool is_stdout =
      is_name_of_stdout(path) ||
      (is_unique && identify("-", STDOUT_FILENO, standard) && identity == standard);
  if (is_stdout && stdout_is_taken_) {
    throw InputError(flag, "stdout has another output already", "write one of them to a file");
  }
  const auto same = std::ranges::find(known_, identity, &Known::identity);
  if (is_unique && same != known_.end()) {
    throw InputError(flag, fmt::format("{} is {}", shown(path), same->what),
                     "it would be overwritten: name another file");
  }
  refuse_file_in_folder(flag, path);
  try {
    outputs_.push_back({flag, std::make_unique<AtomicFile>(is_stdout ? "-" : path)});
  } catch (const InputError& error) {
    throw InputError(flag, error.what());
  }
  if (is_unique) known_.push_back({identity, fmt::format("the file of {}", flag)});
  stdout_is_taken_ = stdout_is_taken_ || is_stdout;
}

AtomicFile* OutputFiles::file_of(const std::string& flag) {
  const auto it = std::ranges::find(outputs_, flag, &Output::flag);
  return it == outputs_.end() ? nullptr : it->file.get();
}

std::ostream* OutputFiles::find(const std::string& flag) {
  AtomicFile* const file = file_of(flag);
  return file == nullptr ? nullptr : &file->stream();
}

void OutputFiles::set_last_words(const std::string& flag, std::string_view text) {
  if (AtomicFile* const file = file_of(flag)) file->set_last_words(text);
}

void OutputFiles::publish_last_words() noexcept {
  for (const Output& output : outputs_) output.file->publish_last_words();
}

void OutputFiles::commit() {
  for (Output& output : outputs_) output.file->finish();
  for (Output& output : outputs_) output.file->commit();
}

}  // namespace loratory::cli
