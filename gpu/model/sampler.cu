#include <Random123/philox.h>
#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/model_launch.hpp"
#include "gpu/model/tally.cuh"

// A cluster takes a row; each CTA keeps a slice of its logits in shared memory. A token is a number
// of 64 bits, its logit above its id, such that the likelier of two, the lower id of equals, is
// smaller. To find where a running count or a running sum of weights in that order reaches a goal,
// the tokens are counted in bins; the first bin that reaches it is gathered by the first CTA, the
// leader, and sorted. A bin of more tokens than that is cut into bins itself. Counts and sums are
// integers, so it does not matter who adds them, or when.

namespace loratory::gpu {
namespace {

namespace cg = cooperative_groups;

constexpr int kNumThreads = 512;
constexpr int kItems = 2 * kNumThreads;  // bins, and tokens in a list: two of each thread
constexpr int kLastBin = kItems - 1;
constexpr int kCluster = 8;
static_assert(kMostTopTokens <= kItems);

/// e^-44 < 2^-63: from there on a weight is 0.
constexpr double kMostNegative = 44;
constexpr uint64_t kNoToken = ~uint64_t{0};

// --- tokens as numbers --------------------------------------------------------------------------

__device__ float without_nan(float v) { return isnan(v) ? -INFINITY : v; }

__device__ uint64_t token_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{~ascending} << 32 | uint32_t(id);
}
__device__ float logit_of(uint64_t token) {
  const uint32_t ascending = ~uint32_t(token >> 32);
  return __uint_as_float(ascending >> 31 != 0 ? ascending & 0x7FFFFFFFU : ~ascending);
}
__device__ int32_t id_of(uint64_t token) { return int32_t(uint32_t(token)); }

/// Some of the tokens.
struct Filter {
  int last_bin = kLastBin, first_bin = 0;
  uint64_t first = 0, last = kNoToken;
};

/// How tokens are cut into bins: by logits, or by their numbers from filter.first on.
struct Level {
  Filter filter;
  bool by_logit = true;
  int shift = 0;
};

/// What the leader tells the other CTAs.
struct Command {
  Filter filter;
  bool gathers = false;   ///< its tokens fit in the list; otherwise cut them into bins
  bool is_whole = false;  ///< there is no likelier token
};

/// What is looked for, in this order.
enum class Stage : uint8_t {
  few,    ///< the top_k likeliest, if they fit in the list: then everything else is there
  count,  ///< otherwise the last of them
  mass,   ///< the last of the fewest whose sum reaches top_p
  sum,    ///< the token
  top,    ///< the likeliest tokens, for their log-probabilities
};
constexpr int kNumStages = 5;

/// Of the logits of a slice.
struct Extremes {
  uint64_t best = kNoToken;  ///< the largest, as a token
  float lowest = INFINITY;   ///< of those that are finite
  uint32_t has_nan = 0;
};
__device__ Extremes merged(const Extremes& a, const Extremes& b) {
  return {min(a.best, b.best), fminf(a.lowest, b.lowest), a.has_nan | b.has_nan};
}

struct Shared {
  /// Of each bin: tokens, and sums of the 16-bit pieces of their weights. In the leader, once the
  /// CTAs are merged: the tally of all bins up to this one, the sum in three words.
  uint32_t counts[kItems];
  uint32_t words[4][kItems];
  uint64_t list[kItems];
  Tally of_warp[kNumThreads / 32];
  Extremes of_cta[kCluster];
  Tally tally_of_cta[kCluster];
  Command command;
  Tally before;  ///< of the bin that is looked into
  Tally base;    ///< of the first bin
  Tally reached;
  Tally left;  ///< the tokens to choose from
  int first_index;
  uint32_t list_size;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // clusters
class RowSampler {
 public:
  __device__ RowSampler(const SampleLaunch& launch, int slice_size, Shared& shared, float* slice)
      : p(launch),
        s(shared),
        cluster(cg::this_cluster()),
        rank(int(cluster.block_rank())),
        thread(int(threadIdx.x)),
        slice_(slice),
        first_id_(rank * slice_size),
        size_(max(0, min(slice_size, p.vocab - first_id_))) {}

  __device__ void run(int row_index) {
    const SamplingRow& row = p.args.rows[row_index];
    const bool with_logprobs = row.num_top >= 0 && p.args.logprobs != nullptr;
    load(p.logits + row_index * p.stride + first_id_, row.temperature > 0 || with_logprobs);
    set_bins(row.temperature > 0 ? row.temperature : 1);
    with_sums_ = wants(Stage::sum, row);
    const double log_sum = with_logprobs ? log_of_sum() : 0;
    uint64_t token = best_;
#pragma unroll 1
    for (int i = 0; i < kNumStages; ++i) {
      const auto stage = Stage(i);
      if (!wants(stage, row)) continue;
      const uint64_t found = search(stage, row);
      if (!is_leader()) continue;
      if (stage == Stage::count || stage == Stage::mass) keep(s.reached), has_left_ = true;
      if (stage == Stage::few) token = chosen_from_list(row);
      if (stage == Stage::sum) token = found;
      if (stage == Stage::top) write_top(row, row_index, log_sum);
    }
    if (is_leader() && thread == 0) {
      p.args.tokens[row_index] = id_of(token);
      if (with_logprobs) p.args.logprobs[row_index] = logprob(token, log_sum);
    }
    cluster.sync();  // nobody leaves while its memory may be read
  }

 private:
  const SampleLaunch& p;
  Shared& s;
  const cg::cluster_group cluster;
  const int rank, thread;
  float* const slice_;
  const int first_id_, size_;
  // The same in all CTAs.
  uint64_t best_ = 0;
  float top_ = 0, lowest_ = 0;
  bool has_nan_ = false;
  double temperature_ = 1;
  float range_ = 0, bins_per_unit_ = 0, no_weight_ = 0;
  bool with_sums_ = false, has_first_level_ = false;
  bool has_left_ = false;  // in the leader: s.left, otherwise all tokens are left
  Tally upto_[2];          // in the leader: up to this thread's two tokens of the list

  __device__ bool is_leader() const { return rank == 0; }
  template <typename T>
  __device__ T* of_leader(T* mine) const {
    return cluster.map_shared_rank(mine, 0);
  }
  /// Every thread of the CTA calls do_it(logit, id) for its tokens, kAtOnce of them in flight.
  template <int kAtOnce = 1, typename DoIt>
  __device__ void for_each_token(const DoIt& do_it) const {
#pragma unroll kAtOnce
    for (int i = thread; i < size_; i += kNumThreads) do_it(without_nan(slice_[i]), first_id_ + i);
  }

  // --- the row ----------------------------------------------------------------------------------

  /// Vectors of four logits, if every row begins with one.
  __device__ void load(const float* from, bool keeps) {
    Extremes mine;
    float best = -INFINITY;
    int best_at = thread < size_ ? thread : 0;
    const auto take = [&](float raw, int at) {
      if (raw > best) best = raw, best_at = at;  // the first of equals; never a NaN
      if (raw > -INFINITY) mine.lowest = fminf(mine.lowest, raw);
      mine.has_nan |= uint32_t(isnan(raw));
      if (keeps) slice_[at] = raw;
    };
    const bool has_vectors = p.stride % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
    const int num_vectors = has_vectors ? size_ / 4 : 0;
    if (num_vectors > 0) best_at = thread < num_vectors ? 4 * thread : 0;
#pragma unroll 4
    for (int i = thread; i < num_vectors; i += kNumThreads) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from) + i);
      take(four.x, 4 * i), take(four.y, 4 * i + 1);
      take(four.z, 4 * i + 2), take(four.w, 4 * i + 3);
    }
#pragma unroll 1
    for (int i = 4 * num_vectors + thread; i < size_; i += kNumThreads) take(__ldg(from + i), i);
    if (size_ > 0) mine.best = token_of(best, first_id_ + best_at);
    mine = over_cta(mine);
    cluster.sync();  // all CTAs have begun
    if (thread < int(cluster.num_blocks())) {
      cluster.map_shared_rank(s.of_cta, thread)[rank] = mine;
    }
    cluster.sync();
    Extremes all;
    for (int i = 0; i < int(cluster.num_blocks()); ++i) all = merged(all, s.of_cta[i]);
    best_ = all.best, top_ = logit_of(best_), lowest_ = all.lowest, has_nan_ = all.has_nan != 0;
  }

  /// The same in every thread.
  __device__ Extremes over_cta(Extremes mine) const {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      mine = merged(mine, {__shfl_xor_sync(~0U, mine.best, distance),
                           __shfl_xor_sync(~0U, mine.lowest, distance),
                           __shfl_xor_sync(~0U, mine.has_nan, distance)});
    }
    auto* const of_warp = reinterpret_cast<Extremes*>(s.list);
    if (thread % 32 == 0) of_warp[thread / 32] = mine;
    __syncthreads();
#pragma unroll 1
    for (int warp = 0; warp < kNumThreads / 32; ++warp) mine = merged(mine, of_warp[warp]);
    __syncthreads();
    return mine;
  }

  // --- weights and bins -------------------------------------------------------------------------

  __device__ void set_bins(double temperature) {
    temperature_ = temperature;
    no_weight_ = float(kMostNegative * temperature);
    range_ = fmaxf(0.0f, fminf(top_ - lowest_, no_weight_));
    bins_per_unit_ = range_ > 0 ? float(kItems) / range_ : 0.0f;
  }

  /// How far below the largest logit; the largest may be infinite.
  __device__ float distance_of(float logit) const { return logit == top_ ? 0.0f : top_ - logit; }

  /// Never falls when the logit falls: each rounding keeps the order.
  __device__ int bin_of(float logit) const {
    const float distance = distance_of(logit);
    return distance < range_ ? min(int(distance * bins_per_unit_), kLastBin) : kLastBin;
  }
  __device__ bool takes(const Filter& filter, float logit, uint64_t token) const {
    const int bin = bin_of(logit);
    if (bin < filter.first_bin || bin > filter.last_bin) return false;
    return token >= filter.first && token <= filter.last;
  }

  /// e^((logit - largest) / temperature) in units of 2^-63.
  __device__ uint64_t weight_of(float logit, double temperature) const {
    if (logit == top_) return uint64_t{1} << 63;
    const double distance = double(logit) - double(top_);
    return uint64_t(exp(distance / temperature) * 0x1p63);
  }
  __device__ Tally tally_of(uint64_t token) const {
    return {weight_of(logit_of(token), temperature_), 0, 1};
  }

  // --- bins -------------------------------------------------------------------------------------

  /// The tally up to each bin, in the leader. Sums cost an exponential for each token.
  __device__ void build(const Level& level) {
    for (int i = thread; i < kItems; i += kNumThreads) {
      s.counts[i] = 0;
      for (auto& words : s.words) words[i] = 0;
    }
    __syncthreads();
    uint32_t num_in_last = 0;  // many, if the likely tokens are few
    for_each_token<4>([&](float logit, int id) {
      const int bin = bin_in(level, logit, id);
      if (bin == kLastBin)
        ++num_in_last;
      else if (bin >= 0)
        atomicAdd(&s.counts[bin], 1);
    });
    if (with_sums_) {
      for_each_token([&](float logit, int id) {
        const int bin = bin_in(level, logit, id);
        if (bin >= 0 && distance_of(logit) <= no_weight_) add_pieces(bin, logit);
      });
    }
    atomicAdd(&s.counts[kLastBin], num_in_last);
    cluster.sync();
    merge_ctas();
    cluster.sync();
    if (is_leader()) add_up_bins();
  }

  /// -1 if the level does not have the token.
  __device__ int bin_in(const Level& level, float logit, int id) const {
    if (level.by_logit) return bin_of(logit);
    const uint64_t token = token_of(logit, id);
    return takes(level.filter, logit, token) ? int((token - level.filter.first) >> level.shift)
                                             : -1;
  }

  __device__ void add_pieces(int bin, float logit) {
    const uint64_t weight = weight_of(logit, temperature_);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto piece = uint32_t(weight >> (16 * i)) & 0xFFFFU;
      if (piece != 0) atomicAdd(&s.words[i][bin], piece);
    }
  }

  /// Each CTA adds its share of the bins over all CTAs, and writes them to the leader's.
  __device__ void merge_ctas() {
    const int num_ctas = int(cluster.num_blocks()), share = kItems / num_ctas;
    for (int bin = rank * share + thread; bin < (rank + 1) * share; bin += kNumThreads) {
      Tally all;
#pragma unroll 2
      for (int cta = 0; cta < num_ctas; ++cta) {
        const Shared& other = *cluster.map_shared_rank(&s, cta);
        const uint64_t piece2 = other.words[2][bin], piece3 = other.words[3][bin];
        all = all + Tally{other.words[0][bin] + (uint64_t{other.words[1][bin]} << 16), 0,
                          other.counts[bin]};
        all = all + Tally{piece2 << 32, 0, 0} + Tally{piece3 << 48, uint32_t(piece3 >> 16), 0};
      }
      put_bin(*of_leader(&s), bin, all);
    }
  }
  static __device__ void put_bin(Shared& to, int bin, const Tally& tally) {
    to.counts[bin] = tally.count;
    to.words[0][bin] = uint32_t(tally.low);
    to.words[1][bin] = uint32_t(tally.low >> 32);
    to.words[2][bin] = tally.high;
  }
  __device__ Tally bin_at(int bin) const {
    return {uint64_t{s.words[1][bin]} << 32 | s.words[0][bin], s.words[2][bin], s.counts[bin]};
  }

  __device__ void add_up_bins() {
    Tally upto[2] = {bin_at(2 * thread), bin_at(2 * thread + 1)};
    upto[1] = upto[0] + upto[1];
    const Tally before = tally_before(upto[1], s.of_warp) + s.base;
    for (int i = 0; i < 2; ++i) put_bin(s, 2 * thread + i, before + upto[i]);
    __syncthreads();
  }

  // --- looking for a goal -----------------------------------------------------------------------

  /// The first of the leader's 2·kNumThreads tallies that reaches the goal; s.reached is the tally.
  __device__ int first_that_reaches(const Tally (&upto)[2], const Goal& goal) {
    if (thread == 0) s.first_index = kLastBin;
    __syncthreads();
    for (int i = 1; i >= 0; --i) {
      if (reaches(upto[i], goal)) atomicMin(&s.first_index, 2 * thread + i);
    }
    __syncthreads();
    const int index = s.first_index;
    if (index / 2 == thread) s.reached = index % 2 == 0 ? upto[0] : upto[1];
    __syncthreads();
    return index;
  }
  __device__ int first_bin_that_reaches(const Goal& goal) {
    const Tally upto[2] = {bin_at(2 * thread), bin_at(2 * thread + 1)};
    return first_that_reaches(upto, goal);
  }

  /// The token at which the running tally of all tokens, the likeliest first, reaches the stage's
  /// goal; s.reached is the tally. Both in the leader. Its list holds tokens around that one, of
  /// the stages few and top all up to it.
  __device__ uint64_t search(Stage stage, const SamplingRow& row) {
    const bool wants_all = stage == Stage::few || stage == Stage::top;
    Level level;
    Goal goal;
    Command command;
    for (bool is_first = true; !command.gathers; is_first = false) {
      if (!is_first || !has_first_level_) {
        if (is_leader() && thread == 0) s.base = is_first ? Tally{} : s.before;
        __syncthreads();
        build(level);
        has_first_level_ = is_first;
      }
      if (is_leader()) {
        if (is_first) goal = goal_of(stage, row);
        look_into_bin(level, goal, wants_all);
      }
      command = told();
      level.filter = command.filter;
      if (!command.gathers) cut(level);
    }
    uint64_t found = look_into_list(level.filter, goal);
    if (wants_all && !command.is_whole) {
      if (is_leader() && thread == 0) {
        s.command.filter = {kLastBin, 0, 0, found};
        s.before = {};
      }
      __syncthreads();
      command = told();
      found = look_into_list(command.filter, goal);
    }
    return found;
  }

  __device__ void look_into_bin(const Level& level, const Goal& goal, bool wants_all) {
    const int bin = first_bin_that_reaches(goal);
    if (thread == 0) {
      s.before = bin == 0 ? s.base : bin_at(bin - 1);
      Command out;
      if (level.by_logit) {
        out.is_whole = wants_all && s.reached.count <= uint32_t(kItems);
        out.filter.first_bin = out.is_whole ? 0 : bin;
        out.filter.last_bin = bin;
        if (out.is_whole) s.before = {};
      } else {
        out.filter.first = level.filter.first + (uint64_t(bin) << level.shift);
        const uint64_t width = (uint64_t{1} << level.shift) - 1;
        out.filter.last = min(level.filter.last, out.filter.first + width);
      }
      out.gathers = s.reached.count - s.before.count <= uint32_t(kItems);
      s.command = out;
    }
    __syncthreads();
  }

  __device__ uint64_t look_into_list(const Filter& filter, const Goal& goal) {
    gather(filter);
    if (!is_leader()) return kNoToken;
    sort_list();
    add_up_list();
    return s.list[first_that_reaches(upto_, goal)];
  }

  /// The leader's command, in all CTAs. A cluster.sync() lies between two of them.
  __device__ Command told() const {
    if (is_leader() && thread > 0 && thread < int(cluster.num_blocks())) {
      *cluster.map_shared_rank(&s.command, thread) = s.command;
    }
    cluster.sync();
    return s.command;
  }

  /// The tokens of the filter become a level of their own.
  __device__ void cut(Level& level) {
    if (level.by_logit) {
      uint64_t first = kNoToken, last = 0;
      for_each_token([&](float logit, int id) {
        const uint64_t token = token_of(logit, id);
        if (!takes(level.filter, logit, token)) return;
        first = min(first, token);
        last = max(last, token);
      });
      level.filter.first = smallest_of_cluster(first);
      level.filter.last = ~smallest_of_cluster(~last);
      level.by_logit = false;
    }
    const uint64_t width = level.filter.last - level.filter.first;
    level.shift = max(0, 64 - __clzll(int64_t(width)) - 10);
    static_assert(kItems == 1 << 10);
  }

  __device__ uint64_t smallest_of_cluster(uint64_t v) {
    const Extremes of_cta = over_cta({v, 0, 0});
    if (thread < int(cluster.num_blocks())) {
      cluster.map_shared_rank(s.of_cta, thread)[rank] = of_cta;
    }
    cluster.sync();
    for (int i = 0; i < int(cluster.num_blocks()); ++i) v = min(v, s.of_cta[i].best);
    cluster.sync();
    return v;
  }

  // --- the list ---------------------------------------------------------------------------------

  /// The tokens of a filter, at most kItems of them, in the leader's list.
  __device__ void gather(const Filter& filter) {
    if (is_leader() && thread == 0) s.list_size = 0;
    cluster.sync();
    Shared& leader = *of_leader(&s);
    for_each_token([&](float logit, int id) {
      const uint64_t token = token_of(logit, id);
      if (takes(filter, logit, token)) leader.list[atomicAdd(&leader.list_size, 1U)] = token;
    });
    cluster.sync();
  }

  /// Bitonic: ascending numbers, the likeliest first.
  __device__ void sort_list() {
    int size = 2;
    while (size < int(s.list_size)) size *= 2;
    for (int i = int(s.list_size) + thread; i < size; i += kNumThreads) s.list[i] = kNoToken;
#pragma unroll 1
    for (int run = 2; run <= size; run *= 2) {
#pragma unroll 1
      for (int distance = run / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (thread >= size / 2) continue;
        const int low = 2 * thread - (thread & (distance - 1)), high = low + distance;
        const uint64_t a = s.list[low], b = s.list[high];
        if ((a > b) == ((low & run) == 0)) s.list[low] = b, s.list[high] = a;
      }
    }
    __syncthreads();
  }

  __device__ void add_up_list() {
    for (int i = 0; i < 2; ++i) {
      const int at = 2 * thread + i;
      upto_[i] = at < int(s.list_size) ? tally_of(s.list[at]) : Tally{};
    }
    upto_[1] = upto_[0] + upto_[1];
    const Tally before = tally_before(upto_[1], s.of_warp) + s.before;
    for (Tally& t : upto_) t = before + t;
  }

  // --- the token --------------------------------------------------------------------------------

  __device__ bool wants(Stage stage, const SamplingRow& row) const {
    if (stage == Stage::top) return num_top(row) > 0;
    const bool is_few = row.top_k > 0 && row.top_k <= kItems;
    if (row.temperature == 0 || is_few != (stage == Stage::few)) return false;
    if (stage == Stage::count) return row.top_k > 0 && row.top_k < p.vocab;
    return stage != Stage::mass || row.top_p < 1;
  }
  __device__ int num_top(const SamplingRow& row) const {
    return p.args.logprobs == nullptr ? 0 : min(min(row.num_top, p.args.max_top), p.vocab);
  }

  __device__ Goal goal_of(Stage stage, const SamplingRow& row) {
    if (stage == Stage::top) return {uint32_t(num_top(row)), 0};
    if (stage == Stage::few || stage == Stage::count) {
      return {uint32_t(min(row.top_k, p.vocab)), 0};
    }
    if (!has_left_) keep(bin_at(kLastBin));  // all tokens
    return stage == Stage::mass ? goal_of_mass(row) : goal_of_token(row);
  }
  /// Leaves these tokens to choose from.
  __device__ void keep(const Tally& left) {
    if (thread == 0) s.left = left;
    __syncthreads();
  }
  __device__ Goal goal_of_mass(const SamplingRow& row) const {
    return {0, row.top_p * sum_of(s.left)};
  }
  /// More than U times the sum of the tokens left, and no more than that sum.
  __device__ Goal goal_of_token(const SamplingRow& row) const {
    const double sum = sum_of(s.left), target = uniform(row) * sum;
    return {0, fmin(__longlong_as_double(__double_as_longlong(target) + 1), sum)};
  }

  /// The list begins with the top_k likeliest, of which the last has just been reached.
  __device__ uint64_t chosen_from_list(const SamplingRow& row) {
    keep(s.reached);
    if (row.top_p < 1) {
      first_that_reaches(upto_, goal_of_mass(row));
      keep(s.reached);
    }
    return s.list[first_that_reaches(upto_, goal_of_token(row))];
  }

  static __device__ double uniform(const SamplingRow& row) {
    const auto at = uint64_t(row.position);
    const r123::Philox4x32::ctr_type counter = {{uint32_t(at), uint32_t(at >> 32), 0, 0}};
    const r123::Philox4x32::key_type key = {{uint32_t(row.seed), uint32_t(row.seed >> 32)}};
    const r123::Philox4x32::ctr_type words = r123::Philox4x32{}(counter, key);
    return double((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
  }

  // --- log-probabilities ------------------------------------------------------------------------

  __device__ double logprob(uint64_t token, double log_sum) const {
    if (has_nan_ || isinf(top_)) return NAN;
    return double(logit_of(token)) - double(top_) - log_sum;
  }

  __device__ void write_top(const SamplingRow& row, int row_index, double log_sum) const {
    for (int i = thread; i < num_top(row); i += kNumThreads) {
      const int64_t at = int64_t(row_index) * p.args.max_top + i;
      p.args.top_tokens[at] = id_of(s.list[i]);
      p.args.top_logprobs[at] = logprob(s.list[i], log_sum);
    }
  }

  /// log of the sum of e^(logit - largest); in the leader.
  __device__ double log_of_sum() {
    Tally mine;
    for_each_token([&](float logit, int) { mine = mine + Tally{weight_of(logit, 1), 0, 1}; });
    const Tally before = tally_before(mine, s.of_warp);
    if (thread == kNumThreads - 1) of_leader(&s)->tally_of_cta[rank] = before + mine;
    cluster.sync();
    if (!is_leader()) return 0;
    Tally all;
#pragma unroll 1
    for (int i = 0; i < int(cluster.num_blocks()); ++i) all = all + s.tally_of_cta[i];
    return log(sum_of(all) * 0x1p-63);
  }
};
#endif

__global__ void __launch_bounds__(kNumThreads, 2)
    sample_kernel(const __grid_constant__ SampleLaunch p, int slice_size) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char memory[];
  launch_dependents();
  wait_for_prior_grid();
  auto* const slice = reinterpret_cast<float*>(memory + sizeof(Shared));
  RowSampler(p, slice_size, *reinterpret_cast<Shared*>(memory), slice).run(int(blockIdx.y));
#endif
}

}  // namespace

void launch_sample(const SampleLaunch& p, CUstream_st* stream, LaunchOrder order) {
  if (!has_clusters()) throw std::runtime_error("sample: this GPU has no clusters (sm_90)");
  const int slice_size = (p.vocab + 4 * kCluster - 1) / (4 * kCluster) * 4;
  const auto shared_bytes = sizeof(Shared) + size_t(slice_size) * sizeof(float);
  LORATORY_CUDA_CHECK(cudaFuncSetAttribute(
      sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)));
  launch_kernel(sample_kernel,
                {.grid = dim3(kCluster, unsigned(p.num_rows)),
                 .block = kNumThreads,
                 .shared_bytes = shared_bytes,
                 .cluster = kCluster},
                stream, order, p, slice_size);
}

}  // namespace loratory::gpu
