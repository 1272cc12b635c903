#include "scheduler_sim/cost/lora_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reference/base/integers.hpp"
#include "scheduler_sim/cost/lora_grid.hpp"

namespace loratory::sim {
namespace {

// Microseconds, and nanoseconds a block: as scripts/fit_lora_kernels.py prints them.
struct ShrinkCost {
  double fixed, latency, iteration, block, block_iteration, idle;
};
// A block idles for an empty slot, beyond the tokens of an adapter that has some, or, on a tile
// with tokens, beyond the columns of its slice, which are fewer than the widest one's.
struct ExpandCost {
  double fixed, latency, rank, block, block_rank, block_row, idle, beyond_tokens, beyond_columns;
};

// [several slices][fewer than 128 tokens]. vLLM 0.33.0 has the tiles of 0.8.5.
constexpr ShrinkCost kShrink[2][2] = {
    {{3.38, 0.0, 0.602, 0.0, 0.749, 0.486}, {2.37, 1.64, 1.53, 1.76, 3.35, 0.566}},
    {{2.05, 0.0, 0.894, 1.79, 0.655, 0.539}, {3.17, 2.22, 0.509, 10.7, 1.34, 0.866}},
};
// [several slices]
constexpr ExpandCost kExpand08[2] = {
    {2.29, 0.622, 0.54, 5.07, 2.23, 0.0185, 0.606, 0.606, 0.0},
    {1.86, 3.88, 0.784, 15.4, 3.52, 0.0221, 0.813, 1.25, 7.83},
};
constexpr ExpandCost kExpand[2] = {
    {2.37, 0.0, 0.983, 7.53, 0.0, 0.0675, 0.909, 0.909, 0.0},
    {5.26, 2.5, 0.0, 14.7, 0.0, 0.0422, 1.65, 1.65, 1.65},
};

// Microseconds: fixed; by rank / 64, K / 4096, slices - 1; by MB of weights, of x and of y, GFLOP,
// thousands of tiles.
struct PairCost {
  double fixed, latency_rank, latency_k, latency_slice, weights, x, y, flops, tiles;
};
constexpr PairCost kOursDecode{2.72, 0.611, 0.0, 0.678, 0.229, 1.19, 0.0254, 7.67, 0.0316};
constexpr PairCost kOursPrefill{2.21, 4.17, 2.42, 2.02, 0.247, 0.164, 0.222, 3.01, 0.0862};
// Ours of 8-bit weights: widening takes instructions. One launch and prefill take so many times
// what the formulas say of half the bytes.
constexpr PairCost kOursDecodeOf8Bits{3.16, 0.442, 0.0, 0.241, 0.318, 0.632, 0.0254, 6.56, 0.0368};
constexpr double kOf8BitsInOneLaunch = 1.13, kOf8BitsInPrefill = 1.29;
constexpr PairCost kSglang{14.0, 0, 0.00524, 0, 0.442, 0.918, 0.918, 36.2, 0};

// Ours of few tokens and small ranks, which take one launch (choose_variant.cpp). Microseconds:
// fixed; by K / 4096, columns / 4096, token.
struct OneLaunchCost {
  double fixed, k, columns, token;
};
constexpr OneLaunchCost kOursInOneLaunch{1.65, 0.411, 0.0395, 0.0506};
constexpr double kMostRanksOfOneLaunch = 16;
constexpr int64_t kMostTokensOfOneLaunch = 8;
// Of all adapters.
constexpr double kMostColumnsOfOneLaunch = 90'000, kMostColumnsOfOneLaunchOf8Bits = 40'000;
constexpr int64_t kMostDecodeTokens = 256;  // of the rows that kOursDecode was fitted to

// vLLM 0.8.5's _lora_shrink and _lora_expand and the fill between: Python's checks and Triton's
// launcher (bench/results/lora-slots-h100-2026-11-23.json, host: 143 to 151 us a pair), and as
// Inductor's code calls them, through PyTorch's dispatcher (engine-host-h100-2026-11-23.json,
// launches: what four pairs add to a layer).
constexpr double kVllmPairLaunchNs = 147e3, kVllm08PairLaunchNs = 184e3;
constexpr double kOurKernels = 2, kSglangKernels = 2;

// std::ceil without a call, for what is below 2^63.
double ceil_of(double x) {
  const auto whole = double(int64_t(x));
  return whole < x ? whole + 1 : whole;
}

double soft_max(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

double shrink_ns(const LoraGeometry& layer, const LoraBatch& batch, const LoraScale& scale) {
  const bool small = batch.grid_tokens < LoraTiles::kSmallBatch;
  const ShrinkCost& cost = kShrink[layer.slices > 1][small];
  const auto splits = double(LoraTiles::splits(batch.grid_tokens));
  const double iterations = ceil_of(double(layer.in) / (splits * (small ? 256 : 32)));
  const double per_tile =
      splits * double(layer.slices) * ceil_of(batch.rank / LoraTiles::kShrinkRanks);
  const double active = per_tile * batch.row_tiles(LoraTiles::kShrinkRows);
  const auto row_tiles = double(ceil_div(batch.grid_tokens, LoraTiles::kShrinkRows));
  const double idle = std::max(0.0, per_tile * double(batch.grid_slots) * row_tiles - active);
  const double bytes = batch.adapters() * batch.rank * double(layer.slices * layer.in);
  const double busy =
      std::max(active * (cost.block + cost.block_iteration * iterations) * scale.blocks,
               bytes * batch.weight_bytes_each * scale.byte_ns);
  return 1e3 * cost.fixed + soft_max(1e3 * (cost.latency + cost.iteration * iterations),
                                     busy + idle * cost.idle * scale.blocks);
}

template <int64_t kTile, int64_t kTileRanks>
double expand_ns(const ExpandCost& cost, const LoraGeometry& layer, const LoraBatch& batch,
                 const LoraScale& scale) {
  static_assert(kTile == 64 || kTile == 128, "the tiles that LoraGeometry counts");
  const double column_tiles = kTile == 64 ? layer.tiles_64 : layer.tiles_128;
  const double rows = batch.row_tiles(LoraTiles::kExpandRows);
  const double active = column_tiles * rows;
  const auto row_tiles = double(ceil_div(batch.grid_tokens, LoraTiles::kExpandRows));
  const auto columns = double(layer.slices * ceil_div(layer.widest, kTile));
  const double adapters = std::min(batch.adapters(), double(batch.grid_slots));
  const double idle_ns = columns * (double(batch.grid_slots) - adapters) * row_tiles * cost.idle +
                         columns * std::max(0.0, adapters * row_tiles - rows) * cost.beyond_tokens +
                         (columns - column_tiles) * rows * cost.beyond_columns;
  const double ranks = ceil_of(batch.rank / double(kTileRanks));
  const double tokens_per_tile = rows > 0 ? batch.tokens() / rows : 0;
  const double block = cost.block + cost.block_rank * ranks + cost.block_row * tokens_per_tile;
  const double bytes = batch.adapters() * batch.rank * double(layer.columns);
  const double busy =
      std::max(active * block * scale.blocks, bytes * batch.weight_bytes_each * scale.byte_ns);
  return 1e3 * cost.fixed +
         soft_max(1e3 * (cost.latency + cost.rank * ranks), busy + idle_ns * scale.blocks);
}

double triton_pair_ns(LoraKernels kernels, const LoraGeometry& layer, const LoraBatch& batch,
                      const LoraScale& scale) {
  const bool several = layer.slices > 1;
  const double shrink = layer.in > 0 ? shrink_ns(layer, batch, scale) : 0;
  // lora/ops/triton_ops/lora_expand.py of 0.8.5; utils.py, get_lora_op_configs, of 0.33.0.
  if (kernels == LoraKernels::vllm_08) {
    const ExpandCost& cost = kExpand08[several];
    return shrink + expand_ns<LoraTiles::kExpandColumns, 16>(cost, layer, batch, scale);
  }
  return shrink + (several ? expand_ns<64, 32>(kExpand[1], layer, batch, scale)
                           : expand_ns<128, 32>(kExpand[0], layer, batch, scale));
}

double pair_ns(const PairCost& cost, const LoraGeometry& layer, const LoraBatch& batch,
               const LoraScale& scale) {
  const double numbers = double(layer.slices * layer.in + layer.columns);
  const double ranks = std::max(16.0, batch.rank);
  const double weights = 1e-6 * batch.adapters() * ranks * numbers * batch.weight_bytes_each;
  const double x = 2e-6 * batch.tokens() * double(layer.in);
  const double y = 4e-6 * batch.tokens() * double(layer.columns);  // read and written
  const double flops = 2e-9 * batch.tokens() * ranks * numbers;
  const double tiles = layer.tiles_64 * (1e-3 * batch.row_tiles(16));
  const double bytes = weights * cost.weights + x * cost.x + y * cost.y;
  const double work =
      bytes * scale.bytes + (flops * cost.flops + tiles * cost.tiles) * scale.blocks;
  const double latency = cost.latency_rank * ranks / 64 + cost.latency_k * double(layer.in) / 4096 +
                         cost.latency_slice * double(layer.slices - 1);
  return 1e3 * (cost.fixed + soft_max(latency, work));
}

// So many tokens of a batch, which may be of all its adapters.
LoraBatch part_of(LoraBatch batch, int64_t tokens) {
  const double share = std::min(1.0, double(tokens) / batch.tokens());
  batch.decode_tokens *= share;
  batch.prefill_tokens *= share;
  batch.decode_adapters = std::min(batch.decode_adapters, batch.decode_tokens);
  batch.prefill_adapters = std::min(batch.prefill_adapters, batch.prefill_tokens);
  return batch;
}

double one_launch_ns(const LoraGeometry& layer, double tokens) {
  const OneLaunchCost& cost = kOursInOneLaunch;
  return 1e3 * (cost.fixed + cost.k * double(layer.in) / 4096 +
                cost.columns * double(layer.columns) / 4096 + cost.token * tokens);
}

double two_launches_ns(const LoraGeometry& layer, const LoraBatch& batch, const LoraScale& scale) {
  const bool has_8_bits = batch.weight_bytes_each == 1;
  const PairCost& decode = has_8_bits ? kOursDecodeOf8Bits : kOursDecode;
  const double ns = pair_ns(decode, layer, part_of(batch, kMostDecodeTokens), scale);
  if (batch.tokens() <= double(kMostDecodeTokens)) return ns;
  const double over_16_bits = has_8_bits ? kOf8BitsInPrefill : 1;
  return std::max(ns, over_16_bits * pair_ns(kOursPrefill, layer, batch, scale));
}

// Never less with more tokens, at 8 and at 256 too.
double our_pair_ns(const LoraGeometry& layer, const LoraBatch& batch, const LoraScale& scale) {
  const bool has_8_bits = batch.weight_bytes_each == 1;
  const double tokens = batch.tokens(), few = std::min(tokens, double(kMostTokensOfOneLaunch));
  double ns = 0;
  if (layer.in > 0 && batch.rank <= kMostRanksOfOneLaunch) {
    ns = (has_8_bits ? kOf8BitsInOneLaunch : 1) * one_launch_ns(layer, few);
    const double columns = batch.adapters() * double(layer.columns);
    const double most = has_8_bits ? kMostColumnsOfOneLaunchOf8Bits : kMostColumnsOfOneLaunch;
    if (tokens <= few && columns <= most) return ns;
  }
  return std::max(ns, two_launches_ns(layer, batch, scale));
}

}  // namespace

LoraGeometry::LoraGeometry(const LoraLayer& layer)
    : in(layer.in),
      slices(std::ssize(layer.widths)),
      columns(0),
      tiles_64(0),
      tiles_128(0),
      widest(0) {
  for (const int64_t width : layer.widths) {
    columns += width;
    tiles_64 += double(ceil_div<int64_t>(width, 64));
    tiles_128 += double(ceil_div<int64_t>(width, 128));
    widest = std::max(widest, width);
  }
}

double LoraBatch::row_tiles(double rows) const {
  return std::max(decode_adapters, decode_tokens / rows) +
         std::max(prefill_adapters, prefill_tokens / rows);
}

double lora_pair_ns(LoraKernels kernels, const LoraGeometry& layer, const LoraBatch& batch,
                    const LoraScale& scale) {
  switch (kernels) {
    case LoraKernels::vllm_08:
    case LoraKernels::vllm:
      return triton_pair_ns(kernels, layer, batch, scale);
    case LoraKernels::sglang:
      return pair_ns(kSglang, layer, batch, scale);
    case LoraKernels::loratory:
      break;
  }
  return our_pair_ns(layer, batch, scale);
}

double idle_shrink_block_ns(bool several_slices, bool small_batch) {
  return kShrink[several_slices][small_batch].idle;
}

double idle_expand_block_ns(bool several_slices) { return kExpand08[several_slices].idle; }

double lora_pair_launch_ns(LoraKernels kernels, double kernel_launch_ns) {
  if (kernels == LoraKernels::vllm_08) return kVllm08PairLaunchNs;
  if (kernels == LoraKernels::vllm) return kVllmPairLaunchNs;
  return kernel_launch_ns * (kernels == LoraKernels::sglang ? kSglangKernels : kOurKernels);
}

}  // namespace loratory::sim
