#pragma once

#include <functional>
#include <memory>

struct CUevent_st;
struct CUgraphExec_st;
struct CUstream_st;

// Streams, events and graphs that end with their owner, without the toolkit's headers.

namespace loratory::gpu {

struct StreamFree {
  void operator()(CUstream_st* stream) const;
};
struct EventFree {
  void operator()(CUevent_st* event) const;
};
struct GraphFree {
  void operator()(CUgraphExec_st* graph) const;
};
using Stream = std::unique_ptr<CUstream_st, StreamFree>;
using Event = std::unique_ptr<CUevent_st, EventFree>;
using Graph = std::unique_ptr<CUgraphExec_st, GraphFree>;

// Errors of all: std::runtime_error from CUDA.

/// Does not wait for the default stream.
Stream make_stream();

Event make_event();
/// For cudaEventElapsedTime.
Event make_timed_event();

/// Has everything before its last record ended? True if it never was recorded.
bool has_passed(const Event& event);

/// What `enqueue` puts into the stream, which does not run it. Whatever `enqueue` throws comes out,
/// and the stream no longer captures.
Graph capture(CUstream_st* stream, const std::function<void()>& enqueue);

}  // namespace loratory::gpu
