#include "tests/gpu/support/attention_batch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "fuzz/support/lora_case.hpp"
#include "reference/numerics/error_bound.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::Tensor;

namespace {

/// Numbers that a case has many of.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
float real_of(uint64_t bits) { return float(int64_t(bits % 511) - 255) / 128; }

std::vector<float> reals(uint64_t seed, int64_t count, float factor) {
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = factor * real_of(mixed(seed + i));
  return out;
}

/// Keys are 0 but for one position of each kv head, whose score is large for every query.
void make_one_hot(Sequences& s, size_t i) {
  std::ranges::fill(s.q[i], 4.0F);
  std::ranges::fill(s.k[i], 0.0F);
  // Position 0, which every token sees.
  std::fill_n(s.k[i].begin(), s.shape.kv_heads * s.shape.head_dim, 64.0F);
}

/// A tensor of NaN.
Tensor poisoned(Dtype dtype, int64_t rows, int64_t columns, int64_t stride) {
  Tensor out(dtype, {rows, columns}, {stride, 1});
  const uint32_t nan = reference::encode(dtype, std::nan(""));
  const size_t size = size_bytes(dtype);
  for (size_t at = 0; at < out.bytes().size(); at += size) {
    for (size_t i = 0; i < size; ++i) out.bytes()[at + i] = std::byte(nan >> 8 * i);
  }
  return out;
}

/// Writes numbers that the dtype holds exactly.
void put(Tensor& t, int64_t row, std::span<const float> numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) t.set(double{numbers[i]}, row, int64_t(i));
}

std::span<const float> row_of(const std::vector<float>& numbers, int64_t row, int64_t columns) {
  return std::span(numbers).subspan(size_t(row * columns), size_t(columns));
}

template <typename T, size_t n>
T one_of(const Trial& trial, uint64_t index, const T (&values)[n]) {
  return values[trial.pick(index, int64_t(n))];
}

}  // namespace

void Sequences::draw() {
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t keys = int64_t{lengths[i]} * shape.kv_heads * shape.head_dim;
    const auto seed_of = [&](uint64_t which) { return mixed(seed * 1000 + 3 * i + which) >> 8; };
    const float factor = fill == AttentionFill::peaked ? 8 : fill == AttentionFill::uniform ? 0 : 1;
    q.push_back(reals(seed_of(0), keys * group(), factor));
    k.push_back(reals(seed_of(1), keys, 1));
    v.push_back(reals(seed_of(2), keys, 1));
    if (fill == AttentionFill::one_hot) make_one_hot(*this, i);
    if (fill != AttentionFill::uniform) continue;
    for (float& number : v[i]) number = std::round(number * 4);
  }
}

AttentionBatch::AttentionBatch(const Sequences& sequences, std::vector<Chunk> chunks,
                               const BatchLayout& layout)
    : sequences_(sequences), chunks_(std::move(chunks)), layout_(layout), plan_(make_plan()) {
  make_tables();
  make_tensors();
}

AttentionPlan AttentionBatch::make_plan() {
  row_starts_ = {0};
  max_blocks_ = std::max(1, (layout_.max_context + layout_.block_size - 1) / layout_.block_size);
  for (size_t row = 0; row < chunks_.size(); ++row) {
    const Chunk& c = chunks_[row];
    const int32_t count = c.sequence < 0 ? 1 : c.count;
    contexts_.push_back(c.sequence < 0 ? 0 : c.first + c.count);
    row_starts_.push_back(row_starts_.back() + count);
    token_rows_.insert(token_rows_.end(), size_t(count), c.sequence < 0 ? -1 : int32_t(row));
    max_blocks_ =
        std::max(max_blocks_, (contexts_.back() + layout_.block_size - 1) / layout_.block_size);
    most_tokens_ = std::max(most_tokens_, count);
  }
  token_rows_.insert(token_rows_.end(), size_t(layout_.num_padding), -1);
  AttentionShape shape = sequences_.shape;
  shape.block_size = layout_.block_size;
  return {
      shape,
      {.max_tokens = std::max<int64_t>(1, int64_t(token_rows_.size())),
       .max_rows = std::max(1, int32_t(chunks_.size())),
       .max_context = std::max({1, layout_.max_context, *std::ranges::max_element(contexts_)})}};
}

/// Twice as many blocks as the rows need, in an order of the seed's.
std::vector<int32_t> AttentionBatch::shuffled_blocks() const {
  std::vector<int32_t> blocks(2 * size_t(max_blocks_) * chunks_.size() + 1);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (size_t i = blocks.size(); i-- > 1;) {
    std::swap(blocks[i], blocks[reference::random_bits(layout_.seed, 1, i) % (i + 1)]);
  }
  return blocks;
}

void AttentionBatch::make_tables() {
  const std::vector<int32_t> blocks = shuffled_blocks();
  tables_.assign(chunks_.size() * size_t(max_blocks_), -1);  // what no row owns is no block
  for (size_t row = 0; row < chunks_.size(); ++row) {
    for (int32_t i = 0; i * layout_.block_size < contexts_[row]; ++i) {
      const size_t at = row * size_t(max_blocks_) + size_t(i);
      tables_[at] = blocks[at];
    }
  }
}

void AttentionBatch::make_tensors() {
  const AttentionShape& s = sequences_.shape;
  const int64_t columns = int64_t{s.num_heads} * s.head_dim, block = layout_.block_size;
  const auto num_tokens = int64_t(token_rows_.size());
  Tensor q = poisoned(s.dtype, num_tokens, columns, columns + layout_.q_gap);
  const int64_t num_blocks = 2 * max_blocks_ * int64_t(chunks_.size()) + 1;
  Tensor k = poisoned(s.dtype, num_blocks * s.kv_heads * block, s.head_dim, s.head_dim);
  Tensor v = k;
  for (size_t row = 0; row < chunks_.size(); ++row) {
    const Chunk& c = chunks_[row];
    if (c.sequence < 0) continue;
    const auto sequence = size_t(c.sequence);
    for (int32_t i = 0; i < c.count; ++i) {
      put(q, row_starts_[row] + i, row_of(sequences_.q[sequence], c.first + i, columns));
    }
    for (int32_t p = 0; p < contexts_[row]; ++p) {
      const int64_t at = tables_[row * size_t(max_blocks_) + size_t(p / block)];
      for (int32_t head = 0; head < s.kv_heads; ++head) {
        const int64_t to = (at * s.kv_heads + head) * block + p % block;
        const int64_t from = int64_t{p} * s.kv_heads + head;
        put(k, to, row_of(sequences_.k[sequence], from, s.head_dim));
        put(v, to, row_of(sequences_.v[sequence], from, s.head_dim));
      }
    }
  }
  tensors_ = {std::move(q), poisoned(s.dtype, num_tokens, columns, columns), std::move(k),
              std::move(v)};
}

const std::vector<int32_t>& AttentionBatch::array(Array which) const {
  const std::vector<int32_t>* const all[] = {&row_starts_, &contexts_, &token_rows_, &tables_};
  return *all[which];
}

BatchView AttentionBatch::batch(const int32_t* const (&arrays)[kNumArrays]) const {
  return {.num_tokens = int32_t(token_rows_.size()),
          .num_rows = int32_t(chunks_.size()),
          .token_rows = arrays[kTokenRows],
          .row_starts = arrays[kRowStarts],
          .contexts = arrays[kContexts],
          .block_tables = arrays[kTables],
          .max_blocks = max_blocks_,
          .block_size = layout_.block_size};
}

AttentionTensors AttentionBatch::tensors(const DeviceView (&views)[kNumTensors]) const {
  const AttentionShape& s = sequences_.shape;
  return {.q = views[kQuery],
          .out = views[kOut],
          .kv = {.dtype = s.dtype,
                 .k = views[kKeys].data,
                 .v = views[kValues].data,
                 .num_blocks = tensor(kKeys).shape()[0] / s.kv_heads / layout_.block_size,
                 .kv_heads = s.kv_heads,
                 .block_size = layout_.block_size,
                 .head_dim = s.head_dim}};
}

double AttentionBatch::ratio_of(const Tensor& out, size_t chunk, int32_t token,
                                int32_t head) const {
  const Sequences& s = sequences_;
  const Chunk& c = chunks_[chunk];
  const auto sequence = size_t(c.sequence);
  const int64_t d = s.shape.head_dim, position = c.first + token;
  std::vector<float> keys, values;
  for (int64_t p = 0; p <= position; ++p) {
    const int64_t at = p * s.shape.kv_heads + head / s.group();
    const auto key = row_of(s.k[sequence], at, d), value = row_of(s.v[sequence], at, d);
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
  }
  const reference::AttentionOracle oracle = reference::attention_oracle(
      row_of(s.q[sequence], position * s.shape.num_heads + head, d), keys, values, s.shape.scale,
      arithmetic_of(path(), s.shape.dtype));
  double worst = 0;
  for (int64_t i = 0; i < d; ++i) {
    const double got = out.get(first_token(chunk) + token, head * d + i);
    worst = std::max(worst, reference::error_over(got, oracle.exact[size_t(i)],
                                                  oracle.bound[size_t(i)], s.shape.dtype));
  }
  return worst;
}

std::vector<std::byte> bits_of(const Tensor& out, int64_t token) {
  const auto bytes = int64_t(size_bytes(out.dtype()));
  const auto begin = out.bytes().begin() + token * out.strides()[0] * bytes;
  return {begin, begin + out.shape()[1] * bytes};
}

int64_t padding_with_numbers(const AttentionBatch& batch, const Tensor& out) {
  for (int64_t token = 0; token < out.shape()[0]; ++token) {
    if (!batch.is_padding(size_t(token))) continue;
    const auto bits = bits_of(out, token);
    if (std::ranges::any_of(bits, [](std::byte b) { return b != std::byte{0}; })) return token;
  }
  return -1;
}

reference::AttentionArithmetic arithmetic_of(AttentionPath path, Dtype dtype) {
  if (path == AttentionPath::plain) return {.out = dtype};
  return {.weights = dtype,
          .out = dtype,
          .unit = 0x1p-22,
          .tile_keys = kAttentionTileKeys,
          .piece_keys = kPieceKeys};
}

double judge(const Trial& trial, const AttentionBatch& batch, const Tensor& out,
             int64_t num_judged) {
  const AttentionShape& shape = batch.sequences().shape;
  std::vector<std::array<int32_t, 3>> picked;
  for (int64_t i = 0; i < num_judged; ++i) {
    const auto index = uint64_t(1000 + 3 * i);
    const auto chunk = int32_t(trial.pick(index, int64_t(batch.chunks().size())));
    const Chunk& c = batch.chunks()[size_t(chunk)];
    if (c.sequence < 0) continue;
    // The last token of a chunk as often as all others.
    const auto token = int32_t(i % 2 == 0 ? c.count - 1 : trial.pick(index + 1, c.count));
    picked.push_back({chunk, token, int32_t(trial.pick(index + 2, shape.num_heads))});
  }
  std::vector<double> ratios(picked.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto [chunk, token, head] = picked[i];
    ratios[i] = batch.ratio_of(out, size_t(chunk), token, head);
  }
  double worst = 0;
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto [chunk, token, head] = picked[i];
    EXPECT_LE(ratios[i], 1) << "row " << chunk << ", token " << token << ", head " << head;
    worst = std::max(worst, ratios[i]);
    trial.count(shape.head_dim, ratios[i]);
  }
  return worst;
}

namespace {

/// The mean of the values up to a position, as an exact sum gives it.
double mean(const Sequences& s, const Chunk& c, int32_t token, int64_t kv_head, int64_t column) {
  const int64_t d = s.shape.head_dim;
  const int32_t count = c.first + token + 1;
  float sum = 0;
  for (int64_t p = 0; p < count; ++p) {
    sum += s.v[size_t(c.sequence)][size_t((p * s.shape.kv_heads + kv_head) * d + column)];
  }
  return round_to(s.shape.dtype, double{sum * (1.0F / float(count))});
}

}  // namespace

void expect_exact(const Trial& trial, const AttentionBatch& batch, const Tensor& out) {
  const Sequences& s = batch.sequences();
  for (size_t row = 0; row < batch.chunks().size(); ++row) {
    const Chunk& c = batch.chunks()[row];
    for (int64_t n = 0; c.sequence >= 0 && n < out.shape()[1]; ++n) {
      const int32_t token = int32_t(trial.pick(uint64_t(2000 + n), c.count));
      const int64_t head = n / s.shape.head_dim / s.group(), column = n % s.shape.head_dim;
      const double expected =
          s.fill == AttentionFill::uniform
              ? mean(s, c, token, head, column)
              : double{s.v[size_t(c.sequence)][size_t(head * s.shape.head_dim + column)]};
      ASSERT_EQ(out.get(batch.first_token(row) + token, n), expected)
          << "row " << row << ", token " << token << ", column " << n;
      trial.count(1);
    }
  }
}

void expect_bits_of(const Trial& trial, const AttentionBatch& batch, const Tensor& out,
                    const AttentionBatch& all, const Tensor& expected) {
  for (size_t row = 0; row < batch.chunks().size(); ++row) {
    const Chunk& c = batch.chunks()[row];
    for (int32_t i = 0; c.sequence >= 0 && i < c.count; ++i) {
      const int64_t in_whole = all.first_token(size_t(c.sequence)) + c.first + i;
      ASSERT_EQ(bits_of(out, batch.first_token(row) + i), bits_of(expected, in_whole))
          << "sequence " << c.sequence << ", position " << c.first + i << ", in a chunk of "
          << c.count;
      trial.count(out.shape()[1]);
    }
  }
}

AttentionShape tensor_core_shape(const Trial& trial) {
  constexpr int32_t kGroups[] = {1, 2, 3, 4, 4, 5, 7, 8, 16};
  const int32_t group = one_of(trial, 1, kGroups), kv_heads = int32_t(1 + trial.pick(2, 3));
  const int32_t head_dim = trial.pick(3, 2) == 0 ? 64 : 128;
  trial.classify(head_dim == 64, "head_dim 64");
  trial.classify(128 % group != 0, "groups that tiles cut");
  trial.classify(group > 8, "more than 8 heads for a kv head");
  return {.dtype = trial.pick(4, 2) == 0 ? Dtype::bf16 : Dtype::f16,
          .num_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(float(head_dim))};
}

AttentionShape plain_shape(const Trial& trial) {
  constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::f16};
  constexpr int32_t kHeadDims[] = {1, 8, 20, 32, 96, 130};
  const int32_t group = int32_t(1 + trial.pick(1, 4)), kv_heads = int32_t(1 + trial.pick(2, 2));
  return {.dtype = one_of(trial, 3, kDtypes),
          .num_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = one_of(trial, 4, kHeadDims),
          .scale = 0.3F};
}

Sequences sequences_of(const Trial& trial, const AttentionShape& shape, AttentionFill fill,
                       const SequenceLimits& limits) {
  constexpr int32_t kLengths[] = {1, 2, 16, 63, 64, 65, 128, 200, 255, 256, 257, 320, 511, 513};
  Sequences out{.shape = shape, .fill = fill, .seed = trial.seed()};
  const int64_t per_token = int64_t{shape.num_heads} * shape.head_dim;
  int64_t left = std::max<int64_t>(1, limits.num_queries / per_token);
  const int64_t most = std::min(left, limits.longest);
  const int64_t count = 1 + trial.pick(10, 4);
  for (uint64_t i = 0; i < uint64_t(count) && left > 0; ++i) {
    const bool is_round = trial.pick(20 + i, 3) > 0;
    const int64_t length =
        is_round ? one_of(trial, 30 + i, kLengths) : 1 + trial.pick(30 + i, most);
    out.lengths.push_back(int32_t(std::min(length, left)));
    left -= length;
  }
  trial.classify(*std::ranges::max_element(out.lengths) > kPieceKeys, "several pieces");
  out.draw();
  return out;
}

BatchLayout layout_of(const Trial& trial, uint64_t index, AttentionPath path) {
  constexpr int32_t kPowers[] = {1, 8, 16, 16, 32, 64, 256}, kAny[] = {1, 3, 5, 16, 100};
  const bool tensor_cores = path == AttentionPath::tensor_core;
  const int32_t block_size =
      tensor_cores ? one_of(trial, index, kPowers) : one_of(trial, index, kAny);
  trial.classify(tensor_cores && block_size < 8, "blocks too small for bulk copies");
  trial.classify(tensor_cores && block_size > kAttentionTileKeys, "blocks of several tiles");
  return {.seed = trial.seed() + index,
          .block_size = block_size,
          .num_padding = int32_t(trial.pick(index + 1, 4)),
          .q_gap = 8 * trial.pick(index + 2, 3)};
}

std::vector<Chunk> whole(const Sequences& s) {
  std::vector<Chunk> out;
  for (size_t i = 0; i < s.lengths.size(); ++i) out.push_back({int32_t(i), 0, s.lengths[i]});
  return out;
}

std::vector<Chunk> cut(const Trial& trial, uint64_t index, const Sequences& s) {
  std::vector<Chunk> out;
  auto next = [i = index * 1000]() mutable { return ++i; };
  for (size_t i = 0; i < s.lengths.size(); ++i) {
    for (int32_t first = 0; first < s.lengths[i];) {
      const int64_t left = s.lengths[i] - first;
      const bool one = trial.pick(next(), 2) == 0;
      const auto count = int32_t(one ? 1 : 1 + trial.pick(next(), left));
      out.push_back({int32_t(i), first, count});
      // Not every token of a long sequence, so that batches stay small.
      first += one ? count + int32_t(trial.pick(next(), 40)) : count;
    }
    if (trial.pick(next(), 2) == 0) out.push_back({});
  }
  for (size_t i = out.size(); i-- > 1;) {
    std::swap(out[i], out[size_t(trial.pick(next(), int64_t(i) + 1))]);
  }
  return out;
}

AttentionFill exact_fill(const Trial& trial) {
  const bool is_uniform = trial.pick(6, 2) == 0;
  trial.classify(is_uniform, "equal weights");
  return is_uniform ? AttentionFill::uniform : AttentionFill::one_hot;
}

AttentionFill real_fill(const Trial& trial) {
  const bool peaked = trial.pick(5, 3) == 0;
  trial.classify(peaked, "peaked weights");
  return peaked ? AttentionFill::peaked : AttentionFill::reals;
}

std::vector<Chunk> decode_rows(const Trial& trial, uint64_t index, const Sequences& s) {
  std::vector<Chunk> out;
  for (size_t i = 0; i < s.lengths.size(); ++i) {
    const bool last = trial.pick(index + 3 * i, 2) == 0;
    const auto at = last ? s.lengths[i] - 1 : int32_t(trial.pick(index + 3 * i + 1, s.lengths[i]));
    const bool padded = trial.pick(index + 3 * i + 2, 5) == 0;
    out.push_back(padded ? Chunk{} : Chunk{int32_t(i), at, 1});
  }
  return out;
}

}  // namespace loratory::gpu
