#pragma once

#include <cstdint>
#include <span>

struct CUstream_st;

namespace loratory::bench {

struct ReadSpan {
  const void* data = nullptr;
  int64_t num_bytes = 0;
};

/// Reads up to 8 spans of device memory once and writes nothing: the least that one launch over
/// these bytes can take. Addresses and sizes are multiples of 16 bytes.
/// Errors   std::runtime_error: too many spans; CUDA's name and text.
void launch_read_node(std::span<const ReadSpan> spans, CUstream_st* stream);

/// The same in one of several launches: `early` is read while the previous one runs, `late` once
/// it has ended. Two of them are the least that a shrink and an expand can take.
void launch_read_stage(std::span<const ReadSpan> early, std::span<const ReadSpan> late,
                       CUstream_st* stream);

}  // namespace loratory::bench
