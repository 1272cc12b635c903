#include "reference/base/files.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "reference/base/input_error.hpp"

namespace loratory {

std::string read_file(const std::string& path, size_t largest, std::string_view remedy) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ignored;
  if (!in || std::filesystem::is_directory(path, ignored)) {
    throw InputError(path, "cannot be read", remedy);
  }
  std::string bytes;
  for (std::istreambuf_iterator<char> at(in), end; at != end; ++at) {
    if (bytes.size() == largest) {
      throw InputError(path, fmt::format("has more than {} bytes", largest), remedy);
    }
    bytes.push_back(*at);
  }
  if (in.bad()) throw InputError(path, "cannot be read to its end", remedy);
  if (bytes.starts_with(kLfsPointer)) throw InputError(path, kLfsRule, kLfsRemedy);
  return bytes;
}

}  // namespace loratory
