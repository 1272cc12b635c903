#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {
namespace {

constexpr int kMostThreads = 256;

__device__ int id_of(const BatchView& batch, int token) {
  if (batch.token_rows[token] < 0) return -1;
  const int id = batch.token_ids[token];
  return id < 0 ? batch.last_sampled[-1 - id] : id;
}

/// A CTA copies the row of a token, a Word at a time.
template <typename Word>
__global__ void __launch_bounds__(kMostThreads)
    embed_kernel(const __grid_constant__ EmbedLaunch p) {
  launch_dependents();
  wait_for_prior_grid();
  const int token = int(blockIdx.x);
  const int id = id_of(p.batch, token);
  if (p.ids != nullptr && threadIdx.x == 0) p.ids[token] = id;
  const bool exists = id >= 0 && id < p.vocab;
  const auto* const from = reinterpret_cast<const Word*>(static_cast<const std::byte*>(p.table) +
                                                         max(id, 0) * p.table_stride_bytes);
  auto* const to = reinterpret_cast<Word*>(static_cast<std::byte*>(p.x) + token * p.x_stride_bytes);
  for (int i = int(threadIdx.x); i < int(p.row_bytes / sizeof(Word)); i += int(blockDim.x)) {
    to[i] = exists ? __ldg(from + i) : Word{};
  }
}

template <typename Word>
void launch(const EmbedLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const int64_t words = p.row_bytes / int64_t(sizeof(Word));
  const auto threads = unsigned(std::min<int64_t>(kMostThreads, (words + 31) / 32 * 32));
  launch_kernel(embed_kernel<Word>, {.grid = unsigned(p.batch.num_tokens), .block = threads},
                stream, order, p);
}

}  // namespace

void launch_embed(const EmbedLaunch& p, CUstream_st* stream, LaunchOrder order) {
  if (p.uses_vectors)
    launch<uint4>(p, stream, order);
  else
    launch<uint16_t>(p, stream, order);
}

}  // namespace loratory::gpu
