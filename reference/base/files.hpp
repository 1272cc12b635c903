#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace loratory {

/// What git leaves in place of a large file that was not fetched begins like this.
inline constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/v1";
inline constexpr std::string_view kLfsRule = "is a git-LFS pointer, not the file it stands for";
inline constexpr std::string_view kLfsRemedy = "run 'git lfs pull' in its folder";

/// The whole file, as bytes.
/// Errors   InputError at `path`, with `remedy`: it cannot be read, is a folder, or has more than
///          `largest` bytes (of which no more than that are read); it is a git-LFS pointer.
std::string read_file(const std::string& path, size_t largest = size_t{64} << 20,
                      std::string_view remedy = "check the path and its permissions");

}  // namespace loratory
