#pragma once

#include <functional>
#include <vector>

struct CUstream_st;

namespace loratory::bench {

/// One CUDA graph of several launches, replayed.
struct GraphRuns {
  int launches = 1;
  int warmups = 1;  ///< replays that do not count
  int replays = 1;
};

/// Microseconds of one launch, of each replay, ascending. `enqueue` puts launch i on the stream.
/// Errors   std::runtime_error: CUDA's name and text.
std::vector<double> graph_times_us(const GraphRuns& runs, CUstream_st* stream,
                                   const std::function<void(int)>& enqueue);

/// Their median.
double median_graph_us(const GraphRuns& runs, CUstream_st* stream,
                       const std::function<void(int)>& enqueue);

}  // namespace loratory::bench
