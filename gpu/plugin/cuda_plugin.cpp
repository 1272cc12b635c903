#include <cuda_runtime_api.h>

#include <array>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/model/embedding_lora.hpp"
#include "gpu/moe/expert_groups.hpp"
#include "gpu/plugin/cuda_plugin.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"

namespace loratory::gpu {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

// Nothing may be thrown through C.
template <typename Body>
int guarded(Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error() = error.what();
  }
  return 1;
}

bool is_of_experts(const LoratoryLayer& layer) {
  return layer.operation >= LORATORY_OP_EXPERT_LINEAR;
}

// What an engine has once for all layers, here for each: the segments of the step, and the ids of
// an embedding as 32-bit numbers.
struct State {
  const LoratoryLayer* layer;
  std::unique_ptr<DeviceSegmentBuilder> segments;
  std::unique_ptr<ExpertGroups> groups;
  DeviceBuffer ids;

  explicit State(const LoratoryLayer& of) : layer(&of) {
    const int64_t room = of.max_tokens > 0 ? of.max_tokens : 1;
    if (is_of_experts(of)) {
      groups = std::make_unique<ExpertGroups>(
          ExpertGroupsShape{.max_tokens = room,
                            .experts_per_token = int32_t(of.experts_per_token),
                            .num_experts = int32_t(of.num_experts),
                            .num_slots = int32_t(of.num_slots)});
    } else {
      segments = std::make_unique<DeviceSegmentBuilder>(room, int32_t(of.num_slots),
                                                        std::span<const int32_t>(kGroupSizes));
    }
    if (of.operation == LORATORY_OP_EMBEDDING) ids = make_device_buffer(size_t(room) * 4);
    LoraLayer{desc_of(of)};  // says now what it cannot take
  }

  void prepare(const LoratoryStep& step, CUstream_st* stream) const {
    if (step.num_tokens == 0) return;
    if (groups) {
      groups->build({.num_tokens = step.num_tokens,
                     .experts = step.experts,
                     .slots = step.slots,
                     .adapter_enabled = step.enabled},
                    stream);
    } else {
      segments->build(step.slots, step.num_tokens, stream);
    }
    if (!ids) return;
    const std::vector<int32_t> narrow(step.host_token_ids, step.host_token_ids + step.num_tokens);
    LORATORY_CUDA_CHECK(cudaMemcpyAsync(ids.get(), narrow.data(), narrow.size() * 4,
                                        cudaMemcpyHostToDevice, stream));
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream));  // of `narrow`
  }

  void run(const LoratoryCall& call, CUstream_st* stream) const {
    if (call.step->num_tokens == 0) return;
    LoraLayerDesc desc = desc_of(*layer);
    desc.experts.router_weights = call.step->router_weights;
    if (desc.op == LoraOp::linear) {
      desc.workspace = call.workspace;
      desc.workspace_bytes = size_t(call.workspace_bytes);
    }
    const LoraTensors tensors = tensors_of(*layer, call, call.workspace);
    if (ids) {
      const LoraSliceDesc& slice = desc.slices[0];
      shrink_embedding({.a = slice.a,
                        .ranks = slice.ranks,
                        .slots = call.step->slots,
                        .ids = reinterpret_cast<const int32_t*>(ids.get()),
                        .h = tensors.h},
                       stream);
    }
    const LoraLayer of(std::move(desc));
    const LoraVariant variant = of.variant_for(tensors);
    const int32_t size = variant.segment_size();
    const SegmentView view = groups ? groups->views().of(size) : segments->view(size);
    of.launch_variant(variant, tensors, view, stream);
  }
};

int create(void*, const LoratoryLayer* layer, void** state) {
  return guarded([&] { *state = new State(*layer); });
}
int64_t workspace(void* state, int64_t max_tokens) {
  return int64_t(workspace_bytes_of(*static_cast<State*>(state)->layer, max_tokens));
}
int prepare(void* state, const LoratoryStep* step, void* stream) {
  return guarded(
      [&] { static_cast<State*>(state)->prepare(*step, static_cast<CUstream_st*>(stream)); });
}
int run(void* state, const LoratoryCall* call, void* stream) {
  return guarded(
      [&] { static_cast<State*>(state)->run(*call, static_cast<CUstream_st*>(stream)); });
}
void destroy(void* state) { delete static_cast<State*>(state); }
const char* error(void*) { return last_error().c_str(); }

LoratoryPlugin make_plugin() {
  static const LoratoryClaims kClaims = cuda_claims();
  LoratoryPlugin out{};
  out.version = LORATORY_PLUGIN_VERSION;
  out.struct_bytes = sizeof(LoratoryPlugin);
  out.name = "the CUDA kernels of loratory";
  out.memory = LORATORY_MEMORY_CUDA;
  out.claims = &kClaims;
  out.create = create;
  out.workspace_bytes = workspace;
  out.prepare = prepare;
  out.run = run;
  out.destroy = destroy;
  out.error = error;
  return out;
}

}  // namespace

const LoratoryPlugin* cuda_plugin() {
  static const LoratoryPlugin kPlugin = make_plugin();
  return &kPlugin;
}

}  // namespace loratory::gpu
