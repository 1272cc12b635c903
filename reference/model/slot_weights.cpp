#include "reference/model/slot_weights.hpp"

#include <algorithm>
#include <limits>

#include "reference/adapter/dequantize.hpp"
#include "reference/adapter/expand_module.hpp"
#include "reference/adapter/fp8_weights.hpp"
#include "reference/base/check.hpp"

namespace loratory::reference {

namespace {

void poison(const TensorView& view) {
  for (int64_t i = 0; i < view.size(0); ++i) {
    for (int64_t j = 0; j < view.size(1); ++j) {
      view.set(std::numeric_limits<float>::quiet_NaN(), i, j);
    }
  }
}

// All of `from` into the corner of `to`.
void write(const Matrix<float>& from, const TensorView& to) {
  for (Eigen::Index i = 0; i < from.rows(); ++i) {
    for (Eigen::Index j = 0; j < from.cols(); ++j) to.set(from(i, j), i, j);
  }
}

}  // namespace

SlotWeights::SlotWeights(const BaseModelShapes& shapes, int32_t max_loras, int64_t max_rank,
                         Dtype dtype)
    : max_rank_(max_rank), dtype_(dtype), contents_(size_t(max_loras)) {
  LORATORY_ASSERT(dtype == Dtype::f32 || dtype == Dtype::f8_e4m3fn, "slots hold f32 or f8_e4m3fn");
  for (int64_t layer = 0; layer < shapes.num_layers; ++layer) {
    for (const Projection p : {Projection::q, Projection::k, Projection::v, Projection::o}) {
      add_module(shapes, {layer, -1, p});
    }
    for (const Projection p : {Projection::gate, Projection::up, Projection::down}) {
      if (shapes.intermediate > 0) add_module(shapes, {layer, -1, p});
      for (int64_t e = 0; e < shapes.num_experts; ++e) add_module(shapes, {layer, e, p});
    }
    for (const Projection p : {Projection::shared_gate, Projection::shared_up,
                               Projection::shared_down, Projection::shared_router}) {
      if (shapes.shared_expert_intermediate > 0) add_module(shapes, {layer, -1, p});
    }
    if (shapes.router_has_lora) add_module(shapes, {layer, -1, Projection::router});
  }
  add_module(shapes, {-1, -1, Projection::embed_tokens});
  add_module(shapes, {-1, -1, Projection::lm_head});
  for (int32_t slot = 0; slot < max_loras; ++slot) begin_fill(slot);
}

void SlotWeights::add_module(const BaseModelShapes& shapes, const ModuleId& id) {
  const auto [rows, columns] = base_shape(shapes, id.projection, id.expert >= 0);
  const int64_t num_slots = max_loras();
  modules_.insert({id,
                   {.a = {Dtype::f32, {num_slots, max_rank_, columns}},
                    .b = {Dtype::f32, {num_slots, rows, max_rank_}},
                    .ranks = std::vector<int32_t>(contents_.size()),
                    .scalings = std::vector<float>(contents_.size())}});
}

bool SlotWeights::fits(const Adapter& adapter) const {
  return std::ranges::all_of(adapter.modules, [&](const LoraModule& m) {
    return m.rank <= max_rank_ && modules_.contains(m.id);
  });
}

const SlotContent& SlotWeights::content(int32_t slot) const {
  LORATORY_ASSERT(slot >= 0 && slot < max_loras(), "a slot of this engine");
  return contents_[size_t(slot)];
}

void SlotWeights::clear(Module& module, int32_t slot) {
  poison(module.a.view()[slot]);
  poison(module.b.view()[slot]);
  module.ranks[size_t(slot)] = 0;
  module.scalings[size_t(slot)] = 0;
}

void SlotWeights::begin_fill(int32_t slot) {
  LORATORY_ASSERT(slot >= 0 && slot < max_loras(), "a slot of this engine");
  contents_[size_t(slot)] = {};
  for (auto& [id, module] : modules_) clear(module, slot);
}

void SlotWeights::fill(int32_t slot, const Adapter& adapter, const SlotContent& content) {
  LORATORY_ASSERT(fits(adapter), "an adapter that does not fit is refused when it is loaded");
  begin_fill(slot);
  for (auto& [id, module] : modules_) {
    const LoraModule* source = adapter.find(id);
    if (source == nullptr) continue;
    const bool is_fp8 = dtype_ == Dtype::f8_e4m3fn;
    write(is_fp8 ? fp8_a(*source).numbers() : dequantized_a(*source), module.a.view()[slot]);
    write(is_fp8 ? fp8_b(*source).numbers() : dequantized_b(*source), module.b.view()[slot]);
    module.ranks[size_t(slot)] = int32_t(source->rank);
    module.scalings[size_t(slot)] = source->scaling;
  }
  contents_[size_t(slot)] = content;
}

std::vector<LoraSlice> SlotWeights::slices(const LinearRef& linear) const {
  std::vector<LoraSlice> out;
  for (const Projection p : projections(linear.kind)) {
    const auto module = modules_.find({linear.layer, linear.expert, p});
    LORATORY_ASSERT(module != modules_.end(), "a layer of the model");
    out.push_back(module->second.slice());
  }
  return out;
}

LoraSlice SlotWeights::embedding() const {
  return modules_.at({-1, -1, Projection::embed_tokens}).slice();
}

}  // namespace loratory::reference
