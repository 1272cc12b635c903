#pragma once

#include <memory>
#include <string>

#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::sim {

/// The text of `bytes` as UTF-8. Known by the mark at its start, or by the NUL beside its first
/// character: UTF-16, little and big endian, as spreadsheets and PowerShell write it, is converted;
/// the mark of UTF-8 is left out; anything else passes through unchecked. Half of a surrogate pair,
/// or of a 16-bit unit at the end, comes out as bytes that are not UTF-8, so that the reader of its
/// line refuses it there.
/// Lifetime: `bytes` outlives the result.
/// Throws InputError at `name` for UTF-32 and for bytes that begin with two NULs.
std::unique_ptr<ByteSource> utf8_text(ByteSource& bytes, const std::string& name);

}  // namespace loratory::sim
