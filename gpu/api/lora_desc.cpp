#include "gpu/api/lora_desc.hpp"

#include <fmt/format.h>

#include <ostream>

namespace loratory::gpu {
namespace {

constexpr const char* kIntermediateModes[] = {"fp32", "split2", "cast_to_weight", "store_as_x"};
constexpr const char* kSumModes[] = {"one_round", "two_round"};
constexpr const char* kScaleModes[] = {"accumulator", "folded_b"};

}  // namespace

std::string describe(const LoraLayerDesc& desc) {
  std::string slices;
  for (const LoraSliceDesc& slice : desc.slices) {
    slices += fmt::format(
        "{}{{a={} b={} ranks={} scalings={} a_rank_steps={} a_expert_stride={} "
        "b_expert_stride={}",
        slices.empty() ? "" : ", ", describe(slice.a), describe(slice.b), fmt::ptr(slice.ranks),
        fmt::ptr(slice.scalings), slice.a_rank_steps, slice.a_expert_stride, slice.b_expert_stride);
    if (slice.a_scale.data != nullptr) slices += " a_scale=" + describe(slice.a_scale);
    if (slice.b_scale.data != nullptr) slices += " b_scale=" + describe(slice.b_scale);
    slices += "}";
  }
  const auto blocks = [](const char* key, const reference::BlockSize& block) {
    return block.k == 0 ? "" : fmt::format(" {}={}x{}", key, block.n, block.k);
  };
  return fmt::format(
      "op={} slices=[{}] offset_start={} add_inputs={} mode={{h={} sum={} scale={}}} "
      "num_experts={} rows_per_x={} router_weights={} workspace={} workspace_bytes={} "
      "split_sums={} split_sums_bytes={}{}{}",
      name(desc.op), slices, desc.offset_start, desc.add_inputs,
      kIntermediateModes[size_t(desc.mode.h)], kSumModes[size_t(desc.mode.sum)],
      kScaleModes[size_t(desc.mode.scale)], desc.experts.num_experts, desc.experts.rows_per_x,
      fmt::ptr(desc.experts.router_weights), fmt::ptr(desc.workspace), desc.workspace_bytes,
      fmt::ptr(desc.split_sums), desc.split_sums_bytes, blocks("a_block", desc.a_block),
      blocks("b_block", desc.b_block));
}

std::ostream& operator<<(std::ostream& out, const LoraLayerDesc& d) { return out << describe(d); }

}  // namespace loratory::gpu
