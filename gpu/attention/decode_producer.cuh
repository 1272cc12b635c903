#pragma once

#include "gpu/attention/decode_shared.cuh"

// The warps that copy queries, keys and values into the ring, and take late items.

namespace loratory::gpu::decode {

template <typename T, int kHeadDim, Copies kCopies>
class DecodeProducer {
 public:
  __device__ DecodeProducer(const AttentionParams& params, const KvMaps& kv_maps,
                            DecodeShared<kHeadDim>& shared)
      : p(params), maps(kv_maps), s(shared), thread(int(threadIdx.x) - kConsumers) {}

  __device__ void run(const DecodeShare& share) {
    if (share.is_empty()) return;
    DecodeItem item = share.begin;
    for (bool is_first = true;; is_first = false) {
      const bool ends_share = share.ends_with(item);
      const bool is_last = ends_share && !share.late_follow;
      DecodeItem next = item;
      if (!ends_share) next.advance(rows_of(p));
      if constexpr (kCopies == Copies::blocks) find_box(item);
      if (is_first && p.overlaps_previous)
        copy_early(item, /*is_alone=*/is_last);  // a share that late items follow has two or more
      else
        copy(item, /*takes_late=*/ends_share && !is_last);
      if (is_last) return;
      stage = stage.ahead(2 * num_tiles_of(item));
      query = query.ahead(1);
      if (ends_share && !read_late(s, late, next)) return;
      item = next;
    }
  }

 private:
  static constexpr int kVecs = kHeadDim / 8;
  static constexpr int kRowsAtOnce = kProducers<kHeadDim, kCopies> / kVecs;
  static constexpr int kRowBytes = kHeadDim * 2;
  enum class Of : uint8_t { keys, values };

  const AttentionParams& p;
  const KvMaps& maps;
  DecodeShared<kHeadDim>& s;
  const int thread;
  int32_t eight = 0;  // the first of this lane's box, in the tensor
  Stage stage;
  Place<kQueries> query;
  Place<kLates> late;

  // The first item, while the previous kernel may still run. What earlier steps wrote does not wait
  // for it: the keys, all but the tile of this step's token, and the values if no other item
  // follows. More would hold up the query. However many kernels of this step overlap, earlier steps
  // have ended: a step begins with a kernel that overlaps nothing, and none ends before the one
  // before it.
  __device__ void copy_early(const DecodeItem& item, bool is_alone) const {
    const int count = num_tiles_of(item);
    const int newest = item.is_last_of_head() ? count - 1 : count;
    const auto copy_old = [&](Of what, int first_stage) {
      for (int tile = 0; tile < newest; ++tile) copy_into(first_stage + tile, what, item, tile);
    };
    copy_old(Of::keys, 0);
    if (is_alone) copy_old(Of::values, count);
    wait_for_prior_grid();
    if constexpr (kCopies == Copies::blocks) fence_global_for_bulk_copies();
    copy_query_of(item);
    if (newest < count) copy_into(newest, Of::keys, item, newest);
    if (!is_alone) copy_old(Of::values, count);
    if (newest < count) copy_into(count + newest, Of::values, item, newest);
  }

  // If a late item follows, the first warp takes it. The answer of the counter comes while keys are
  // copied, and nobody needs it before the values are.
  __device__ void copy(const DecodeItem& item, bool takes_late) const {
    const int count = num_tiles_of(item);
    takes_late = takes_late && thread < 32;
    int32_t number = 0;
    if (takes_late && thread == 0) number = atomicAdd(p.work.late_taken, 1);
    copy_query_of(item);
    for (int tile = 0; tile < count; ++tile) copy_into(tile, Of::keys, item, tile);
    if (takes_late) publish_late(__shfl_sync(0xFFFFFFFF, number, 0));
    for (int tile = 0; tile < count; ++tile) copy_into(count + tile, Of::values, item, tile);
  }

  // Of item n + 1, while n is copied. The query of n has waited for the scores of n - 2, so every
  // thread has read item n - 2, and n + 1 may lie where it lay.
  __device__ void publish_late(int32_t number) const {
    const auto num_ctas = int32_t(gridDim.x);
    const DecodeItem item = late_item(rows_of(p), number, num_ctas, CountLanes{});
    if (thread == 0) {
      s.late[late.index()] = item;
      arrive(&s.full_late[late.index()]);
      // Each CTA asks once in vain. Behind the last of them nobody asks: 0 for the next launch.
      if (item.index + 1 == rows_of(p).num_items() + num_ctas) *p.work.late_taken = 0;
    }
  }

  // Fresh places are free.
  __device__ void copy_into(int stages_ahead, Of what, const DecodeItem& item, int tile) const {
    const Stage to = stage.ahead(stages_ahead);
    wait_for_bytes(&s.free[to.index()], to.phase() ^ 1);
    if constexpr (kCopies == Copies::blocks) {
      copy_blocks(what == Of::keys ? maps.k : maps.v, to.index(), item, tile);
    } else {
      copy_rows(what == Of::keys ? p.k : p.v, s.tiles[to.index()], item, tile);
      arrive_after_copies(&s.full[to.index()]);
    }
  }
  __device__ void copy_query_of(const DecodeItem& item) const {
    wait_for_bytes(&s.free_q[query.index()], query.phase() ^ 1);
    copy_query(s.query[query.index()], item);
    arrive_after_copies(&s.full_q[query.index()]);
  }

  __device__ const int32_t* table_of(const DecodeItem& item) const {
    return p.block_tables + int64_t(item.row) * p.max_blocks;
  }

  // Rows behind the last head are 0.
  __device__ void copy_query(std::byte* to, const DecodeItem& item) const {
    const int vec = thread % kVecs;
    const int64_t token = __ldg(p.row_starts + item.row);
    const T* const from = static_cast<const T*>(p.q) + token * p.q_stride +
                          int64_t(item.head) * p.group * kHeadDim + vec * 8;
#pragma unroll
    for (int i = 0; i < kMostGroup / kRowsAtOnce; ++i) {
      const int row = thread / kVecs + i * kRowsAtOnce;
      const bool exists = row < p.group;
      copy_async(to + panel_offset<kMostGroup>(row, vec), from + (exists ? row * kHeadDim : 0),
                 exists);
    }
  }

  // Boxes are blocks, or the part of a block that a tile has. Lane i asks for box i of the piece.
  __device__ int box_shift() const { return min(p.block_shift, kTileShift); }
  __device__ void find_box(const DecodeItem& item) {
    const int first = thread << box_shift();
    if (first >= item.num_keys()) return;
    const int32_t position = item.piece * kPieceKeys + first;
    const int32_t block = __ldg(table_of(item) + (position >> p.block_shift));
    const int32_t of_block = block * p.kv_heads + item.head;
    eight = (of_block << p.block_shift | (position & (p.block_size - 1))) / kEight;
  }
  // Of a last block all tokens, whatever lies there.
  __device__ void copy_blocks(const CUtensorMap& map, int to, const DecodeItem& item,
                              int tile) const {
    const int shift = box_shift(), box = thread - (tile << (kTileShift - shift));
    const int num_keys = min(item.num_keys() - tile * kAttentionTileKeys, kAttentionTileKeys);
    const int num_boxes = (num_keys + (1 << shift) - 1) >> shift;
    const int box_bytes = kRowBytes << shift;
    if (thread == 0) expect_bytes(&s.full[to], num_boxes * box_bytes);
    if (box >= 0 && box < num_boxes) {
      load_eights(s.tiles[to] + box * box_bytes, map, eight, &s.full[to], kEvictFirst);
    }
  }

  // Nothing behind the last key.
  __device__ void copy_rows(const void* tensor, std::byte* to, const DecodeItem& item,
                            int tile) const {
    const int row = thread / kVecs, vec = thread % kVecs;
    const int num_keys = item.num_keys() - tile * kAttentionTileKeys;
    const int32_t first = item.piece * kPieceKeys + tile * kAttentionTileKeys;
    const int32_t* const table = table_of(item);
    // Of a block; the plan has seen that it fits.
    const int32_t numbers = p.kv_heads * p.block_size * kHeadDim;
    const T* const base =
        static_cast<const T*>(tensor) + item.head * p.block_size * kHeadDim + vec * 8;
#pragma unroll
    for (int i = 0; i < kAttentionTileKeys / kRowsAtOnce; ++i) {
      const int key = row + i * kRowsAtOnce;
      if (key >= num_keys) break;
      const int position = first + key;
      const int64_t block = int64_t{__ldg(table + (position >> p.block_shift))} * numbers;
      const int place = (position & (p.block_size - 1)) * kHeadDim;
      copy_async(to + tile_offset<kHeadDim>(key, vec), base + (block + place), 1);
    }
  }
};

}  // namespace loratory::gpu::decode
