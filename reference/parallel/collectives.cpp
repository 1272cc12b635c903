#include "reference/parallel/collectives.hpp"

#include <fmt/format.h>

#include <cstring>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

void check_parts(const char* place, const std::vector<Tensor>& parts, int64_t free_axis) {
  if (parts.empty()) throw InputError(place, "there are no tp_ranks");
  for (size_t p = 0; p < parts.size(); ++p) {
    const Tensor& part = parts[p];
    bool alike = part.dtype() == parts[0].dtype() &&
                 part.shape().size() == parts[0].shape().size() &&
                 part.strides() == row_major_strides(part.shape());
    for (size_t axis = 0; alike && axis < part.shape().size(); ++axis) {
      alike = int64_t(axis) == free_axis || part.shape()[axis] == parts[0].shape()[axis];
    }
    if (alike) continue;
    throw InputError(
        place,
        fmt::format(
            "the tensor of tp_rank {} differs from that of tp_rank 0 in shape, layout or dtype",
            p));
  }
}

void check_axis(const char* place, const Tensor& t, int64_t axis) {
  if (axis >= 0 && axis < int64_t(t.shape().size())) return;
  throw InputError(place, fmt::format("axis {} of a tensor of {} axes", axis, t.shape().size()));
}

// How many runs of neighbouring bytes a cut along an axis makes.
int64_t num_runs(const Tensor& t, int64_t axis) {
  int64_t n = 1;
  for (int64_t i = 0; i < axis; ++i) n *= t.shape()[size_t(i)];
  return n;
}

size_t run_bytes(const Tensor& t, int64_t axis) {
  size_t n = size_bytes(t.dtype());
  for (size_t i = size_t(axis); i < t.shape().size(); ++i) n *= size_t(t.shape()[i]);
  return n;
}

void copy(std::byte* to, const std::byte* from, size_t num_bytes) {
  if (num_bytes != 0) std::memcpy(to, from, num_bytes);  // empty tensors have no address
}

}  // namespace

std::vector<Tensor> all_reduce(const std::vector<Tensor>& parts, ReduceRounding rounding) {
  check_parts("all_reduce", parts, -1);
  const Dtype dtype = parts[0].dtype();
  const size_t size = size_bytes(dtype);
  Tensor sum = parts[0];
  if (parts.size() == 1) return {sum};
  for (size_t at = 0; at < sum.bytes().size(); at += size) {
    auto total = float(load(dtype, parts[0].bytes().data() + at));
    for (size_t p = 1; p < parts.size(); ++p) {
      total += float(load(dtype, parts[p].bytes().data() + at));
      if (rounding == ReduceRounding::each_sum) total = float(round_to(dtype, total));
    }
    store(dtype, sum.bytes().data() + at, total);
  }
  return std::vector<Tensor>(parts.size(), sum);
}

std::vector<Tensor> all_gather(const std::vector<Tensor>& parts, int64_t axis) {
  check_parts("all_gather", parts, axis);
  check_axis("all_gather", parts[0], axis);
  Extents shape = parts[0].shape();
  shape[size_t(axis)] = 0;
  for (const Tensor& part : parts) shape[size_t(axis)] += part.shape()[size_t(axis)];
  Tensor whole(parts[0].dtype(), shape);
  std::byte* to = whole.bytes().data();
  for (int64_t run = 0; run < num_runs(whole, axis); ++run) {
    for (const Tensor& part : parts) {
      const size_t num_bytes = run_bytes(part, axis);
      copy(to, part.bytes().data() + size_t(run) * num_bytes, num_bytes);
      to += num_bytes;
    }
  }
  return std::vector<Tensor>(parts.size(), whole);
}

std::vector<Tensor> reduce_scatter(const std::vector<Tensor>& parts, int64_t axis,
                                   ReduceRounding rounding) {
  return split(all_reduce(parts, rounding)[0], int64_t(parts.size()), axis);
}

std::vector<Tensor> split(const Tensor& whole, int64_t num_tp_ranks, int64_t axis) {
  check_parts("split", {whole}, -1);
  check_axis("split", whole, axis);
  const int64_t size = whole.shape()[size_t(axis)];
  if (num_tp_ranks < 1 || size % num_tp_ranks != 0) {
    throw InputError(
        "split", fmt::format("axis of size {} is not divisible by tp_size {}", size, num_tp_ranks));
  }
  Extents shape = whole.shape();
  shape[size_t(axis)] = size / num_tp_ranks;
  std::vector<Tensor> parts(size_t(num_tp_ranks), Tensor(whole.dtype(), shape));
  const std::byte* from = whole.bytes().data();
  for (int64_t run = 0; run < num_runs(whole, axis); ++run) {
    for (Tensor& part : parts) {
      const size_t num_bytes = run_bytes(part, axis);
      copy(part.bytes().data() + size_t(run) * num_bytes, from, num_bytes);
      from += num_bytes;
    }
  }
  return parts;
}

}  // namespace loratory::reference
