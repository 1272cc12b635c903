#include "reference/adapter/weight_scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/adapter/adapter_error.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::reference {
namespace {

// Elements in a group if `size` of them make `num_groups`; 0 if no known size does.
int64_t group_size(int64_t size, int64_t num_groups) {
  if (num_groups == 1) return size;
  // g and 2g never give the same number of groups, unless it is 1: there is no second answer.
  for (int64_t group = 1; group < size; group *= 2) {
    if ((size + group - 1) / group == num_groups) return group;
  }
  return 0;
}

[[noreturn]] void refuse(const StoredTensor& tensor, int64_t num_rows, int64_t num_columns) {
  throw AdapterError(AdapterErrorCode::unsupported, "block_scales", tensor.name,
                     fmt::format("has shape {} for a matrix [{}, {}]", shape_text(tensor.shape),
                                 num_rows, num_columns),
                     "known are one scale, one for each row, and blocks of powers of two");
}

std::vector<float> read_numbers(const StoredTensor& tensor, int64_t begin, int64_t count) {
  std::vector<float> numbers;
  for (int64_t i = begin; i < begin + count; ++i) {
    numbers.push_back(float(load(Dtype::f32, tensor.bytes.data() + 4 * i)));
  }
  return numbers;
}

bool is_one_number(const Extents& shape) {
  return std::ranges::all_of(shape, [](int64_t size) { return size == 1; });
}

// The scale of one matrix: piece `index` of a tensor that is cut into pieces of `shape`.
WeightScale read_matrix_scale(const StoredTensor& tensor, Extents shape, int64_t index,
                              int64_t num_rows, int64_t num_columns) {
  if (is_one_number(shape)) return {num_rows, num_columns, 1, read_numbers(tensor, index, 1)};
  if (shape.size() == 1 && shape[0] == num_rows) shape.push_back(1);
  if (shape.size() != 2) refuse(tensor, num_rows, num_columns);
  const int64_t group_rows = group_size(num_rows, shape[0]);
  const int64_t group_columns = group_size(num_columns, shape[1]);
  if (group_rows == 0 || group_columns == 0) refuse(tensor, num_rows, num_columns);
  const int64_t count = shape[0] * shape[1];
  return {group_rows, group_columns, shape[1], read_numbers(tensor, index * count, count)};
}

// The groups of a part of one axis: their size, and which group of the whole each comes from.
struct AxisPart {
  int64_t group = 1;
  std::vector<int64_t> source;
};

AxisPart axis_part(int64_t group, const Stride& part) {
  const int64_t last = part.first + (part.count - 1) * part.step;
  if (part.first / group == last / group) return {part.count, {part.first / group}};
  const bool aligned = part.step == 1 && part.first % group == 0;
  AxisPart out{aligned ? group : 1, {}};
  for (int64_t i = 0; i < part.count; i += out.group) {
    out.source.push_back((part.first + i * part.step) / group);
  }
  return out;
}

}  // namespace

WeightScale read_weight_scale(const StoredTensor& tensor, int64_t num_rows, int64_t num_columns) {
  return read_matrix_scale(tensor, tensor.shape, 0, num_rows, num_columns);
}

WeightScale read_weight_scale(const StoredTensor& tensor, int64_t num_matrices, int64_t index,
                              int64_t num_rows, int64_t num_columns) {
  if (is_one_number(tensor.shape)) {
    return read_weight_scale(tensor, num_rows, num_columns);
  }
  if (tensor.shape.front() != num_matrices) refuse(tensor, num_rows, num_columns);
  return read_matrix_scale(tensor, Extents(tensor.shape.begin() + 1, tensor.shape.end()), index,
                           num_rows, num_columns);
}

WeightScale part_of(const WeightScale& scale, const Stride& rows, const Stride& columns) {
  if (scale.factors.empty()) return scale;
  const AxisPart row_part = axis_part(scale.group_rows, rows);
  const AxisPart column_part = axis_part(scale.group_columns, columns);
  WeightScale part{row_part.group, column_part.group, int64_t(column_part.source.size()), {}};
  for (const int64_t row : row_part.source) {
    for (const int64_t column : column_part.source) {
      part.factors.push_back(scale.factors[size_t(row * scale.num_column_groups + column)]);
    }
  }
  return part;
}

}  // namespace loratory::reference
