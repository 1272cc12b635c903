#include <array>
#include <string>

#include "gpu/api/peer_layouts.hpp"
#include "gpu/plugin/cuda_plugin.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

constexpr uint32_t kWideDtypes = 1U << LORATORY_F32 | 1U << LORATORY_F16 | 1U << LORATORY_BF16;
constexpr uint32_t kNarrowDtypes =
    1U << LORATORY_F8_E4M3FN | 1U << LORATORY_F8_E5M2 | 1U << LORATORY_I8;

// All modes but an fp32 h, which tensor cores take as hi + lo.
constexpr std::array<LoratoryMode, 12> kModes{{{1, 0, 0},
                                               {1, 1, 0},
                                               {1, 0, 1},
                                               {1, 1, 1},
                                               {2, 0, 0},
                                               {2, 1, 0},
                                               {2, 0, 1},
                                               {2, 1, 1},
                                               {3, 0, 0},
                                               {3, 1, 0},
                                               {3, 0, 1},
                                               {3, 1, 1}}};

bool is_embedding(const LoratoryLayer& layer) { return layer.operation == LORATORY_OP_EMBEDDING; }
bool has_experts(const LoratoryLayer& layer) {
  return layer.operation >= LORATORY_OP_EXPERT_LINEAR;
}

DeviceView view(const LoratoryTensor& t) {
  if (t.data == nullptr) return {};
  if (t.num_axes < 0 || t.num_axes > 3 || t.dtype < 0 || t.dtype > LORATORY_I8) {
    throw InputError("tensor", "has a dtype or a number of axes that there is not");
  }
  DeviceView out{.dtype = Dtype(t.dtype), .data = t.data, .num_axes = t.num_axes};
  for (int32_t i = 0; i < t.num_axes; ++i) {
    out.shape[size_t(i)] = t.shape[i];
    out.strides[size_t(i)] = t.strides[i];
  }
  return out;
}

// Weights of all experts: the tensor [L, E, R, K] without its second axis.
DeviceView without_experts(const LoratoryTensor& t) {
  LoratoryTensor out = t;
  if (t.data == nullptr || t.num_axes != 4) return view(t);
  out.num_axes = 3;
  for (int i = 1; i < 3; ++i) {
    out.shape[i] = t.shape[i + 1];
    out.strides[i] = t.strides[i + 1];
  }
  return view(out);
}

int64_t expert_stride(const LoratoryTensor& t) { return t.num_axes == 4 ? t.strides[1] : 0; }

LoraSliceDesc slice_of(const LoratorySlice& from) {
  return {.a = without_experts(from.a),
          .b = without_experts(from.b),
          .ranks = from.ranks,
          .scalings = from.scalings,
          .a_expert_stride = expert_stride(from.a),
          .b_expert_stride = expert_stride(from.b),
          .a_scale = view(from.a_scale),
          .b_scale = view(from.b_scale)};
}

LoraOp op_of(const LoratoryLayer& layer) {
  switch (layer.operation) {
    case LORATORY_OP_LINEAR:
    case LORATORY_OP_LOGITS:
    case LORATORY_OP_EXPERT_LINEAR:
      return LoraOp::linear;
    case LORATORY_OP_SHRINK:
    case LORATORY_OP_EXPERT_SHRINK:
      return LoraOp::shrink;
    case LORATORY_OP_EXPAND:
    case LORATORY_OP_EXPERT_EXPAND:
    case LORATORY_OP_EMBEDDING:
      return LoraOp::expand;
    default:
      throw InputError("operation",
                       "is " + std::to_string(layer.operation) + ", which there is not");
  }
}

LoraLayerDesc stacked_desc(const LoratoryLayer& layer) {
  StackedDeviceWeights weights{.a = view(layer.stacked_a),
                               .b = view(layer.stacked_b),
                               .output_offset = {0},
                               .ranks = layer.slices[0].ranks,
                               .scalings = layer.slices[0].scalings};
  for (int64_t i = 0; i < layer.num_slices; ++i) {
    weights.output_offset.push_back(weights.output_offset.back() + layer.slices[i].num_out);
  }
  LoraLayerDesc out = stacked_linear(weights);
  for (size_t i = 0; i < out.slices.size(); ++i) out.slices[i].scalings = layer.slices[i].scalings;
  return out;
}

}  // namespace

LoratoryClaims cuda_claims() {
  LoratoryClaims out{};
  out.struct_bytes = sizeof out;
  out.operations = (1U << LORATORY_NUM_OPERATIONS) - 1;
  out.weight_dtypes = kWideDtypes | kNarrowDtypes;
  out.x_dtypes = kWideDtypes | kNarrowDtypes;
  out.y_dtypes = out.h_dtypes = kWideDtypes;
  out.layouts =
      1U << LORATORY_LAYOUT_SLICES | 1U << LORATORY_LAYOUT_DENSE | 1U << LORATORY_LAYOUT_STACKED;
  out.weight_scales =
      1U << LORATORY_SCALES_TENSOR | 1U << LORATORY_SCALES_CHANNEL | 1U << LORATORY_SCALES_BLOCK;
  out.activation_scales =
      1U << LORATORY_SCALES_TENSOR | 1U << LORATORY_SCALES_TOKEN | 1U << LORATORY_SCALES_BLOCK;
  out.modes = kModes.data();
  out.num_modes = int64_t(kModes.size());
  out.max_slots = 500;  // times eight experts: what the builder of groups has room to count
  out.max_slices = kMaxSlices;
  out.alignment = 1;  // to numbers; vectors where rows and addresses happen to allow them
  out.unit = 0x1p-22;
  out.promises = LORATORY_REPEATABLE | LORATORY_BATCH_INVARIANT | LORATORY_CAPTURABLE;
  out.abilities = LORATORY_TAKES_OFFSET | LORATORY_TAKES_NO_INPUTS | LORATORY_TAKES_GAPS |
                  LORATORY_TAKES_ABSENT_SLICES | LORATORY_TAKES_ROUTER_WEIGHTS |
                  LORATORY_TAKES_ROWS_OF_X | LORATORY_SPLITS_H | LORATORY_TAKES_ABSENT_EXPERTS |
                  LORATORY_TAKES_DISABLED_SLOTS;
  return out;
}

LoraLayerDesc desc_of(const LoratoryLayer& layer) {
  const bool is_stacked = layer.layout == LORATORY_LAYOUT_STACKED;
  LoraLayerDesc out = is_stacked ? stacked_desc(layer) : LoraLayerDesc{.slices = {}};
  out.op = op_of(layer);
  for (int64_t i = 0; !is_stacked && i < layer.num_slices; ++i) {
    out.slices.push_back(slice_of(layer.slices[i]));
  }
  out.offset_start = layer.offset_start;
  out.add_inputs = layer.add_inputs != 0;
  out.mode = {reference::IntermediateMode(layer.mode.h), reference::SumMode(layer.mode.sum),
              reference::ScaleMode(layer.mode.scale)};
  if (has_experts(layer)) {
    out.experts.num_experts = int32_t(layer.num_experts);
    out.experts.rows_per_x = int32_t(layer.rows_per_x);
  }
  out.a_block = {layer.a_block_n, layer.a_block_k};
  out.b_block = {layer.b_block_n, layer.b_block_k};
  return out;
}

LoraTensors tensors_of(const LoratoryLayer& layer, const LoratoryCall& call, void* h) {
  LoraTensors out{.x = view(call.x),
                  .h = view(call.h),
                  .y = view(call.y),
                  .x_scale = view(call.x_scale),
                  .h_scale = view(call.h_scale)};
  if (is_embedding(layer)) {
    out.h = device_view(Dtype::f32, h, {1, call.step->num_tokens, layer.max_rank});
  }
  return out;
}

size_t workspace_bytes_of(const LoratoryLayer& layer, int64_t max_tokens) {
  if (op_of(layer) != LoraOp::linear && !is_embedding(layer)) return 0;
  const int64_t rows = max_tokens * layer.experts_per_token;
  if (layer.activation_scales != LORATORY_SCALES_NONE) {
    return quantized_workspace_bytes(rows, layer.num_slices, layer.max_rank, layer.b_block_k);
  }
  return workspace_bytes(rows, layer.num_slices, layer.max_rank);
}

}  // namespace loratory::gpu
