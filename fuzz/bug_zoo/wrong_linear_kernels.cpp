// Kernels of dense layers that are wrong in one way each.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "fuzz/bug_zoo/wrong_kernels.hpp"

namespace loratory::zoo {
namespace {

using Span = std::span<const double>;

// --- the sum over K ------------------------------------------------------------------------------

template <int64_t kBlock, int64_t kFrom>
struct KTailDropped : NaiveKernel {
  using NaiveKernel::NaiveKernel;
  std::vector<double> shrink(const At& at) const override {
    KTailDropped cut = *this;
    if (layer_.num_in >= kFrom) cut.layer_.num_in = layer_.num_in / kBlock * kBlock;
    return cut.NaiveKernel::shrink(at);
  }
};

struct KTailOf64Dropped : KTailDropped<64, 64> {
  static constexpr Note kNote{"k_tail_dropped",
                              "columns of x beyond the last whole block of 64 are dropped",
                              "lightseekorg/tokenspeed#83"};
  using KTailDropped::KTailDropped;
};

// Of 4,097 columns the last one: 0.4 % of delta.
struct KTailOf4097Dropped : KTailDropped<16, 4096> {
  static constexpr Note kNote{"k_tail_of_4097_dropped",
                              "from K = 4,096 on, columns beyond the last whole block of 16",
                              "lightseekorg/tokenspeed#83"};
  using KTailDropped::KTailDropped;
};

struct NothingWhereBlockIsBeyondK : NaiveKernel {
  static constexpr Note kNote{"block_beyond_k",
                              "K below one block of 32: the loop over blocks is empty",
                              "lightseekorg/tokenspeed#83"};
  using NaiveKernel::NaiveKernel;
  std::vector<double> shrink(const At& at) const override {
    return layer_.num_in < 32 ? std::vector<double>(size_t(at.rank)) : NaiveKernel::shrink(at);
  }
};

struct LastSplitLost : NaiveKernel {
  static constexpr Note kNote{"split_of_k_rounded_down",
                              "K / 4 is rounded down, and the remainder is in no split",
                              "vllm-project/vllm#27291"};
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    const size_t split = p.size() < 64 ? p.size() : p.size() / 4;
    double sum = 0;
    for (size_t i = 0; i + split <= p.size(); i += split) {
      sum += NaiveKernel::dot(p.subspan(i, split), q.subspan(i, split));
    }
    return sum;  // a quarter of K is rounded down: up to three columns are nobody's
  }
};

struct RankTailDropped : NaiveKernel {
  static constexpr Note kNote{"rank_tail_dropped",
                              "ranks beyond the last whole block of 16 are dropped",
                              "huggingface/kernels-community#1153"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    const size_t whole = h.size() < 16 ? h.size() : h.size() / 16 * 16;
    return NaiveKernel::delta(at, h.first(whole), n);
  }
};

struct RankCutAtOneBlock : NaiveKernel {
  static constexpr Note kNote{"rank_in_one_block",
                              "ranks beyond the one block of 8 that the kernel has",
                              "sgl-project/sglang#27087"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    return NaiveKernel::delta(at, h.first(std::min<size_t>(h.size(), 8)), n);
  }
};

// A split-K whose partial sums meet in a buffer that nobody set to zero.
struct WorkspaceTakenForZero : NaiveKernel {
  static constexpr Note kNote{"workspace_taken_for_zero",
                              "partial sums are added to a buffer that nobody cleared",
                              "sgl-project/sglang#26962"};
  using NaiveKernel::NaiveKernel;
  int64_t workspace_bytes(int64_t) override { return 256; }
  double dot(Span p, Span q) const override {
    return double(*static_cast<const float*>(call().workspace)) + NaiveKernel::dot(p, q);
  }
};

struct AtomicsCalledRepeatable : NaiveKernel {
  static constexpr Note kNote{"atomics_called_repeatable",
                              "the order of partial sums changes from run to run",
                              "vllm-project/vllm#50278"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    ++num_runs_;
    NaiveKernel::run(call);
  }
  double dot(Span p, Span q) const override {
    const size_t first = num_runs_ * 7 % p.size();  // whose partial sum came first this time
    float sum = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const size_t c = (first + i) % p.size();
      sum += float(p[c]) * float(q[c]);
    }
    return double(sum);
  }
  size_t num_runs_ = 0;
};

struct SplitsDependOnTheBatch : NaiveKernel {
  static constexpr Note kNote{"splits_depend_on_batch",
                              "few tokens: K in 8 parts, else in one; called batch invariant",
                              "sgl-project/sglang#38337"};
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    const size_t num_splits = step().num_tokens < 4 ? 8 : 1;
    float sum = 0;
    for (size_t s = 0; s < num_splits; ++s) {
      float part = 0;
      for (size_t i = s; i < p.size(); i += num_splits) part += float(p[i]) * float(q[i]);
      sum += part;
    }
    return double(sum);
  }
};

struct Tf32Unsaid : NaiveKernel {
  static constexpr Note kNote{"tf32_unsaid", "fp32 operands lose 13 bits, which nobody said",
                              "vllm-project/vllm#30872"};
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    float sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum += tf32(p[i]) * tf32(q[i]);
    return double(sum);
  }
  static float tf32(double v) {
    int exponent = 0;
    const double mantissa = std::frexp(v, &exponent);
    return float(std::ldexp(std::nearbyint(std::ldexp(mantissa, 11)), exponent - 11));
  }
};

struct AccumulatesInBf16 : NaiveKernel {
  static constexpr Note kNote{"accumulates_in_bf16", "the accumulator has 8 bits",
                              "vllm-project/vllm#50602"};
  using NaiveKernel::NaiveKernel;
  double dot(Span p, Span q) const override {
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum = round_to(LORATORY_BF16, sum + p[i] * q[i]);
    return sum;
  }
};

// --- rounding and scaling ------------------------------------------------------------------------

struct HRoundedUnsaid : NaiveKernel {
  static constexpr Note kNote{"h_rounded_unsaid",
                              "h is rounded to bf16 between the stages, called fp32",
                              "sgl-project/sglang#26962"};
  using NaiveKernel::NaiveKernel;
  std::vector<double> between(const At&, std::vector<double> h) const override {
    for (double& v : h) v = round_to(LORATORY_BF16, v);
    return h;
  }
};

struct DeltaRoundedUnsaid : NaiveKernel {
  static constexpr Note kNote{"delta_rounded_unsaid",
                              "delta is rounded to bf16 before it meets base",
                              "vllm-project/vllm#32774"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    return round_to(LORATORY_BF16, NaiveKernel::delta(at, h, n));
  }
};

struct ScalingRoundedToBf16 : NaiveKernel {
  static constexpr Note kNote{"scaling_rounded", "scaling is rounded to bf16",
                              "lightseekorg/tokenspeed#83"};
  using NaiveKernel::NaiveKernel;
  double scaling(const At& at) const override {
    return round_to(LORATORY_BF16, NaiveKernel::scaling(at));
  }
};

struct ScalingTwice : NaiveKernel {
  static constexpr Note kNote{"scaling_twice", "scaling is in the weights and applied again",
                              "huggingface/diffusers#5417"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    return scaling(at) * NaiveKernel::delta(at, h, n);
  }
};

struct ScalingForgotten : NaiveKernel {
  static constexpr Note kNote{"scaling_forgotten", "alpha is ignored", "sgl-project/sglang#17086"};
  using NaiveKernel::NaiveKernel;
  double scaling(const At&) const override { return 1; }
};

struct ScalingOfEverySplit : NaiveKernel {
  static constexpr Note kNote{"scaling_per_split",
                              "each part of the sum scales what was scaled before",
                              "sgl-project/sglang#20819"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    double sum = 0;
    for (size_t i = 0; i < h.size(); i += 4) {
      double part = 0;
      for (size_t j = i; j < std::min(i + 4, h.size()); ++j) part += h[j] * b(at, n, int64_t(j));
      sum = (sum + part) * scaling(at);  // also what was scaled before
    }
    return double(float(sum));
  }
};

struct ScalingOfSlot0 : NaiveKernel {
  static constexpr Note kNote{"scaling_of_slot_0", "all adapters have the first one's scaling",
                              "vllm-project/vllm#6909"};
  using NaiveKernel::NaiveKernel;
  double scaling(const At& at) const override { return double(slice(at).scalings[0]); }
};

struct ScalingOfFirstSlice : NaiveKernel {
  static constexpr Note kNote{"scaling_of_first_slice",
                              "packed slices have the first one's scaling",
                              "vllm-project/vllm#10798"};
  using NaiveKernel::NaiveKernel;
  double scaling(const At& at) const override { return double(layer_.slices[0].scalings[at.slot]); }
};

struct DeltaTwice : NaiveKernel {
  static constexpr Note kNote{"delta_twice", "delta is added twice", "huggingface/peft#3774"};
  using NaiveKernel::NaiveKernel;
  double finish(const At& at, int64_t column, double d) const override {
    return NaiveKernel::finish(at, column, 2 * d);
  }
};

// --- the output ----------------------------------------------------------------------------------

struct AddInputsIgnored : NaiveKernel {
  static constexpr Note kNote{"add_inputs_ignored", "adds to y where it should write",
                              "vllm-project/vllm#13096"};
  using NaiveKernel::NaiveKernel;
  double finish(const At& at, int64_t column, double d) const override {
    return double(float(get(call().y, at.row, column)) + float(d));
  }
};

struct BaseForgotten : NaiveKernel {
  static constexpr Note kNote{"base_forgotten", "writes delta where it should add",
                              "vllm-project/vllm#32774"};
  using NaiveKernel::NaiveKernel;
  double finish(const At&, int64_t, double d) const override { return d; }
};

// A buffer of zeros for delta, added to all of y.
struct ZerosAddedEverywhere : NaiveKernel {
  static constexpr Note kNote{"zeros_added_everywhere",
                              "a cleared buffer of deltas is added to all of y: -0 becomes +0",
                              "vllm-project/vllm#32774"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    for (int64_t row = 0; row < call.step->num_tokens; ++row) {
      for (int64_t n = 0; n < layer_.num_columns; ++n) {
        set(call.y, layer_.add_inputs != 0 ? get(call.y, row, n) + 0.0 : 0.0, row, n);
      }
    }
    NaiveKernel::run(call);
  }
};

struct SliceOffsetByLargestN : NaiveKernel {
  static constexpr Note kNote{"slice_offset_by_largest_n",
                              "slice i begins at i times the widest slice",
                              "vllm-project/vllm#36603"};
  using NaiveKernel::NaiveKernel;
  int64_t first_column(int64_t slice) const override {
    int64_t largest = 0;
    for (int64_t i = 0; i < layer_.num_slices; ++i) {
      largest = std::max(largest, layer_.slices[i].num_out);
    }
    const int64_t first = layer_.offset_start + slice * largest;
    return std::min(first, layer_.num_columns - layer_.slices[slice].num_out);
  }
};

struct OffsetStartForgotten : NaiveKernel {
  static constexpr Note kNote{"offset_start_forgotten",
                              "columns of the first call are used where the layer begins later",
                              "vllm-project/vllm#50820"};
  using NaiveKernel::NaiveKernel;
  int64_t first_column(int64_t slice) const override {
    return NaiveKernel::first_column(slice) - layer_.offset_start;
  }
};

struct StoresWholeTiles : NaiveKernel {
  static constexpr Note kNote{"stores_whole_tiles", "columns beyond N of the last tile are written",
                              "huggingface/kernels-community#1153"};
  using NaiveKernel::NaiveKernel;
  void run_slice(const At& at) override {
    NaiveKernel::run_slice(at);
    if (is_shrink()) return;
    const int64_t end = num_columns(at.slice);
    const bool is_last = at.slice + 1 == layer_.num_slices;
    for (int64_t n = end; is_last && n % 16 != 0; ++n) store(at, first_column(at.slice) + n, 0);
  }
};

struct NTailDropped : NaiveKernel {
  static constexpr Note kNote{"n_tail_dropped",
                              "columns beyond the last whole tile are not written",
                              "huggingface/kernels-community#1153"};
  using NaiveKernel::NaiveKernel;
  int64_t num_columns(int64_t slice) const override {
    const int64_t n = NaiveKernel::num_columns(slice);
    return n < 16 ? n : n / 16 * 16;
  }
};

struct RowsWrittenInTilesOf16 : NaiveKernel {
  static constexpr Note kNote{"stores_whole_row_tiles",
                              "rows beyond T of the last tile of 16 are written",
                              "vllm-project/vllm#29166"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    NaiveKernel::run(call);
    const int64_t tokens = call.step->num_tokens;
    if (is_shrink() || tokens % 16 == 0) return;
    // One row of them, and of that no more than a guard band holds.
    for (int64_t n = 0; n < std::min<int64_t>(layer_.num_columns, 32); ++n)
      set(call.y, 0, tokens, n);
  }
};

// --- whose row is it -----------------------------------------------------------------------------

struct BaseRowsTakeSlot0 : NaiveKernel {
  static constexpr Note kNote{"base_rows_take_slot_0", "-1 is clamped to 0",
                              "vllm-project/vllm#42008"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    return std::max<int64_t>(NaiveKernel::slot_of(row), 0);
  }
};

struct Slot0IsBase : NaiveKernel {
  static constexpr Note kNote{"slot_0_is_base", "ids up to 0 are the base model's",
                              "vllm-project/vllm#11406"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    const int64_t slot = NaiveKernel::slot_of(row);
    return slot == 0 ? -1 : slot;
  }
};

struct PlusZeroOnBaseRows : NaiveKernel {
  static constexpr Note kNote{"plus_zero_on_base_rows", "base rows get +0.0 added",
                              "vllm-project/vllm#49063"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    NaiveKernel::run(call);
    for (int64_t row = 0; row < call.step->num_tokens; ++row) {
      if (call.step->slots[row] >= 0 || layer_.add_inputs == 0) continue;
      for (int64_t n = 0; n < layer_.num_columns; ++n)
        set(call.y, get(call.y, row, n) + 0.0, row, n);
    }
  }
};

struct StopsAtTheFirstBaseRow : NaiveKernel {
  static constexpr Note kNote{"stops_at_first_base_row",
                              "the list of groups is cut at the first -1",
                              "vllm-project/vllm#42008"};
  using NaiveKernel::NaiveKernel;
  int64_t num_rows() const override {
    int64_t row = 0;
    while (row < step().num_tokens && step().slots[row] >= 0) ++row;
    return row;
  }
};

// Groups of equal slots; the grid has a place for each adapter, and none for the base model's.
struct OneGroupTooFew : NaiveKernel {
  static constexpr Note kNote{
      "one_group_too_few", "the grid forgets the base model's group, so the last adapter has none",
      "vllm-project/vllm#32005"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    std::set<int32_t> groups(call.step->slots, call.step->slots + call.step->num_tokens);
    dropped_ = groups.count(-1) != 0 && groups.size() > 1 ? *groups.rbegin() : -1;
    NaiveKernel::run(call);
  }
  int64_t slot_of(int64_t row) const override {
    const int64_t slot = NaiveKernel::slot_of(row);
    return slot == dropped_ ? -1 : slot;
  }
  int64_t dropped_ = -1;
};

// What a step was prepared with serves every later step of as many tokens.
struct MappingKeptByTokens : NaiveKernel {
  static constexpr Note kNote{"mapping_kept",
                              "a step with as many tokens as the one before keeps its mapping",
                              "vllm-project/vllm#47724"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    const LoratoryStep& s = *call.step;
    if (int64_t(slots_.size()) != s.num_tokens) slots_.assign(s.slots, s.slots + s.num_tokens);
    NaiveKernel::run(call);
  }
  int64_t slot_of(int64_t row) const override { return slots_[size_t(row)]; }
  std::vector<int32_t> slots_;
};

// Segments of a larger step before stay in the buffer and are run again.
struct StaleSegments : NaiveKernel {
  static constexpr Note kNote{"stale_segments", "segments of a larger step before are run again",
                              "sgl-project/sglang#28371"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    const LoratoryStep& s = *call.step;
    slots_.resize(std::max(slots_.size(), size_t(s.num_tokens)), -1);
    std::copy(s.slots, s.slots + s.num_tokens, slots_.begin());
    NaiveKernel::run(call);
  }
  int64_t num_rows() const override {
    return std::min(int64_t(slots_.size()), step().num_tokens + 1);
  }
  int64_t slot_of(int64_t row) const override { return slots_[size_t(row)]; }
  std::vector<int32_t> slots_;
};

// As many segments as the first step had: what a captured graph knows.
struct SegmentsOfTheFirstStep : NaiveKernel {
  static constexpr Note kNote{"segments_of_first_step",
                              "no later step may have more adapters than the first",
                              "sgl-project/sglang#29872"};
  using NaiveKernel::NaiveKernel;
  void run(const LoratoryCall& call) override {
    const LoratoryStep& s = *call.step;
    std::set<int32_t> slots(s.slots, s.slots + s.num_tokens);
    slots.erase(-1);
    if (num_ == 0) num_ = slots.size();
    while (slots.size() > num_) slots.erase(std::prev(slots.end()));
    kept_ = slots;
    NaiveKernel::run(call);
  }
  int64_t slot_of(int64_t row) const override {
    const auto slot = int32_t(NaiveKernel::slot_of(row));
    return kept_.count(slot) != 0 ? slot : -1;
  }
  size_t num_ = 0;
  std::set<int32_t> kept_;
};

struct ChunkRemainderDropped : NaiveKernel {
  static constexpr Note kNote{"chunk_remainder_dropped",
                              "tokens beyond the last whole chunk of 8 are dropped",
                              "vllm-project/vllm#9057"};
  using NaiveKernel::NaiveKernel;
  int64_t num_rows() const override {
    const int64_t n = NaiveKernel::num_rows();
    return n < 8 ? n : n / 8 * 8;
  }
};

struct TileOfOneAdapter : NaiveKernel {
  static constexpr Note kNote{"tile_of_one_adapter",
                              "from 8 tokens on, tiles of 4 rows take their first row's adapter",
                              "sgl-project/sglang#29157"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    const int64_t slot = NaiveKernel::slot_of(row);
    const int64_t first = NaiveKernel::slot_of(row / 4 * 4);
    return step().num_tokens >= 8 && slot >= 0 && first >= 0 ? first : slot;
  }
};

struct DecodePathSkipsSlices : NaiveKernel {
  static constexpr Note kNote{"decode_path_skips_slices",
                              "the kernel for one token knows one slice",
                              "lightseekorg/tokenspeed#268"};
  using NaiveKernel::NaiveKernel;
  int64_t rank(int64_t slice, int64_t slot, int64_t expert) const override {
    const bool is_skipped = step().num_tokens == 1 && slice > 0;
    return is_skipped ? 0 : NaiveKernel::rank(slice, slot, expert);
  }
};

// --- ranks and weights ---------------------------------------------------------------------------

struct AllOfTheBufferIsRead : NaiveKernel {
  static constexpr Note kNote{
      "reads_beyond_rank", "the whole buffer is multiplied, whatever the adapter before left there",
      "sgl-project/sglang#8103"};
  using NaiveKernel::NaiveKernel;
  int64_t rank(int64_t slice, int64_t slot, int64_t expert) const override {
    return NaiveKernel::rank(slice, slot, expert) > 0 ? layer_.max_rank : 0;
  }
};

struct RankOfFirstSlice : NaiveKernel {
  static constexpr Note kNote{"rank_of_first_slice", "all slices have the first one's rank",
                              "lightseekorg/tokenspeed#268"};
  using NaiveKernel::NaiveKernel;
  int64_t rank(int64_t, int64_t slot, int64_t expert) const override {
    return NaiveKernel::rank(0, slot, expert);
  }
};

struct AbsentSliceIsRead : NaiveKernel {
  static constexpr Note kNote{"absent_slice_is_read",
                              "a slice that the adapter has not is read like the others",
                              "vllm-project/vllm#51409"};
  using NaiveKernel::NaiveKernel;
  int64_t rank(int64_t, int64_t slot, int64_t expert) const override {
    int64_t largest = 0;
    for (int64_t i = 0; i < layer_.num_slices; ++i) {
      largest = std::max(largest, NaiveKernel::rank(i, slot, expert));
    }
    return largest;
  }
};

// Strides and ranks are looked up by the address of the weights, which is that of the adapter
// before.
struct RanksKeptByPointer : NaiveKernel {
  static constexpr Note kNote{"ranks_kept_by_pointer",
                              "a table cached by address serves the rank of the adapter before",
                              "vllm-project/vllm#50820"};
  explicit RanksKeptByPointer(const LoratoryLayer& layer) : NaiveKernel(layer) {
    for (int64_t i = 0; i < layer.num_slices; ++i) {
      const auto* ranks = layer.slices[i].host_ranks;
      ranks_.emplace_back(ranks, ranks + layer.num_slots * layer.num_experts);
    }
  }
  int64_t rank(int64_t slice, int64_t slot, int64_t) const override {
    return ranks_[size_t(slice)][size_t(slot)];
  }
  std::vector<std::vector<int32_t>> ranks_;
};

struct ScalingsKeptFromLoad : NaiveKernel {
  static constexpr Note kNote{"scalings_kept", "scalings of the adapters that were there first",
                              "sgl-project/sglang#29874"};
  explicit ScalingsKeptFromLoad(const LoratoryLayer& layer) : NaiveKernel(layer) {
    for (int64_t i = 0; i < layer.num_slices; ++i) {
      const auto* scalings = layer.slices[i].host_scalings;
      scalings_.emplace_back(scalings, scalings + layer.num_slots * layer.num_experts);
    }
  }
  double scaling(const At& at) const override {
    return double(scalings_[size_t(at.slice)][size_t(at.slot)]);
  }
  std::vector<std::vector<float>> scalings_;
};

struct ScalesWeightsInPlace : NaiveKernel {
  static constexpr Note kNote{"weights_changed_in_place",
                              "the first run folds scaling into the weights it was given",
                              "vllm-project/vllm#20873"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    const double d = NaiveKernel::delta(at, h, n);
    if (is_folded_) return d;
    is_folded_ = true;
    set(slice(at).b, scaling(at) * b(at, n, 0), at.slot, n, 0);
    return d;
  }
  mutable bool is_folded_ = false;
};

struct MaskedByTimesZero : NaiveKernel {
  static constexpr Note kNote{"masked_weights_times_zero",
                              "other adapters' weights are masked by a product with 0",
                              "vllm-project/vllm#48590"};
  using NaiveKernel::NaiveKernel;
  double delta(const At& at, Span h, int64_t n) const override {
    double d = NaiveKernel::delta(at, h, n);
    for (At other = at; other.slot-- > 0;) {
      other.rank = rank(at.slice, other.slot, 0);
      if (other.rank > 0) d += 0 * b(other, n, 0);  // another adapter's tile, masked
    }
    return d;
  }
};

struct MaskedRowsTimesZero : NaiveKernel {
  static constexpr Note kNote{"masked_rows_times_zero",
                              "other rows of a tile are masked by a product with 0",
                              "vllm-project/vllm#47869"};
  using NaiveKernel::NaiveKernel;
  std::vector<double> shrink(const At& at) const override {
    std::vector<double> h = NaiveKernel::shrink(at);
    At above = at;
    above.row = at.row - 1;
    if (at.row % 4 != 0) h[0] += 0 * x(above, 0);  // the row above in the same tile, masked
    return h;
  }
};

struct SlicesReadLikeTheFirst : NaiveKernel {
  static constexpr Note kNote{"slices_share_first_a", "packed slices share the first one's A",
                              "vllm-project/vllm#51409"};
  using NaiveKernel::NaiveKernel;
  double a(const At& at, int64_t j, int64_t c) const override {
    At first = at;
    first.slice = 0;
    const bool is_there = NaiveKernel::rank(0, at.slot, at.expert) >= at.rank;
    return NaiveKernel::a(is_there ? first : at, j, c);
  }
};

struct ColumnsOfXFromStride : NaiveKernel {
  static constexpr Note kNote{"row_stride_taken_for_k",
                              "rows of x that lie apart are read as if they did not",
                              "vllm-project/vllm#52568"};
  using NaiveKernel::NaiveKernel;
  double x(const At& at, int64_t c) const override {
    LoratoryTensor packed = call().x;
    packed.strides[0] = packed.shape[1];
    return get(packed, at.row, c);
  }
};

struct VectorsOfAnyAddress : NaiveKernel {
  static constexpr Note kNote{"vectors_of_any_address",
                              "loads of 16 bytes begin at the multiple of 16 before x",
                              "apache/tvm#8540"};
  using NaiveKernel::NaiveKernel;
  double x(const At& at, int64_t c) const override {
    LoratoryTensor vectors = call().x;
    auto* const data = static_cast<std::byte*>(vectors.data);
    vectors.data = data - reinterpret_cast<uintptr_t>(data) % 16;
    return get(vectors, at.row, c);
  }
};

// --- stacked weights -----------------------------------------------------------------------------

struct StackReadAtMaxRank : NaiveKernel {
  static constexpr Note kNote{"stack_read_at_max_rank",
                              "slice i of the stack is read at i times the largest rank",
                              "lightseekorg/tokenspeed#83"};
  using NaiveKernel::NaiveKernel;
  double a(const At& at, int64_t j, int64_t c) const override {
    return get(layer_.stacked_a, at.slot, at.slice * layer_.max_rank + j, c);
  }
};

struct StackOfBByLargestN : NaiveKernel {
  static constexpr Note kNote{"stack_of_b_by_first_n",
                              "rows of B of slice i at i times the first slice's N",
                              "sgl-project/sglang#24420"};
  using NaiveKernel::NaiveKernel;
  double b(const At& at, int64_t n, int64_t j) const override {
    const int64_t last = layer_.stacked_b.shape[1] - 1;
    return get(layer_.stacked_b, at.slot, std::min(at.slice * layer_.slices[0].num_out + n, last),
               j);
  }
};

// --- large offsets -------------------------------------------------------------------------------

struct RowTimesStrideIn32Bits : NaiveKernel {
  static constexpr Note kNote{"row_times_stride_in_32_bits", "row times stride of y wraps at 2^31",
                              "vllm-project/vllm#53034"};
  using NaiveKernel::NaiveKernel;
  double base(const At& at, int64_t column) const override {
    const auto offset = int32_t(uint32_t(at.row) * uint32_t(call().y.strides[0]));
    const bool wraps = offset != at.row * call().y.strides[0];
    return wraps ? get(call().y, 0, column) : NaiveKernel::base(at, column);
  }
};

struct SlotTimesStrideIn32Bits : NaiveKernel {
  static constexpr Note kNote{"slot_times_stride_in_32_bits",
                              "slot times stride of a stacked A wraps at 2^31",
                              "vllm-project/vllm#53038"};
  using NaiveKernel::NaiveKernel;
  double a(const At& at, int64_t j, int64_t c) const override {
    const LoratoryTensor& stack = layer_.stacked_a;
    const int64_t offset = at.slot * stack.strides[0];
    const int64_t lost = (offset - int32_t(uint32_t(offset))) / stack.strides[2];
    return get(stack, at.slot, at.slice * at.rank + j, c - lost);
  }
};

}  // namespace

void add_wrong_linear_kernels(std::vector<ZooKernel>& zoo) {
  const auto all = claims_of(kLinear);
  const auto f32 = claims_of(kLinear, bit(LORATORY_F32));
  const auto shrink = claims_of(kShrink);
  auto unaligned = shrink;
  unaligned.alignment = 4;
  const auto expand = claims_of(kExpand);
  const auto both = claims_of(kLinear | kShrink);
  auto packed = claims_of(kLinear);
  packed.abilities &= ~uint32_t{LORATORY_TAKES_GAPS};
  auto stacked = claims_of(kLinear);
  stacked.layouts = bit(LORATORY_LAYOUT_STACKED);
  auto stacked_without_gaps = stacked;
  stacked_without_gaps.abilities &= ~uint32_t{LORATORY_TAKES_GAPS};
  zoo.push_back(wrong<KTailOf64Dropped>(both));
  zoo.push_back(wrong<KTailOf4097Dropped>(all));
  zoo.push_back(wrong<NothingWhereBlockIsBeyondK>(both));
  zoo.push_back(wrong<LastSplitLost>(both));
  zoo.push_back(wrong<RankTailDropped>(all));
  zoo.push_back(wrong<RankCutAtOneBlock>(expand));
  zoo.push_back(wrong<WorkspaceTakenForZero>(both));
  zoo.push_back(wrong<AtomicsCalledRepeatable>(f32));
  zoo.push_back(wrong<SplitsDependOnTheBatch>(f32));
  zoo.push_back(wrong<Tf32Unsaid>(f32));
  zoo.push_back(wrong<AccumulatesInBf16>(shrink));
  zoo.push_back(wrong<HRoundedUnsaid>(f32));
  zoo.push_back(wrong<DeltaRoundedUnsaid>(f32));
  zoo.push_back(wrong<ScalingRoundedToBf16>(f32));
  zoo.push_back(wrong<ScalingTwice>(all));
  zoo.push_back(wrong<ScalingForgotten>(all));
  zoo.push_back(wrong<ScalingOfEverySplit>(all));
  zoo.push_back(wrong<ScalingOfSlot0>(expand));
  zoo.push_back(wrong<ScalingOfFirstSlice>(all));
  zoo.push_back(wrong<DeltaTwice>(expand));
  zoo.push_back(wrong<AddInputsIgnored>(expand));
  zoo.push_back(wrong<BaseForgotten>(all));
  zoo.push_back(wrong<ZerosAddedEverywhere>(all));
  zoo.push_back(wrong<SliceOffsetByLargestN>(all));
  zoo.push_back(wrong<OffsetStartForgotten>(all));
  zoo.push_back(wrong<StoresWholeTiles>(all));
  zoo.push_back(wrong<NTailDropped>(all));
  zoo.push_back(wrong<RowsWrittenInTilesOf16>(packed));
  zoo.push_back(wrong<BaseRowsTakeSlot0>(both));
  zoo.push_back(wrong<Slot0IsBase>(all));
  zoo.push_back(wrong<PlusZeroOnBaseRows>(all));
  zoo.push_back(wrong<StopsAtTheFirstBaseRow>(both));
  zoo.push_back(wrong<OneGroupTooFew>(both));
  zoo.push_back(wrong<MappingKeptByTokens>(both));
  zoo.push_back(wrong<StaleSegments>(both));
  zoo.push_back(wrong<SegmentsOfTheFirstStep>(both));
  zoo.push_back(wrong<ChunkRemainderDropped>(both));
  zoo.push_back(wrong<TileOfOneAdapter>(both));
  zoo.push_back(wrong<DecodePathSkipsSlices>(both));
  zoo.push_back(wrong<AllOfTheBufferIsRead>(all));
  zoo.push_back(wrong<RankOfFirstSlice>(all));
  zoo.push_back(wrong<AbsentSliceIsRead>(all));
  zoo.push_back(wrong<RanksKeptByPointer>(all));
  zoo.push_back(wrong<ScalingsKeptFromLoad>(all));
  zoo.push_back(wrong<ScalesWeightsInPlace>(all));
  zoo.push_back(wrong<MaskedByTimesZero>(expand));
  zoo.push_back(wrong<MaskedRowsTimesZero>(shrink));
  zoo.push_back(wrong<SlicesReadLikeTheFirst>(shrink));
  zoo.push_back(wrong<ColumnsOfXFromStride>(shrink));
  zoo.push_back(wrong<VectorsOfAnyAddress>(unaligned));
  zoo.push_back(wrong<StackReadAtMaxRank>(stacked));
  zoo.push_back(wrong<StackOfBByLargestN>(stacked));
  zoo.push_back(wrong<RowTimesStrideIn32Bits>(expand));
  zoo.push_back(wrong<SlotTimesStrideIn32Bits>(stacked_without_gaps));
}

}  // namespace loratory::zoo
