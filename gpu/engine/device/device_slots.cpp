#include "gpu/engine/device/device_slots.hpp"

#include <cmath>
#include <utility>

#include "gpu/engine/device/engine_kernels.hpp"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::ModuleId;

namespace {

constexpr int kNumTables = 4;  // ranks, scalings, factors of A and of B
constexpr float kRandomFactor = 0x1p-8F;

}  // namespace

DeviceSlots::DeviceSlots(SlotLayout layout, int32_t max_loras)
    : layout_(std::move(layout)),
      max_loras_(max_loras),
      images_(make_device_buffer(size_t(bytes()))),
      tables_(make_device_buffer(layout_.modules().size() * size_t(max_loras) * 4 * kNumTables)) {
  const size_t table_bytes = layout_.modules().size() * size_t(max_loras) * 4;
  ranks_ = reinterpret_cast<int32_t*>(tables_.get());
  scalings_ = reinterpret_cast<float*>(tables_.get() + table_bytes);
  a_factors_ = reinterpret_cast<float*>(tables_.get() + 2 * table_bytes);
  b_factors_ = reinterpret_cast<float*>(tables_.get() + 3 * table_bytes);
  std::vector<int32_t> places(2 * layout_.modules().size());
  for (size_t i = 0; i < layout_.modules().size(); ++i) {
    const SlotLayout::TablePlace place = layout_.table_place(int64_t(i), max_loras);
    places[i] = place.begin, places[i + layout_.modules().size()] = place.stride;
  }
  places_ = make_device_buffer(places.size() * 4);
  LORATORY_CUDA_CHECK(
      cudaMemcpy(places_.get(), places.data(), places.size() * 4, cudaMemcpyHostToDevice));
  LORATORY_CUDA_CHECK(cudaMemset(images_.get(), 0xFF, size_t(bytes())));
  LORATORY_CUDA_CHECK(cudaMemset(tables_.get(), 0, kNumTables * table_bytes));
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
}

void DeviceSlots::write_tables(int32_t slot, CUstream_st* stream) {
  std::byte* const at = image(slot);
  write_slot_tables(
      {.from_ranks = reinterpret_cast<const int32_t*>(at + layout_.ranks_offset()),
       .from_scalings = reinterpret_cast<const float*>(at + layout_.scalings_offset()),
       .from_factors = layout_.has_factors()
                           ? reinterpret_cast<const float*>(at + layout_.factors_offset())
                           : nullptr,
       .ranks = ranks_,
       .scalings = scalings_,
       .a_factors = a_factors_,
       .b_factors = b_factors_,
       .begins = reinterpret_cast<const int32_t*>(places_.get()),
       .strides = reinterpret_cast<const int32_t*>(places_.get()) + layout_.modules().size(),
       .num_modules = int32_t(layout_.modules().size()),
       .slot = slot},
      stream);
}

void DeviceSlots::copy(const std::byte* from, PacedCopy::Part part, int32_t slot,
                       CUstream_st* stream) {
  LORATORY_CUDA_CHECK(cudaMemcpyAsync(image(slot) + part.begin, from + part.begin,
                                      size_t(part.end - part.begin), cudaMemcpyHostToDevice,
                                      stream));
  if (part.end == layout_.bytes()) write_tables(slot, stream);
}

void DeviceSlots::fill_random_slot(int32_t slot, int64_t rank, uint64_t seed) {
  const std::vector<int32_t> ranks(layout_.modules().size(), int32_t(rank));
  const std::vector<float> scalings(layout_.modules().size(), 1.0F / 16);
  const std::vector<float> factors(2 * layout_.modules().size(), kRandomFactor);
  const float bits_each = layout_.has_factors() ? 1 / kRandomFactor : 1;
  std::byte* const at = image(slot);
  for (const SlotModule& m : layout_.modules()) {
    const auto size = bits_each * float(1 / std::sqrt(double(m.num_in)));
    fill_random(layout_.dtype(), at + m.a_offset, layout_.max_rank() * m.num_in, size,
                seed + uint64_t(m.a_offset), nullptr);
    fill_random(layout_.dtype(), at + m.b_offset, layout_.max_rank() * m.num_out, bits_each * 0.25F,
                seed + uint64_t(m.b_offset), nullptr);
  }
  LORATORY_CUDA_CHECK(cudaMemcpy(at + layout_.ranks_offset(), ranks.data(), ranks.size() * 4,
                                 cudaMemcpyHostToDevice));
  LORATORY_CUDA_CHECK(cudaMemcpy(at + layout_.scalings_offset(), scalings.data(),
                                 scalings.size() * 4, cudaMemcpyHostToDevice));
  if (layout_.has_factors()) {
    LORATORY_CUDA_CHECK(cudaMemcpy(at + layout_.factors_offset(), factors.data(),
                                   factors.size() * 4, cudaMemcpyHostToDevice));
  }
  write_tables(slot, nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
}

DeviceView DeviceSlots::matrix(int64_t offset, int64_t num_rows, int64_t num_columns) const {
  DeviceView out =
      device_view(layout_.dtype(), images_.get() + offset, {max_loras_, num_rows, num_columns});
  out.strides[0] = layout_.bytes() / int64_t(size_bytes(layout_.dtype()));
  return out;
}

DeviceView DeviceSlots::a(int64_t module) const {
  const SlotModule& m = layout_.modules()[size_t(module)];
  return matrix(m.a_offset, layout_.max_rank(), m.num_in);
}

DeviceView DeviceSlots::b(int64_t module) const {
  const SlotModule& m = layout_.modules()[size_t(module)];
  return matrix(m.b_offset, m.num_out, layout_.max_rank());
}

const float* DeviceSlots::a_factors(int64_t module) const {
  return layout_.has_factors() ? a_factors_ + table_begin(module) : nullptr;
}

DeviceView DeviceSlots::factors(float* table, int64_t module) const {
  if (!layout_.has_factors()) return {};
  return device_view(Dtype::f32, table + table_begin(module), {max_loras_});
}

std::optional<LoraLayerDesc> DeviceSlots::describe(std::span<const ModuleId> slices,
                                                   LoraOp op) const {
  LoraLayerDesc out;
  out.op = op;
  for (const ModuleId& id : slices) {
    const int64_t module = layout_.find(id);
    if (module < 0) return std::nullopt;
    out.slices.push_back({.a = a(module),
                          .b = b(module),
                          .ranks = ranks(module),
                          .scalings = scalings_ + table_begin(module),
                          .a_scale = factors(a_factors_, module),
                          .b_scale = factors(b_factors_, module)});
  }
  return out;
}

std::optional<LoraLayerDesc> DeviceSlots::describe_experts(
    int64_t layer, std::span<const reference::Projection> slices, int32_t rows_per_x) const {
  LoraLayerDesc out;
  out.experts = {.num_experts = int32_t(layout_.num_experts()), .rows_per_x = rows_per_x};
  for (const reference::Projection projection : slices) {
    const ModuleId first{layer, 0, projection};
    const int64_t module = layout_.find(first);
    if (module < 0) return std::nullopt;
    const int64_t stride = layout_.expert_bytes(first) / int64_t(size_bytes(layout_.dtype()));
    out.slices.push_back({.a = a(module),
                          .b = b(module),
                          .ranks = ranks(module),
                          .scalings = scalings_ + table_begin(module),
                          .a_expert_stride = stride,
                          .b_expert_stride = stride});
  }
  return out;
}

}  // namespace loratory::gpu
