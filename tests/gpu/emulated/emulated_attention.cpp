// The launches of attention_params.hpp on an emulated GPU.
#include "tests/gpu/emulated/emulated_attention.hpp"

#include <algorithm>

#include "gpu/attention/attention_work.cuh"
#include "gpu/attention/decode_attention.cuh"
#include "gpu/attention/plain_attention.cuh"
#include "gpu/attention/prefill_attention.cuh"
#include "tests/gpu/emulated/emulated_gpu.hpp"

namespace loratory::gpu {
namespace {

int decode_ctas = 1;
uint64_t seed = 1;

template <typename Shared>
Shared& shared_of(std::byte* memory) {
  return *reinterpret_cast<Shared*>(memory);
}

// CTAs run at once, as one cluster, or one after the other: then the first one takes all late
// items.
CUtensorMap map_of(const void* tensor, const AttentionParams& p) {
  return gpu::map_of({.matrix = static_cast<const std::byte*>(tensor),
                      .num_rows = p.num_blocks * p.kv_heads * p.block_size,
                      .num_columns = p.head_dim,
                      .row_bytes = 2 * p.head_dim,
                      .box_rows = std::min(p.block_size, kAttentionTileKeys)});
}

// CTAs run at once, as one cluster, or one after the other: then the first one takes all late
// items.
template <typename T, int kHeadDim, decode::Copies kCopies>
void run_decode(const AttentionParams& params) {
  using Shared = decode::DecodeShared<kHeadDim>;
  const bool is_at_once = decode_ctas <= 8 && seed % 2 == 0;
  const decode::KvMaps maps{map_of(params.k, params), map_of(params.v, params)};
  emulated::run({.num_threads = decode::kThreads<kHeadDim, kCopies>,
                 .cluster = is_at_once ? decode_ctas : 1,
                 .num_clusters = is_at_once ? 1 : decode_ctas,
                 .shared_bytes = sizeof(Shared),
                 .seed = seed++},
                [&](std::byte* memory) {
                  decode::run_cta<T, kHeadDim, kCopies>(params, maps, shared_of<Shared>(memory));
                });
}

template <typename T, int kHeadDim>
void run_prefill(const AttentionParams& p) {
  using Shared = prefill::PrefillShared<kHeadDim>;
  const int64_t num_tiles = max_prefill_tiles(p.num_tokens, p.num_rows, p.group);
  emulated::run(
      {.num_threads = prefill::kThreads,
       .num_clusters = int(num_tiles * p.kv_heads),
       .shared_bytes = sizeof(Shared),
       .seed = seed++},
      [&](std::byte* memory) { prefill::run_cta<T, kHeadDim>(p, shared_of<Shared>(memory)); });
}

template <typename T>
void run_plain(const AttentionParams& p) {
  emulated::run(
      {.num_threads = plain::kThreads,
       .num_clusters = p.num_tokens * p.group * p.kv_heads,
       .shared_bytes = plain::shared_bytes(p.head_dim),
       .seed = seed++},
      [&](std::byte* memory) { plain::PlainCta<T>(p, reinterpret_cast<float*>(memory)).run(); });
}

/// Calls run<T, kHeadDim>() of the launch's dtype and head_dim.
template <typename Run>
void with_types(const AttentionLaunch& of, const Run& run) {
  const auto with = [&]<typename T>() {
    if (of.params.head_dim == 64)
      run.template operator()<T, 64>();
    else
      run.template operator()<T, 128>();
  };
  if (of.dtype == reference::Dtype::bf16)
    with.template operator()<__nv_bfloat16>();
  else
    with.template operator()<__half>();
}

}  // namespace

void emulated::set_attention(int num_decode_ctas, uint64_t first_seed) {
  decode_ctas = num_decode_ctas, seed = first_seed;
}

void launch_attention_work(const AttentionLaunch& of) {
  emulated::run(
      {.num_threads = work::kThreads,
       .num_clusters = 1,
       .shared_bytes = sizeof(work::Shared),
       .seed = seed++},
      [&](std::byte* memory) { work::run_cta(of.params, shared_of<work::Shared>(memory)); });
}

void launch_decode_attention(const AttentionLaunch& of) {
  with_types(of, [&]<typename T, int kHeadDim>() {
    if (of.params.block_size >= decode::kEight)
      run_decode<T, kHeadDim, decode::Copies::blocks>(of.params);
    else
      run_decode<T, kHeadDim, decode::Copies::rows>(of.params);
  });
}

void launch_prefill_attention(const AttentionLaunch& of) {
  with_types(of, [&]<typename T, int kHeadDim>() { run_prefill<T, kHeadDim>(of.params); });
}

void launch_plain_attention(const AttentionLaunch& of) {
  if (of.dtype == reference::Dtype::f32) return run_plain<float>(of.params);
  if (of.dtype == reference::Dtype::bf16) return run_plain<__nv_bfloat16>(of.params);
  run_plain<__half>(of.params);
}

}  // namespace loratory::gpu
