#include "gpu/plugin/cuda_plugin.hpp"

#include <gtest/gtest.h>

#include "check/cases/draw_case.hpp"
#include "check/kernels/kernel.hpp"
#include "check/kernels/place_case.hpp"
#include "check/kernels/reference_call.hpp"

// What a build without CUDA can say of the plugin: that the cases which its claims allow are layers
// that LoraLayer takes, and that their views point where the case's tensors are.

namespace loratory::gpu {
namespace {

TEST(CudaPlugin, LayersOfItsClaimsAreTaken) {
  const LoratoryClaims claims = cuda_claims();
  for (int operation = 0; operation < LORATORY_NUM_OPERATIONS; ++operation) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const check::Case c = check::draw_case(seed, {.claims = claims,
                                                    .operation = LoratoryOperation(operation),
                                                    .max_products = 1 << 14,
                                                    .max_weights = 1 << 16});
      SCOPED_TRACE(check::label_of(c));
      const check::CaseData data(c);
      const check::InHostMemory placed(data, data.step);
      LoraLayerDesc desc = desc_of(placed.layer());
      const size_t bytes = workspace_bytes_of(placed.layer(), c.num_tokens);
      std::vector<std::byte> workspace(bytes + 1);
      desc.experts.router_weights = placed.call().step->router_weights;
      if (desc.op == LoraOp::linear)
        desc.workspace = workspace.data(), desc.workspace_bytes = bytes;
      const LoraLayer layer(desc);
      const LoraTensors tensors = tensors_of(placed.layer(), placed.call(), workspace.data());
      if (c.num_tokens > 0) {
        EXPECT_GT(layer.variant_for(tensors).segment_size(), 0);
      }
      const bool is_stacked = c.layout == LORATORY_LAYOUT_STACKED;
      if (!is_stacked && !c.expands()) {
        EXPECT_EQ(desc.slices[0].a.data, data.slices[0].a->bytes().data());
      }
    }
  }
}

TEST(CudaPlugin, StackedSlicesBeginAtTheTrueRank) {
  const check::CaseData data(
      check::case_named("linear.K16.N8+24.r4,2.R8.s0,1.bf16.o8.stacked.split2.seed3"));
  const check::InHostMemory placed(data, data.step);
  const LoraLayerDesc desc = desc_of(placed.layer());
  ASSERT_EQ(desc.slices.size(), 2u);
  EXPECT_EQ(desc.slices[1].a_rank_steps, 1);
  EXPECT_EQ(desc.slices[1].a.data, data.stacked_a->bytes().data());
  EXPECT_EQ(desc.slices[1].b.data, data.stacked_b->view().address(0, 8, 0));
  EXPECT_EQ(desc.offset_start, 8);
}

TEST(CudaPlugin, AnExpertIsAsFarAsItsAxisSays) {
  const check::CaseData data(
      check::case_named("expert_linear.K16.N8.r4,2.s0,1.bf16.E3.k2.gaps.split2.seed3"));
  const check::InHostMemory placed(data, data.step);
  const LoraSliceDesc slice = desc_of(placed.layer()).slices[0];
  EXPECT_EQ(slice.a_expert_stride, data.slices[0].a->strides()[1]);
  EXPECT_EQ(slice.a.strides[1], data.slices[0].a->strides()[2]);
  EXPECT_EQ(slice.b.shape[1], 8);
}

}  // namespace
}  // namespace loratory::gpu
