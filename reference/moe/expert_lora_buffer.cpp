#include "reference/moe/expert_lora_buffer.hpp"

#include <fmt/format.h>

#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"

namespace loratory::reference {

ExpertLoraBuffer::ExpertLoraBuffer(Dtype dtype, const ExpertBufferSizes& sizes)
    : sizes_(sizes),
      a_(dtype, {sizes.max_loras, sizes.num_experts, sizes.max_rank, sizes.num_in}),
      b_(dtype, {sizes.max_loras, sizes.num_experts, sizes.num_out, sizes.max_rank}),
      ranks_(size_t(sizes.max_loras * sizes.num_experts), 0),
      scalings_(ranks_.size(), 0.0F) {}

void ExpertLoraBuffer::check(int32_t slot) const {
  if (slot >= 0 && slot < sizes_.max_loras) return;
  throw InputError("ExpertLoraBuffer: slot", fmt::format("{} does not exist", slot));
}

void ExpertLoraBuffer::check(int32_t slot, const LoraModule& module) const {
  const std::string place = fmt::format("slot {}, {}", slot, to_string(module.id));
  check_shape(place + ": A", module.a, {module.rank, sizes_.num_in});
  check_shape(place + ": B", module.b, {sizes_.num_out, module.rank});
  check_wide_dtype(place + ": A", module.a.dtype);
  check_wide_dtype(place + ": B", module.b.dtype);
  if (module.rank > sizes_.max_rank) {
    throw InputError(place,
                     fmt::format("rank {} does not fit in {}", module.rank, sizes_.max_rank));
  }
}

void ExpertLoraBuffer::write(int32_t slot, int64_t expert, const LoraModule* module) {
  const int64_t rank = module == nullptr ? 0 : module->rank;
  const auto index = size_t(slot * sizes_.num_experts + expert);
  ranks_[index] = int32_t(rank);
  scalings_[index] = module == nullptr ? 0 : module->scaling;
  for (int64_t j = 0; j < sizes_.max_rank; ++j) {
    for (int64_t c = 0; c < sizes_.num_in; ++c) {
      a_.set(j < rank ? module->a.get(j, c) : 0, slot, expert, j, c);
    }
    for (int64_t n = 0; n < sizes_.num_out; ++n) {
      b_.set(j < rank ? module->b.get(n, j) : 0, slot, expert, n, j);
    }
  }
}

void ExpertLoraBuffer::load(int32_t slot, const Adapter& adapter, int64_t layer,
                            Projection projection, int64_t first_expert) {
  check(slot);
  std::vector<const LoraModule*> modules;
  for (int64_t e = 0; e < sizes_.num_experts; ++e) {
    modules.push_back(adapter.find({layer, first_expert + e, projection}));
    if (modules.back() != nullptr) check(slot, *modules.back());
  }
  for (int64_t e = 0; e < sizes_.num_experts; ++e) write(slot, e, modules[size_t(e)]);
}

void ExpertLoraBuffer::clear(int32_t slot) {
  check(slot);
  for (int64_t e = 0; e < sizes_.num_experts; ++e) write(slot, e, nullptr);
}

}  // namespace loratory::reference
