#include "model_case.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "fuzz/support/layer_case.hpp"
#include "reference/numerics/error_bound.hpp"
#include "upload.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::Tensor;

Dtype model_dtype(const Trial& trial, uint64_t index) {
  constexpr Dtype kDtypes[] = {Dtype::bf16, Dtype::f16, Dtype::f32};
  const Dtype dtype = kDtypes[trial.pick(index, 3)];
  trial.classify(true, std::string(name(dtype)));
  return dtype;
}

double unit_number(uint64_t seed, uint64_t index) {
  return double(int64_t(reference::random_bits(seed, 6000, index) >> 11)) * 0x1p-52 - 1;
}

Tensor random_matrix(Dtype dtype, int64_t rows, int64_t columns, uint64_t seed, double scale,
                     int64_t gap) {
  Tensor out(dtype, {rows, columns}, {columns + gap, 1});
  Tensor all = poisoned(out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      all.set(scale * unit_number(seed, uint64_t(i * columns + j)), i, j);
    }
  }
  return all;
}

Tensor poisoned(const Tensor& like) {
  Tensor out = like;
  std::ranges::fill(out.bytes(), std::byte{0xFF});  // a NaN of every dtype
  return out;
}

Tensor rows_of(const Tensor& from, const std::vector<int64_t>& rows) {
  const int64_t columns = from.shape()[1];
  Tensor out(from.dtype(), {int64_t(rows.size()), columns});
  for (int64_t i = 0; i < int64_t(rows.size()); ++i) {
    for (int64_t j = 0; j < columns; ++j) out.set(from.get(rows[size_t(i)], j), i, j);
  }
  return out;
}

double judged(const Tensor& got, const Expected& expected) {
  double worst = 0;
  const int64_t rows = got.shape()[0], columns = got.shape()[1];
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto at = size_t(i * columns + j);
      const double ratio =
          reference::error_over(got.get(i, j), expected.exact[at], expected.bound[at], got.dtype());
      worst = std::max(worst, ratio);
      if (ratio <= 1) continue;
      ADD_FAILURE() << "row " << i << " column " << j << ": " << got.get(i, j) << ", exactly "
                    << expected.exact[at] << " with a bound of " << expected.bound[at];
      return worst;
    }
  }
  return worst;
}

int64_t StepCase::block_of(int64_t token) const {
  const auto t = size_t(token);
  return block_tables[size_t(token_rows[t] * max_blocks + positions[t] / block_size)];
}

StepCase StepCase::alone(int64_t token) const {
  const auto t = size_t(token), row = size_t(token_rows[t]);
  StepCase out = *this;
  out.num_rows = 1;
  out.token_ids = {token_ids[t]};
  out.positions = {positions[t]};
  out.token_rows = {0};
  out.row_starts = {0, 1};
  out.contexts = {positions[t] + 1};
  const auto table = block_tables.begin() + int64_t(row) * max_blocks;
  out.block_tables.assign(table, table + max_blocks);
  return out;
}

StepCase step_case(const Trial& trial, int64_t most_tokens, int64_t vocab) {
  uint64_t index = 1000;
  const auto pick = [&](int64_t below) { return trial.pick(index++, below); };
  StepCase out;
  constexpr int32_t kBlockSizes[] = {1, 2, 16, 32};
  out.block_size = kBlockSizes[pick(4)];
  out.max_blocks = int32_t(1 + pick(128 / out.block_size));
  const int64_t longest = int64_t(out.max_blocks) * out.block_size;
  const bool is_padded = pick(2) == 0;
  while (out.num_tokens() < most_tokens && out.num_rows < 24) {
    const int64_t room = std::min(longest, most_tokens - out.num_tokens());
    const int64_t count = pick(3) == 0 ? 1 + pick(room) : 1;
    const int64_t context = count + pick(longest - count + 1);
    out.row_starts.push_back(int32_t(out.num_tokens()));
    out.contexts.push_back(int32_t(context));
    for (int64_t position = context - count; position < context; ++position) {
      out.token_ids.push_back(int32_t(pick(vocab)));
      out.positions.push_back(int32_t(position));
      out.token_rows.push_back(out.num_rows);
    }
    ++out.num_rows;
    if (pick(8) == 0) break;
  }
  out.row_starts.push_back(int32_t(out.num_tokens()));
  for (int64_t i = is_padded ? pick(5) : 0; i > 0; --i) {
    out.token_ids.push_back(0);
    out.positions.push_back(0);
    out.token_rows.push_back(-1);
  }
  // Blocks of their own for each row, in any order; some blocks belong to nobody.
  const int64_t used = int64_t(out.num_rows) * out.max_blocks;
  out.num_blocks = used + pick(10);
  for (const int64_t block : reference::shuffled(out.num_blocks, trial.seed())) {
    if (int64_t(out.block_tables.size()) < used) out.block_tables.push_back(int32_t(block));
  }
  // Some tokens have yet to be looked up in what the step before sampled.
  for (int i = 0; i < 64; ++i) out.last_sampled.push_back(int32_t(pick(vocab)));
  for (int32_t& id : out.token_ids) {
    if (pick(3) == 0) id = int32_t(-1 - pick(64));
  }
  trial.classify(is_padded, "with padding");
  trial.classify(out.num_rows == 1, "one row");
  trial.classify(out.num_tokens() > 32, "more than 32 tokens");
  trial.classify(out.block_size == 1, "blocks of one token");
  return out;
}

StepOnGpu::StepOnGpu(const StepCase& step) {
  view_ = {.num_tokens = int32_t(step.num_tokens()),
           .num_rows = step.num_rows,
           .token_ids = keep(step.token_ids),
           .last_sampled = keep(step.last_sampled),
           .positions = keep(step.positions),
           .token_rows = keep(step.token_rows),
           .row_starts = keep(step.row_starts),
           .contexts = keep(step.contexts),
           .block_tables = keep(step.block_tables),
           .max_blocks = step.max_blocks,
           .block_size = step.block_size};
}

const int32_t* StepOnGpu::keep(const std::vector<int32_t>& values) {
  buffers_.push_back(upload(values));
  return reinterpret_cast<const int32_t*>(buffers_.back().get());
}

}  // namespace loratory::gpu
