#include "reference/parallel/linear_layers.hpp"

#include <fmt/format.h>

#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {
namespace {

ConstTensorView columns_of(ConstTensorView matrix, const Range& columns) {
  matrix.data += columns.begin * matrix.strides[1] * int64_t(size_bytes(matrix.dtype));
  matrix.shape[1] = columns.count;
  return matrix;
}

// All of the bias for every tp_rank, or nothing where the layer has added it or has none.
std::vector<std::optional<Tensor>> whole_bias(const LayerShards& layer, const LayerInput& in) {
  check_layer_input(layer, in);
  std::optional<Tensor> bias;
  if (in.bias && in.skip_bias_add) bias = take_rows(*in.bias, {{0, layer.total_out()}});
  return std::vector<std::optional<Tensor>>(size_t(layer.tp_size()), bias);
}

}  // namespace

void check_layer_input(const LayerShards& layer, const LayerInput& in) {
  const auto num_tp_ranks = size_t(layer.tp_size());
  if (in.x.size() != num_tp_ranks || in.buffers.size() != num_tp_ranks) {
    throw InputError("layer input", fmt::format("{} inputs and {} buffers for {} tp_ranks",
                                                in.x.size(), in.buffers.size(), num_tp_ranks));
  }
  check_shape("layer input: weight", in.weight, {layer.total_out(), layer.num_in});
  if (in.bias) check_shape("layer input: bias", *in.bias, {layer.total_out()});
}

Tensor base_linear(const Tensor& x, const ConstTensorView& weight,
                   const std::optional<ConstTensorView>& bias, Dtype out) {
  const int64_t num_tokens = x.shape()[0], num_in = weight.size(1);
  check_shape("base_linear: x", x.view(), {num_tokens, num_in});
  const auto w = read_matrix<float>(weight, weight.size(0), num_in);
  Tensor y(out, {num_tokens, weight.size(0)});
  for (int64_t t = 0; t < num_tokens; ++t) {
    const Vector<float> row = multiply_in_order(w, read_vector<float>(x.view()[t], num_in));
    for (int64_t n = 0; n < row.size(); ++n) {
      y.set(bias ? row(n) + float(bias->get(n)) : row(n), t, n);
    }
  }
  return y;
}

Tensor local_base(const Tensor& x, const LayerInput& in, const std::vector<Range>& rows,
                  const Range& columns, bool with_bias) {
  const Tensor weight = take_rows(columns_of(in.weight, columns), rows);
  if (!in.bias || !with_bias || in.skip_bias_add)
    return base_linear(x, weight.view(), std::nullopt, in.out);
  const Tensor bias = take_rows(*in.bias, rows);
  return base_linear(x, weight.view(), bias.view(), in.out);
}

Tensor local_shrink(const Tensor& x, const LocalBuffers& buffers, const LayerInput& in) {
  const auto num_tokens = int64_t(in.slots.size());
  const int64_t num_rows = buffers.slices[0].a.shape()[1];
  const bool as_x = in.mode.h == IntermediateMode::store_as_x;
  Tensor h(as_x ? x.dtype() : Dtype::f32, {int64_t(buffers.slices.size()), num_tokens, num_rows});
  const size_t size = size_bytes(h.dtype());
  for (size_t at = 0; at < h.bytes().size(); at += size) {
    store(h.dtype(), h.bytes().data() + at, in.h_before);
  }
  shrink({.x = x.view(), .slots = in.slots, .slices = buffers.shrink_slices(), .h = h.view()});
  for (size_t i = 0; i < buffers.slices.size(); ++i) {
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = in.slots[size_t(t)];
      if (slot == kBaseSlot) continue;
      const int64_t rank = buffers.slices[i].shrink_ranks[size_t(slot)];
      for (int64_t j = rank; j < num_rows; ++j) h.set(0, int64_t(i), t, j);
    }
  }
  return h;
}

void local_expand(const Tensor& h, const LocalBuffers& buffers, const LayerInput& in,
                  int64_t offset_start, Tensor& y) {
  expand({.h = h.view(),
          .slots = in.slots,
          .slices = buffers.expand_slices(),
          .offset_start = offset_start,
          .mode = in.mode,
          .y = y.view()});
}

ColumnLayer::ColumnLayer(LayerShards layer, bool gathers_output)
    : shards(std::move(layer)), gather_output(gathers_output) {
  const bool one_output = shards.num_slices() == 1 && shards.shards[0][0].b_rows.size() == 1;
  if (gather_output && !one_output) {
    throw InputError("gather_output", "several outputs are not gathered into one");
  }
}

std::vector<Tensor> ColumnLayer::intermediate(const LayerInput& in) const {
  check_layer_input(shards, in);
  std::vector<Tensor> h;
  for (size_t p = 0; p < in.x.size(); ++p) {
    h.push_back(local_shrink(in.x[p], in.buffers[p], in));
  }
  if (!shards.parallel.fully_sharded) return h;
  constexpr int64_t kRankAxis = 2;
  return all_gather(h, kRankAxis);
}

std::vector<Tensor> ColumnLayer::run(const LayerInput& in) const {
  const std::vector<Tensor> h = intermediate(in);
  std::vector<Tensor> y;
  for (size_t p = 0; p < in.x.size(); ++p) {
    const Range all_columns{0, shards.num_in};
    y.push_back(local_base(in.x[p], in, shards.y_columns(int64_t(p)), all_columns, true));
    local_expand(h[p], in.buffers[p], in, 0, y[p]);
  }
  return gather_output ? all_gather(y, 1) : y;
}

std::vector<std::optional<Tensor>> ColumnLayer::returned_bias(const LayerInput& in) const {
  std::vector<std::optional<Tensor>> bias = whole_bias(shards, in);
  for (size_t p = 0; p < bias.size() && !gather_output; ++p) {
    if (bias[p]) bias[p] = take_rows(*in.bias, shards.y_columns(int64_t(p)));
  }
  return bias;
}

std::vector<Tensor> RowLayer::local_inputs(const LayerInput& in) const {
  if (input_is_parallel) return in.x;
  std::vector<Tensor> x;
  for (size_t p = 0; p < in.x.size(); ++p) {
    x.push_back(split(in.x[p], shards.tp_size(), 1)[p]);
  }
  return x;
}

std::vector<Tensor> RowLayer::intermediate(const LayerInput& in) const {
  check_layer_input(shards, in);
  const std::vector<Tensor> x = local_inputs(in);
  std::vector<Tensor> h;
  for (size_t p = 0; p < x.size(); ++p) h.push_back(local_shrink(x[p], in.buffers[p], in));
  return shards.parallel.fully_sharded ? all_reduce(h) : h;
}

std::vector<Tensor> RowLayer::run(const LayerInput& in) const {
  const std::vector<Tensor> h = intermediate(in);
  const std::vector<Tensor> x = local_inputs(in);
  std::vector<Tensor> y;
  for (size_t p = 0; p < x.size(); ++p) {
    const SliceShard& shard = shards.shards[p][0];
    const Range all_rows{0, shards.total_out()};
    y.push_back(local_base(x[p], in, {all_rows}, shard.a_columns, p == 0));
    local_expand(h[p], in.buffers[p], in, shard.b_rows[0].begin, y[p]);
  }
  switch (output) {
    case RowOutput::reduced:
      return all_reduce(y, rounding);
    case RowOutput::scattered:
      return reduce_scatter(y, 0, rounding);
    case RowOutput::partial:
      break;
  }
  return y;
}

std::vector<std::optional<Tensor>> RowLayer::returned_bias(const LayerInput& in) const {
  return whole_bias(shards, in);
}

std::vector<std::optional<Tensor>> ReplicatedLayer::returned_bias(const LayerInput& in) const {
  return whole_bias(shards, in);
}

std::vector<Tensor> ReplicatedLayer::run(const LayerInput& in) const {
  check_layer_input(shards, in);
  std::vector<Tensor> y;
  for (size_t p = 0; p < in.x.size(); ++p) {
    const Range all_rows{0, shards.total_out()}, all_columns{0, shards.num_in};
    y.push_back(local_base(in.x[p], in, {all_rows}, all_columns, true));
    local_expand(local_shrink(in.x[p], in.buffers[p], in), in.buffers[p], in, 0, y[p]);
  }
  return y;
}

}  // namespace loratory::reference
