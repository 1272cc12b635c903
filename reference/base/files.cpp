#include "reference/base/files.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "reference/base/input_error.hpp"

namespace loratory {
namespace {

constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";

// Opening a pipe may wait for ever, and reading a device may never end.
void check_is_regular(const std::string& path, std::string_view remedy) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::directory) {
    throw InputError(path, "is a folder, not a file", remedy);
  }
  const bool is_other =
      std::filesystem::exists(path, ignored) && type != std::filesystem::file_type::regular;
  if (is_other) {
    throw InputError(path, "is a pipe or a device, not a file", "write it to a file first");
  }
}

void check_is_text(const std::string& path, std::string_view bytes, std::string_view remedy) {
  if (bytes.find('\0') == std::string_view::npos) return;
  throw InputError(path, "is binary or UTF-16, not UTF-8 text", remedy);
}

}  // namespace

std::string read_file(const std::string& path, size_t largest, std::string_view remedy) {
  check_is_regular(path, remedy);
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path, "cannot be read", remedy);
  std::string bytes;
  std::array<char, 1 << 16> chunk;
  while (in.read(chunk.data(), chunk.size()), in.gcount() > 0) {
    const std::string_view read(chunk.data(), size_t(in.gcount()));
    if (read.size() > largest - bytes.size()) {
      throw InputError(path, fmt::format("has more than {} bytes", largest), remedy);
    }
    bytes += read;
  }
  if (in.bad()) throw InputError(path, "cannot be read to its end", remedy);
  if (bytes.starts_with(kLfsPointer)) throw InputError(path, kLfsRule, kLfsRemedy);
  return bytes;
}

std::string read_text_file(const std::string& path, size_t largest, std::string_view remedy) {
  check_is_regular(path, remedy);
  std::array<char, 1 << 12> head;
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), head.size());  // before the size: a model is too large as well
  check_is_text(path, {head.data(), size_t(in.gcount())}, remedy);
  std::string text = read_file(path, largest, remedy);
  check_is_text(path, text, remedy);
  if (text.starts_with(kUtf8Mark)) text.erase(0, kUtf8Mark.size());
  return text;
}

}  // namespace loratory
