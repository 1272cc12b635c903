// launch_lora() on an emulated GPU: the kernels of variant_table.hpp, in bf16 with y in bf16 and in
// f16 with y in fp32, and the generic path.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "gpu/kernels/generic_lora.cuh"
#include "gpu/kernels/lora_kernel.cuh"
#include "gpu/plan/lora_launch.hpp"
#include "gpu/plan/variant_table.hpp"
#include "gpu/plan/work_list.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "tests/gpu/emulated/emulated_gpu.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr int kSms = 6;
constexpr int kSharedBytes = 227 * 1024;  // of a CTA on Hopper
uint64_t seed = 1;

template <typename C>
void run_kernel(const LoraLaunch& launch) {
  KernelParams params = launch.params;
  params.num_sms = kSms;
  const int shared_bytes = C::shared_bytes(params.h_width);
  if (shared_bytes > kSharedBytes) {
    throw InputError("variant", "needs more shared memory than a GPU has");
  }
  const auto clusters = int(std::min<int64_t>(std::max(1, kSms / C::kCluster),
                                              most_clusters({launch.op, C::kNumWarps}, params)));
  params.num_clusters = clusters;
  emulated::run({.num_threads = C::kNumThreads,
                 .cluster = launch.variant.launched_cluster(),
                 .num_clusters = clusters * C::kCluster / launch.variant.launched_cluster(),
                 .shared_bytes = size_t(shared_bytes),
                 .seed = seed++},
                [&](std::byte* shared) { LoraCta<C>(params, shared).run(); });
}

template <typename Weight, typename Out, LoraOp kOp, size_t... i>
void run_variant(const LoraLaunch& launch, std::index_sequence<i...>) {
  ((launch.variant == variants_of(kOp)[i]
        ? run_kernel<Config<Weight, Out, kOp, variants_of(kOp)[i]>>(launch)
        : void()),
   ...);
}
template <typename Weight, typename Out, LoraOp kOp>
void run_op(const LoraLaunch& launch) {
  run_variant<Weight, Out, kOp>(launch, std::make_index_sequence<variants_of(kOp).size()>{});
}
template <typename Weight, typename Out>
void run_launch(const LoraLaunch& launch) {
  if (launch.op == LoraOp::shrink)
    run_op<Weight, Weight, LoraOp::shrink>(launch);
  else if (launch.op == LoraOp::expand)
    run_op<Weight, Out, LoraOp::expand>(launch);
  else if (launch.op == LoraOp::linear)
    run_op<Weight, Out, LoraOp::linear>(launch);
  else if constexpr (std::is_same_v<Weight, Out>) {
    if (launch.op == LoraOp::gated_expand)
      run_op<Weight, Out, LoraOp::gated_expand>(launch);
    else
      run_op<Weight, Out, LoraOp::gated_expand_shrink>(launch);
  }
}

template <LoraOp kOp>
void run_generic(const LoraLaunch& launch) {
  const generic::Params params{launch.params, launch.dtypes, launch.mode};
  emulated::run({.num_threads = generic::kNumThreads,
                 .num_clusters = kSms,
                 .shared_bytes = sizeof(generic::Shared),
                 .seed = seed++},
                [&](std::byte* shared) {
                  wait_for_prior_grid();
                  generic::Cta<kOp>(params, *reinterpret_cast<generic::Shared*>(shared)).run();
                });
}
void run_generic(const LoraLaunch& launch) {
  if (launch.op == LoraOp::shrink) return run_generic<LoraOp::shrink>(launch);
  if (launch.op == LoraOp::expand) return run_generic<LoraOp::expand>(launch);
  run_generic<LoraOp::linear>(launch);
}

/// Launches follow each other here, so that an expand that reads y early finds it. It may do so
/// only behind a kernel that lets it start once y is settled.
void check_early_reads(const LoraLaunch& launch) {
  static bool is_y_settled = false;
  LORATORY_ASSERT(!launch.params.may_read_y_early || is_y_settled,
                  "y may not be written when the expand reads it");
  is_y_settled =
      launch.op == LoraOp::shrink && launch.variant.is_wide() && !launch.params.x_is_ready;
}

}  // namespace

void launch_lora(const LoraLaunch& launch) {
  check_early_reads(launch);
  if (launch.path == LoraPath::generic) return run_generic(launch);
  if (launch.dtypes.weight == Dtype::bf16)
    run_launch<__nv_bfloat16, __nv_bfloat16>(launch);
  else
    run_launch<__half, float>(launch);
}

}  // namespace loratory::gpu
