#pragma once

#include "gpu/attention/decode_consumer.cuh"
#include "gpu/attention/decode_producer.cuh"

// Attention of rows with one token. A work item is a piece of a row's context and one kv head. Each
// CTA takes a contiguous share of all items, and then, one at a time, late items that are in no
// share. One of its warps does nothing but ask for blocks by bulk copies: tiles of keys and values
// go through a ring in shared memory without a pause between items. Blocks of fewer than eight
// tokens are too small for bulk copies, and more warps copy rows. The CTA that delivers the last
// piece of a row and head merges all of them, so it does not matter who computes which; a CTA that
// has all of them merges them as they come.

namespace loratory::gpu::decode {

template <Copies kCopies, int kHeadDim>
__device__ void init_barriers(DecodeShared<kHeadDim>& s) {
  constexpr int kCopying = kProducers<kHeadDim, kCopies>;
  for (int i = 0; i < kStages; ++i) {
    init_barrier(&s.full[i], kCopies == Copies::blocks ? 1 : kCopying);
    init_barrier(&s.free[i], kWarps);
  }
  for (int i = 0; i < kQueries; ++i) {
    init_barrier(&s.full_q[i], kCopying);
    init_barrier(&s.free_q[i], kConsumers);
  }
  for (uint64_t& full : s.full_late) init_barrier(&full);
}

/// What a CTA does, with shared memory of its own.
template <typename T, int kHeadDim, Copies kCopies>
__device__ void run_cta(const AttentionParams& params, const KvMaps& maps,
                        DecodeShared<kHeadDim>& shared) {
  launch_dependents();
  if (threadIdx.x == 0) init_barriers<kCopies>(shared);
  const DecodeShare share = share_of(params);
  __syncthreads();
  if (threadIdx.x < kConsumers)
    DecodeConsumer<T, kHeadDim>(params, shared).run(share);
  else
    DecodeProducer<T, kHeadDim, kCopies>(params, maps, shared).run(share);
}

}  // namespace loratory::gpu::decode
