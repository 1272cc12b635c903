#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace loratory {

/// The whole file, as bytes.
/// Errors   InputError at `path`, with `remedy`: it cannot be read, is a folder, or has more than
///          `largest` bytes (of which no more than that are read).
std::string read_file(const std::string& path, size_t largest = size_t{64} << 20,
                      std::string_view remedy = "check the path and its permissions");

}  // namespace loratory
