#pragma once

#include "gpu/kernels/lora_context.cuh"

namespace loratory::gpu {

/// h of one unit: every warp streams its chunk of A, the CTA adds up chunks, the cluster groups.
template <typename C>
class Shrink {
 public:
  __device__ explicit Shrink(const Context<C>& context) : c(context), p(context.p) {}

  /// Barriers may be used by others once everybody has come.
  __device__ void init() {
    if constexpr (C::kSends) {
      if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) init_barrier(c.barriers() + i);
      }
      cluster_arrive();
    }
  }
  /// Nobody sends before, and nobody leaves before, all have come.
  __device__ void begin_sending() {
    if constexpr (C::kSends) {
      if (!may_send_) cluster_wait();
      may_send_ = true;
    }
  }

  /// x, y and p.h may be read from here on.
  __device__ void wait_once() {
    if (waited_) return;
    waited_ = true;
    wait_for_previous_kernel();
    let_next_kernel_start();
  }

  /// Leaves h of the unit in shared memory (or, alone, in p.h). `meanwhile` runs once this warp's
  /// ring is empty, while sums are under way.
  template <typename Meanwhile>
  __device__ void run(const Unit& unit, Meanwhile&& meanwhile) {
    const int num_blocks = (unit.num_rank_tiles + C::kRankTiles - 1) / C::kRankTiles;
    begin_stages(unit, num_blocks);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
#pragma unroll 1
      for (int i = 0; i < C::kGroupsEach; ++i) {
        float acc[C::kRankTiles][C::kTokenTiles][4] = {};
        sum_chunk(unit, acc);
        const bool first = i == 0;
        if (block + 1 == num_blocks && i + 1 == C::kGroupsEach) meanwhile();
        if (C::kSends && first && block > 0) finish_block(unit, block - 1);
        __syncthreads();  // the sums before have been read
        store_partial(unit, acc);
        __syncthreads();
        begin_sending();
        if (C::kSends && first && threadIdx.x == 0) {
          expect_bytes(c.barriers() + buffer(block), expected_bytes(unit));
        }
        add_chunks(unit, buffer(block), first_group() + i);
      }
      if constexpr (!C::kSends) finish_block(unit, block);
    }
    if constexpr (C::kSends) finish_block(unit, num_blocks - 1);
    blocks_done_ += num_blocks;
    if constexpr (kHandsOn) wait_for_h(unit);
  }

 private:
  using Acc = float[C::kRankTiles][C::kTokenTiles][4];
  static constexpr int kQuads = C::kBlockRank / 4;
  static constexpr bool kHandsOn = C::kScatters && C::kExpands;

  const Context<C> c;
  const LinearParams& p;
  bool may_send_ = false, waited_ = false;
  int blocks_done_ = 0, units_done_ = 0;

  // Where the next stage to load is.
  int num_blocks_ = 0, chunk_ = 0, num_steps_ = 0;
  int load_block_ = 0, load_group_ = 0, load_step_ = 0, load_slot_ = 0;
  int slot_ = 0;  // of the next stage to multiply

  __device__ static int first_group() {
    return C::kCluster == 1 ? 0 : cluster_rank() * C::kGroupsEach;
  }
  __device__ int buffer(int block) const { return C::kSends ? (blocks_done_ + block) % 2 : 0; }
  __device__ int parity(int block) const { return (blocks_done_ + block) / 2 % 2; }

  // --- loads --------------------------------------------------------------------------------

  /// Weights first: they may be read before the kernel before this one has ended, x may not.
  __device__ void begin_stages(const Unit& unit, int num_blocks) {
    num_blocks_ = num_blocks;
    chunk_ = chunk_size(p.num_in);
    num_steps_ = (chunk_ / 32 + C::kStepsAtOnce - 1) / C::kStepsAtOnce;
    load_block_ = load_group_ = load_step_ = load_slot_ = slot_ = 0;
    if constexpr (C::kKeepsX) {
#pragma unroll
      for (int i = 0; i < C::kNumStages; ++i) load_stage<true, false>(unit);
      wait_once();
#pragma unroll 1
      for (int step = 0; step < num_steps_; ++step) {
        load_x(unit, first_group(), step, c.kept_x() + step * C::kTokens * C::kRowBytes);
      }
#pragma unroll
      for (int i = 0; i < C::kNumStages; ++i) close_copy_group();
    } else {
#pragma unroll 1
      for (int i = 0; i < C::kNumStages; ++i) load_stage<true, false>(unit);
      wait_once();
      load_block_ = load_group_ = load_step_ = load_slot_ = 0;
#pragma unroll 1
      for (int i = 0; i < C::kNumStages; ++i) {
        load_stage<false, true>(unit);
        close_copy_group();
      }
    }
  }

  /// The next stage into its slot of the ring; nothing after the last.
  template <bool kA, bool kX>
  __device__ void load_stage(const Unit& unit) {
    if (load_block_ == num_blocks_) return;
    std::byte* const to = c.ring() + load_slot_ * C::kStageBytes;
    const int group = first_group() + load_group_;
    if constexpr (kA) load_a(unit, group, load_step_, to);
    if constexpr (kX && !C::kKeepsX) {
      load_x(unit, group, load_step_, to + C::kBlockRank * C::kRowBytes);
    }
    load_slot_ = load_slot_ + 1 == C::kNumStages ? 0 : load_slot_ + 1;
    if (++load_step_ < num_steps_) return;
    load_step_ = 0;
    if (++load_group_ < C::kGroupsEach) return;
    load_group_ = 0;
    ++load_block_;
  }

  // A lane copies 16 bytes of every kRowsAtOnce-th row.
  static constexpr int kPieces = C::kRowBytes / 16;
  static constexpr int kRowsAtOnce = 32 / kPieces;

  /// First column of this lane's piece, and how many of its eight exist.
  __device__ int column_of(int group, int step) const {
    return (group * kGroupWarps + c.warp) * chunk_ + 32 * C::kStepsAtOnce * step +
           8 * (c.lane % kPieces);
  }
  __device__ int valid_from(int group, int column) const {
    const int end = min((group * kGroupWarps + c.warp + 1) * chunk_, p.num_in);
    return max(0, min(8, end - column));
  }
  /// Two rows share the banks if a row is 128 bytes: odd ones have their halves swapped.
  __device__ static int place_of(int row, int piece) {
    if constexpr (C::kStepsAtOnce == 2) piece ^= row % 2 * 4;
    return row * C::kRowBytes + piece * 16;
  }

  __device__ void load_a(const Unit& unit, int group, int step, std::byte* to) const {
    const int column = column_of(group, step);
    const int valid = valid_from(group, column);
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int tile = load_block_ * C::kRankTiles + i;
      if (tile >= unit.num_rank_tiles) break;
      const UnitSlice& s = c.slice_of(unit, tile, &UnitSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + c.lane / kPieces;
      const uint32_t row_bytes = s.a_row_bytes;
      const std::byte* from = s.a + uint64_t(uint32_t(rank)) * row_bytes + 2 * int64_t(column);
      const int left = valid > 0 ? s.rank - rank : 0;
#pragma unroll
      for (int row = 0; row < 16; row += kRowsAtOnce) {
        copy_eight_or_none<C::kAligned>(
            to + place_of(16 * i + row + c.lane / kPieces, c.lane % kPieces), from,
            row < left ? valid : 0);
        from += kRowsAtOnce * uint64_t(row_bytes);
      }
    }
  }

  __device__ void load_x(const Unit& unit, int group, int step, std::byte* to) const {
    const int column = column_of(group, step);
    const int valid = valid_from(group, column);
#pragma unroll
    for (int row = 0; row < C::kTokens; row += kRowsAtOnce) {
      const int token = row + c.lane / kPieces;
      const std::byte* const from = c.tokens()[token].x + 2 * int64_t(column);
      copy_eight_or_none<C::kAligned>(to + place_of(token, c.lane % kPieces), from,
                                      token < unit.num_tokens ? valid : 0);
    }
  }

  // --- products -----------------------------------------------------------------------------

  /// One warp: its chunk of one group, in steps of 16 columns of x.
  __device__ void sum_chunk(const Unit& unit, Acc& acc) {
#pragma unroll 1
    for (int step = 0; step < num_steps_; ++step) {
      wait_for_copies<C::kNumStages - 1>();
      __syncwarp();
      const std::byte* const a = c.ring() + slot_ * C::kStageBytes;
      const std::byte* x = a + C::kBlockRank * C::kRowBytes;
      if constexpr (C::kKeepsX) x = c.kept_x() + step * C::kTokens * C::kRowBytes;
#pragma unroll
      for (int i = 0; i < C::kStepsAtOnce; ++i) multiply(unit, a, x, 4 * i + c.quad, acc);
      slot_ = slot_ + 1 == C::kNumStages ? 0 : slot_ + 1;
      __syncwarp();
      load_stage<true, true>(unit);
      close_copy_group();
    }
  }

  __device__ void multiply(const Unit& unit, const std::byte* a, const std::byte* x, int piece,
                           Acc& acc) const {
    uint4 v[C::kTokenTiles];
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) v[n] = read(x, 8 * n + c.row, piece);
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const uint4 w0 = read(a, 16 * i + c.row, piece), w1 = read(a, 16 * i + 8 + c.row, piece);
#pragma unroll
      for (int n = 0; n < C::kTokenTiles; ++n) {
        if (8 * n >= unit.num_tokens) continue;
        mma<typename C::Weight>(acc[i][n], w0.x, w1.x, w0.y, w1.y, v[n].x, v[n].y);
        mma<typename C::Weight>(acc[i][n], w0.z, w1.z, w0.w, w1.w, v[n].z, v[n].w);
      }
    }
  }
  __device__ static uint4 read(const std::byte* rows, int row, int piece) {
    return *reinterpret_cast<const uint4*>(rows + place_of(row, piece));
  }

  // --- sums ---------------------------------------------------------------------------------

  __device__ void store_partial(const Unit& unit, const Acc& acc) const {
    float* const tile = c.partial() + c.warp * C::kTileFloats;
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
      if (8 * n >= unit.num_tokens) continue;
      float* const token = tile + (8 * n + 2 * c.quad) * C::kRowFloats + c.row;
#pragma unroll
      for (int i = 0; i < C::kRankTiles; ++i) {
        token[16 * i] = acc[i][n][0];
        token[16 * i + C::kRowFloats] = acc[i][n][1];
        token[16 * i + 8] = acc[i][n][2];
        token[16 * i + 8 + C::kRowFloats] = acc[i][n][3];
      }
    }
  }

  /// Adds the chunks of a group, four sums a thread, and hands them to whoever adds the groups:
  /// one thread for each CTA they go to.
  __device__ void add_chunks(const Unit& unit, int buffer, int group) {
    constexpr uint32_t kCopies = C::kSends && !C::kScatters ? C::kCluster : 1;
    float* const receive = c.receive() + buffer * C::kReceiveFloats;
    const uint32_t count = uint32_t(unit.num_tokens) * kQuads * kCopies;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < count; e += C::kNumThreads) {
      const uint32_t token = e / kCopies / kQuads;
      const uint32_t j = e / kCopies % kQuads * 4;
      const float4 sum = add_warps(c.partial() + token * C::kRowFloats + j);
      if constexpr (C::kScatters) {
        float* const to = receive + group * C::kReceiveTile + token / C::kCluster * C::kRowFloats;
        send(to + j, c.barriers() + buffer, token % C::kCluster, as_bits(sum));
      } else if constexpr (C::kSends) {
        float* const to = receive + group * C::kReceiveTile + token * C::kRowFloats;
        send(to + j, c.barriers() + buffer, e % kCopies, as_bits(sum));
      } else {  // groups come in order: the running sum stays with its thread
        auto* const to = reinterpret_cast<float4*>(receive + token * C::kRowFloats + j);
        float4 total = group > 0 ? *to : float4{};
        if (group > 0) add(total, sum);
        *to = group > 0 ? total : sum;
      }
    }
  }

  __device__ static float4 add_warps(const float* from) {
    float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
    for (int w = 1; w < kGroupWarps; ++w) {
      add(sum, *reinterpret_cast<const float4*>(from + w * C::kTileFloats));
    }
    return sum;
  }
  __device__ static uint4 as_bits(float4 v) {
    return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
  }
  __device__ static void add(float4& sum, float4 v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }

  /// Tokens of this CTA, and what it receives of a block.
  __device__ static int own_tokens(const Unit& unit) {
    if constexpr (!C::kScatters) return unit.num_tokens;
    return (unit.num_tokens - cluster_rank() + C::kCluster - 1) / C::kCluster;
  }
  __device__ static int expected_bytes(const Unit& unit) {
    return kNumGroups * own_tokens(unit) * C::kBlockRank * 4;
  }

  /// h of a block: to shared memory, here or everywhere, or to p.h.
  __device__ void finish_block(const Unit& unit, int block) {
    if constexpr (C::kSends) wait_for_bytes(c.barriers() + buffer(block), parity(block));
    constexpr uint32_t kCopies = kHandsOn ? C::kCluster : 1;  // a thread for each CTA it goes to
    const uint32_t count = uint32_t(own_tokens(unit)) * kQuads * kCopies;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < count; e += C::kNumThreads) {
      const uint32_t own_token = e / kCopies / kQuads;
      const uint32_t j = e / kCopies % kQuads * 4;
      const float4 sum = add_groups(buffer(block), own_token, j);
      const int token = C::kScatters ? own_token * C::kCluster + cluster_rank() : own_token;
      keep(unit, token, block * C::kBlockRank + j, sum, e % kCopies);
    }
  }

  __device__ float4 add_groups(int buffer, int own_token, int j) const {
    const float* const place =
        c.receive() + buffer * C::kReceiveFloats + own_token * C::kRowFloats + j;
    float4 sum = *reinterpret_cast<const float4*>(place);
    if constexpr (C::kSends) {
#pragma unroll
      for (int g = 1; g < kNumGroups; ++g) {
        add(sum, *reinterpret_cast<const float4*>(place + g * C::kReceiveTile));
      }
    }
    return sum;
  }

  /// Four sums of a token; `rank` counts over the tiles of all slices.
  __device__ void keep(const Unit& unit, int token, int rank, float4 v, int to_cta) const {
    if (rank / 16 >= unit.num_rank_tiles) return;
    const UnitSlice& s = c.slice_of(unit, rank / 16, &UnitSlice::first_rank_tile);
    const int j = rank - 16 * s.first_rank_tile;
    if constexpr (!C::kExpands) {
      write_h(s, token, j, v);
      return;
    }
    float* const values = &v.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i >= s.rank) values[i] = 0;
    }
    store_h(token, s.h_column + j, c.split(v), to_cta);
    // The expand takes 32 ranks at a time: the other half of the last ones is 0.
    if (j / 16 % 2 == 0 && j / 16 == (s.rank - 1) / 16) {
      store_h(token, s.h_column + j + 16, {0, 0, 0, 0}, to_cta);
    }
  }
  __device__ void store_h(int token, int column, uint4 v, int to_cta) const {
    uint4* const place = c.h_place(token, column);
    if constexpr (kHandsOn)
      send(place, c.barriers() + 2, to_cta, v);
    else
      *place = v;
  }
  __device__ void write_h(const UnitSlice& s, int token, int j, float4 v) const {
    float* const h = reinterpret_cast<float*>(c.tokens()[token].y) + s.index * p.h_slice_stride + j;
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i < s.rank) h[i] = values[i];
    }
  }

  /// All of h has come: 4 bytes a padded rank.
  __device__ void wait_for_h(const Unit& unit) {
    if (threadIdx.x == 0) expect_bytes(c.barriers() + 2, unit.num_tokens * unit.h_width * 4);
    wait_for_bytes(c.barriers() + 2, units_done_++ % 2);
  }
};

}  // namespace loratory::gpu
