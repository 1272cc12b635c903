#include "gpu/engine/slot_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <iterator>

#include "gpu/engine/arena.hpp"
#include "gpu/engine/fp8_matrix.hpp"
#include "reference/adapter/dequantize.hpp"
#include "reference/adapter/expand_module.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using reference::Adapter;
using reference::BaseModelShapes;
using reference::ConstTensorView;
using reference::Dtype;
using reference::EnabledModules;
using reference::LoraModule;
using reference::Matrix;
using reference::ModuleId;
using reference::Projection;

namespace {

constexpr Projection kExpertProjections[] = {Projection::gate, Projection::up, Projection::down};
constexpr int64_t kNumExpertProjections = std::size(kExpertProjections);
constexpr int kPoisonByte = 0xFF;  // 8, 16 or 32 bits of ones: NaN
constexpr int64_t kFp8Ranks = 16;  // of a vector
constexpr int kLoadThreads = 4;    // of one load: more than one is needed to fill the memory's bus

std::vector<ModuleId> enabled_modules(const BaseModelShapes& shapes,
                                      const EnabledModules& enabled) {
  std::vector<ModuleId> out;
  if (enabled.embed_tokens) out.push_back({-1, -1, Projection::embed_tokens});
  if (enabled.lm_head) out.push_back({-1, -1, Projection::lm_head});
  for (int64_t layer = 0; layer < shapes.num_layers; ++layer) {
    const auto add = [&](std::initializer_list<Projection> all) {
      for (const Projection p : all) out.push_back({layer, -1, p});
    };
    if (enabled.attention) add({Projection::q, Projection::k, Projection::v, Projection::o});
    const bool has_experts = shapes.num_experts > 0 && (shapes.layer_has_experts.empty() ||
                                                        shapes.layer_has_experts[size_t(layer)]);
    if (!has_experts && enabled.mlp) add({Projection::gate, Projection::up, Projection::down});
    for (int64_t e = 0; has_experts && enabled.experts && e < shapes.num_experts; ++e) {
      for (const Projection p : kExpertProjections) out.push_back({layer, e, p});
    }
  }
  return out;
}

}  // namespace

SlotLayout::SlotLayout(const BaseModelShapes& shapes, const EnabledModules& enabled,
                       int64_t max_rank, Dtype weights)
    : dtype_(weights), max_rank_(max_rank), num_experts_(shapes.num_experts) {
  LORATORY_ASSERT(max_rank >= 1, "slots hold an adapter of some rank");
  if (has_factors()) {
    LORATORY_ASSERT(weights == Dtype::f8_e4m3fn, "slots of 8 bits hold f8_e4m3fn");
    max_rank_ = max_rank = (max_rank + kFp8Ranks - 1) / kFp8Ranks * kFp8Ranks;
    if (num_experts_ > 0 && enabled.experts) {
      throw InputError("fp8 slots", "hold no experts, which have 16-bit kernels alone",
                       "leave out --lora-dtype fp8");
    }
  }
  const auto size = int64_t(size_bytes(weights));
  Arena arena;
  for (const ModuleId& id : enabled_modules(shapes, enabled)) {
    const auto [rows, columns] = base_shape(shapes, id.projection, id.expert >= 0);
    SlotModule& module = modules_.emplace_back();
    module.id = id;
    module.num_in = columns;
    module.num_out = rows;
    module.a_offset = arena.add(max_rank * columns * size);
    module.b_offset = arena.add(rows * max_rank * size);
  }
  ranks_offset_ = arena.add(int64_t(modules_.size()) * 4);
  scalings_offset_ = arena.add(int64_t(modules_.size()) * 4);
  factors_offset_ = arena.add(has_factors() ? int64_t(modules_.size()) * 8 : 0);
  bytes_ = arena.bytes();
}

int64_t SlotLayout::find(const ModuleId& id) const {
  const auto it = std::ranges::lower_bound(modules_, id, {}, &SlotModule::id);
  return it != modules_.end() && it->id == id ? it - modules_.begin() : -1;
}

int64_t SlotLayout::expert_bytes(const ModuleId& first) const {
  const int64_t one = find(first), next = find({first.layer, first.expert + 1, first.projection});
  if (one < 0 || next < 0) return 0;  // a single expert
  return modules_[size_t(next)].a_offset - modules_[size_t(one)].a_offset;
}

SlotLayout::TablePlace SlotLayout::table_place(int64_t module, int32_t max_loras) const {
  const ModuleId& id = modules_[size_t(module)].id;
  if (id.expert < 0) return {int32_t(module * max_loras), 1};
  const int64_t first = module - id.expert * kNumExpertProjections;  // of expert 0
  const int64_t projection = first - find({id.layer, 0, Projection::gate});
  const int64_t begin = (first - projection + projection * num_experts_) * max_loras;
  return {int32_t(begin + id.expert), int32_t(num_experts_)};
}

std::string SlotLayout::problem(const Adapter& adapter) const {
  for (const LoraModule& module : adapter.modules) {
    if (find(module.id) < 0) {
      return fmt::format("slots have no room for {}", to_string(module.id));
    }
    if (module.rank > max_rank_) {
      return fmt::format("{} has rank {}, slots have room for {}", to_string(module.id),
                         module.rank, max_rank_);
    }
  }
  return "";
}

namespace {

// bf16 or f16
uint16_t to_bits(Dtype dtype, float value) {
  if (dtype != Dtype::bf16) return uint16_t(encode(dtype, value));
  const auto bits = std::bit_cast<uint32_t>(value);  // finite: a loader has seen to it
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rows of stored numbers as they are, or false.
bool copy_rows(const ConstTensorView& from, Dtype dtype, int64_t row_size, std::byte* out) {
  if (from.dtype != dtype || (from.size(1) > 1 && from.strides[1] != 1)) return false;
  const size_t size = size_bytes(dtype);
  if (from.size(1) == row_size && from.strides[0] == row_size) {
    std::memcpy(out, from.data, size_t(from.size(0) * row_size) * size);
    return true;
  }
  for (int64_t i = 0; i < from.size(0); ++i) {
    std::memcpy(out + size_t(i * row_size) * size, from[i].data, size_t(from.size(1)) * size);
  }
  return true;
}

void round_rows(const Matrix<float>& from, Dtype dtype, int64_t row_size, std::byte* out) {
  for (Eigen::Index i = 0; i < from.rows(); ++i) {
    for (Eigen::Index j = 0; j < from.cols(); ++j) {
      const int64_t at = i * row_size + j;
      if (dtype == Dtype::f32) {
        std::memcpy(out + at * 4, &from(i, j), 4);
        continue;
      }
      const uint16_t bits = to_bits(dtype, from(i, j));
      std::memcpy(out + at * 2, &bits, sizeof bits);
    }
  }
}

}  // namespace

namespace {

void write_numbers(const SlotLayout& layout, const LoraModule& from, const SlotModule& to,
                   std::span<std::byte> image) {
  std::byte* const a = image.data() + to.a_offset;
  std::byte* const b = image.data() + to.b_offset;
  if (!copy_rows(from.a, layout.dtype(), to.num_in, a)) {
    round_rows(dequantized_a(from), layout.dtype(), to.num_in, a);
  }
  if (!copy_rows(from.b, layout.dtype(), layout.max_rank(), b)) {
    round_rows(dequantized_b(from), layout.dtype(), layout.max_rank(), b);
  }
}

void write_factors(const SlotLayout& layout, const LoraModule& from, int64_t index,
                   std::span<std::byte> image) {
  const SlotModule& to = layout.modules()[size_t(index)];
  const float a = write_fp8(from.a, from.a_scale, to.num_in, image.data() + to.a_offset);
  const float b = write_fp8(from.b, from.b_scale, layout.max_rank(), image.data() + to.b_offset);
  std::byte* const factors = image.data() + layout.factors_offset();
  std::memcpy(factors + index * 4, &a, sizeof a);
  std::memcpy(factors + (int64_t(layout.modules().size()) + index) * 4, &b, sizeof b);
}

// Where the next module begins.
int64_t end_of(const SlotLayout& layout, int64_t index) {
  const auto modules = layout.modules();
  const auto next = size_t(index) + 1;
  return next < modules.size() ? modules[next].a_offset : layout.ranks_offset();
}

void poison(std::span<std::byte> image, int64_t begin, int64_t end) {
  std::memset(image.data() + begin, kPoisonByte, size_t(end - begin));
}

// What lies beyond the ranks of a module, or all of an absent one. Rows of B beyond its numbers are
// between them: these are written afterwards.
void poison_module(const SlotLayout& layout, const LoraModule* from, int64_t index,
                   std::span<std::byte> image) {
  const SlotModule& to = layout.modules()[size_t(index)];
  const int64_t end = end_of(layout, index);
  if (from == nullptr) return poison(image, to.a_offset, end);
  const auto size = int64_t(size_bytes(layout.dtype()));
  const bool is_full = from->rank == layout.max_rank();
  poison(image, to.a_offset + from->rank * to.num_in * size, to.b_offset);
  poison(image, to.b_offset + (is_full ? to.num_out * layout.max_rank() * size : 0), end);
}

void write_module(const SlotLayout& layout, const LoraModule& from, int64_t index,
                  std::span<std::byte> image) {
  if (layout.has_factors())
    write_factors(layout, from, index, image);
  else
    write_numbers(layout, from, layout.modules()[size_t(index)], image);
  const auto rank = int32_t(from.rank);
  std::memcpy(image.data() + layout.ranks_offset() + index * 4, &rank, sizeof rank);
  std::memcpy(image.data() + layout.scalings_offset() + index * 4, &from.scaling,
              sizeof from.scaling);
}

}  // namespace

void write_slot_image(const SlotLayout& layout, const Adapter& adapter,
                      std::span<std::byte> image) {
  LORATORY_ASSERT(int64_t(image.size()) == layout.bytes(), "the image of a slot");
  LORATORY_ASSERT(layout.problem(adapter).empty(), "an adapter that was looked at before");
  const auto num_modules = int64_t(layout.modules().size());
  poison(image, layout.ranks_offset(), layout.bytes());
  std::memset(image.data() + layout.ranks_offset(), 0, size_t(num_modules) * 4);
  std::memset(image.data() + layout.scalings_offset(), 0, size_t(num_modules) * 4);
  std::exception_ptr error;  // one that left the loop would end the program
#pragma omp parallel for schedule(dynamic) num_threads(kLoadThreads)
  for (int64_t i = 0; i < num_modules; ++i) {
    try {
      const LoraModule* const from = adapter.find(layout.modules()[size_t(i)].id);
      poison_module(layout, from, i, image);
      if (from != nullptr) write_module(layout, *from, i, image);
    } catch (...) {
#pragma omp critical(write_slot_image)
      error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace loratory::gpu
