#include "attention_case.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "fuzz/support/lora_case.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "reference/numerics/error_bound.hpp"
#include "upload.hpp"

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

AttentionOnGpu::AttentionOnGpu(const Sequences& sequences, std::vector<Chunk> chunks,
                               const BatchLayout& layout)
    : sequences_(sequences), chunks_(std::move(chunks)), layout_(layout), plan_(make_plan()) {
  upload_arrays();
  upload_tensors();
}

AttentionPlan AttentionOnGpu::make_plan() {
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
std::vector<int32_t> AttentionOnGpu::shuffled_blocks() const {
  std::vector<int32_t> blocks(2 * size_t(max_blocks_) * chunks_.size() + 1);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (size_t i = blocks.size(); i-- > 1;) {
    std::swap(blocks[i], blocks[reference::random_bits(layout_.seed, 1, i) % (i + 1)]);
  }
  return blocks;
}

void AttentionOnGpu::upload_arrays() {
  const std::vector<int32_t> blocks = shuffled_blocks();
  tables_.assign(chunks_.size() * size_t(max_blocks_), -1);  // what no row owns is no block
  for (size_t row = 0; row < chunks_.size(); ++row) {
    for (int32_t i = 0; i * layout_.block_size < contexts_[row]; ++i) {
      const size_t at = row * size_t(max_blocks_) + size_t(i);
      tables_[at] = blocks[at];
    }
  }
  for (const auto* array : {&row_starts_, &contexts_, &token_rows_, &tables_}) {
    arrays_.push_back(upload(*array));
  }
  arrays_.push_back(make_device_buffer(size_t(plan_.workspace_bytes())));
  LORATORY_CUDA_CHECK(cudaMemset(arrays_.back().get(), 0xFF, size_t(plan_.workspace_bytes())));
}

void AttentionOnGpu::upload_tensors() {
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
  tensors_.emplace_back(q);
  tensors_.emplace_back(poisoned(s.dtype, num_tokens, columns, columns));
  tensors_.emplace_back(k);
  tensors_.emplace_back(v);
}

BatchView AttentionOnGpu::batch() const {
  const auto ints = [&](size_t i) { return reinterpret_cast<const int32_t*>(arrays_[i].get()); };
  return {.num_tokens = int32_t(token_rows_.size()),
          .num_rows = int32_t(chunks_.size()),
          .token_rows = ints(2),
          .row_starts = ints(0),
          .contexts = ints(1),
          .block_tables = ints(3),
          .max_blocks = max_blocks_,
          .block_size = layout_.block_size};
}

void AttentionOnGpu::enqueue(CUstream_st* stream) const {
  const AttentionShape& s = sequences_.shape;
  plan_.build_work(batch(), arrays_.back().get(), stream);
  plan_.launch({.q = tensors_[0].view(),
                .out = tensors_[1].view(),
                .kv = {.dtype = s.dtype,
                       .k = tensors_[2].view().data,
                       .v = tensors_[3].view().data,
                       .kv_heads = s.kv_heads,
                       .block_size = layout_.block_size,
                       .head_dim = s.head_dim}},
               batch(), most_tokens_, arrays_.back().get(), stream);
}

void AttentionOnGpu::become(const AttentionOnGpu& other) const {
  const auto ints = [](const std::vector<int32_t>& array) { return array.size() * 4; };
  const size_t sizes[] = {ints(row_starts_), ints(contexts_), ints(token_rows_), ints(tables_)};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    LORATORY_CUDA_CHECK(
        cudaMemcpy(arrays_[i].get(), other.arrays_[i].get(), sizes[i], cudaMemcpyDeviceToDevice));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    ASSERT_EQ(tensors_[i].num_bytes(), other.tensors_[i].num_bytes());
    LORATORY_CUDA_CHECK(cudaMemcpy(tensors_[i].view().data, other.tensors_[i].view().data,
                                   tensors_[i].num_bytes(), cudaMemcpyDeviceToDevice));
  }
}

Tensor AttentionOnGpu::read() const {
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(tensors_[1].guards_are_intact()) << "written around the results";
  return tensors_[1].read();
}

Tensor AttentionOnGpu::run() const {
  enqueue(nullptr);
  Tensor out = read();
  for (size_t token = 0; token < token_rows_.size(); ++token) {
    if (token_rows_[token] >= 0) continue;
    const auto bits = bits_of(out, int64_t(token));
    EXPECT_TRUE(std::ranges::all_of(bits, [](std::byte b) { return b == std::byte{0}; }))
        << "padding token " << token;
  }
  return out;
}

std::vector<std::byte> bits_of(const Tensor& out, int64_t token) {
  const auto bytes = int64_t(size_bytes(out.dtype()));
  const auto begin = out.bytes().begin() + token * out.strides()[0] * bytes;
  return {begin, begin + out.shape()[1] * bytes};
}

reference::AttentionArithmetic arithmetic_of(AttentionPath path, Dtype dtype) {
  if (path == AttentionPath::plain) return {.out = dtype};
  return {.weights = dtype,
          .out = dtype,
          .unit = 0x1p-22,
          .tile_keys = kAttentionTileKeys,
          .piece_keys = kPieceKeys};
}

namespace {

/// Error / bound of one head of a token.
double ratio_of(const Sequences& s, const AttentionOnGpu& batch, const Tensor& out, size_t chunk,
                int32_t token, int32_t head) {
  const Chunk& c = batch.chunks()[chunk];
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
      arithmetic_of(batch.path(), s.shape.dtype));
  double worst = 0;
  for (int64_t i = 0; i < d; ++i) {
    const double got = out.get(batch.first_token(chunk) + token, head * d + i);
    worst = std::max(worst, reference::error_over(got, oracle.exact[size_t(i)],
                                                  oracle.bound[size_t(i)], s.shape.dtype));
  }
  return worst;
}

}  // namespace

double judge(const Trial& trial, const Sequences& s, const AttentionOnGpu& batch, const Tensor& out,
             int64_t num_judged) {
  std::vector<std::array<int32_t, 3>> picked;
  for (int64_t i = 0; i < num_judged; ++i) {
    const auto index = uint64_t(1000 + 3 * i);
    const auto chunk = int32_t(trial.pick(index, int64_t(batch.chunks().size())));
    const Chunk& c = batch.chunks()[size_t(chunk)];
    if (c.sequence < 0) continue;
    // The last token of a chunk as often as all others.
    const auto token = int32_t(i % 2 == 0 ? c.count - 1 : trial.pick(index + 1, c.count));
    picked.push_back({chunk, token, int32_t(trial.pick(index + 2, s.shape.num_heads))});
  }
  std::vector<double> ratios(picked.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto [chunk, token, head] = picked[i];
    ratios[i] = ratio_of(s, batch, out, size_t(chunk), token, head);
  }
  double worst = 0;
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto [chunk, token, head] = picked[i];
    EXPECT_LE(ratios[i], 1) << "row " << chunk << ", token " << token << ", head " << head;
    worst = std::max(worst, ratios[i]);
    trial.count(s.shape.head_dim, ratios[i]);
  }
  return worst;
}

}  // namespace loratory::gpu
