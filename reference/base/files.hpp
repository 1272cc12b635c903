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
/// Errors   InputError at `path`, with `remedy`: it cannot be read, is a folder, a pipe or a
/// device,
///          or has more than `largest` bytes (of which 64 KiB more are read at most); it is a
///          git-LFS pointer.
std::string read_file(const std::string& path, size_t largest = size_t{64} << 20,
                      std::string_view remedy = "check the path and its permissions");

/// The same for text, without the mark that some editors put before UTF-8. A NUL byte, as binary
/// files and UTF-16 have them, is an error too.
std::string read_text_file(const std::string& path, size_t largest = size_t{64} << 20,
                           std::string_view remedy = "check the path and its permissions");

}  // namespace loratory
