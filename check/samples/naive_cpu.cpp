// A LoRA kernel for `loratory check --impl ./libnaive_cpu.so`: linear, shrink and expand in host
// memory, fp32 sums, as plain as can be. It includes loratory_plugin.h and nothing else of
// loratory:
//   c++ -std=c++20 -O2 -shared -fPIC -I<loratory> naive_cpu.cpp -o libnaive_cpu.so
#include <cmath>
#include <cstring>
#include <vector>

#include "check/loratory_plugin.h"

namespace {

float read(const LoratoryTensor& t, int64_t offset) {
  const char* const at =
      static_cast<const char*>(t.data) + offset * (t.dtype == LORATORY_F32 ? 4 : 2);
  uint32_t bits = 0;
  if (t.dtype == LORATORY_F32) {
    std::memcpy(&bits, at, 4);
  } else {  // bf16 is the upper half of f32
    uint16_t half = 0;
    std::memcpy(&half, at, 2);
    bits = uint32_t(half) << 16;
  }
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

void write(const LoratoryTensor& t, int64_t offset, float value) {
  char* const at = static_cast<char*>(t.data) + offset * (t.dtype == LORATORY_F32 ? 4 : 2);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  if (t.dtype == LORATORY_F32) return void(std::memcpy(at, &bits, 4));
  // To nearest, ties to even; NaN stays NaN.
  const uint32_t rounded = std::isnan(value) ? bits | 0x400000U : bits + 0x7FFFU + (bits >> 16 & 1);
  const auto half = uint16_t(rounded >> 16);
  std::memcpy(at, &half, 2);
}

// The layer that the harness described; it lives until destroy().
struct State {
  const LoratoryLayer* layer;
  const char* error = "";
};

// h of one token in one slice: the ranks that its adapter has there.
std::vector<float> shrink(const LoratoryLayer& layer, const LoratorySlice& slice,
                          const LoratoryCall& call, int64_t token, int32_t slot) {
  std::vector<float> h(size_t(slice.ranks[slot]));
  for (size_t j = 0; j < h.size(); ++j) {
    const int64_t row = slot * slice.a.strides[0] + int64_t(j) * slice.a.strides[1];
    for (int64_t c = 0; c < layer.num_in; ++c) {
      h[j] += read(slice.a, row + c) * read(call.x, token * call.x.strides[0] + c);
    }
  }
  return h;
}

void expand(const LoratoryLayer& layer, const LoratorySlice& slice, const LoratoryCall& call,
            int64_t token, int32_t slot, int64_t first_column, const std::vector<float>& h) {
  for (int64_t n = 0; n < slice.num_out; ++n) {
    float sum = 0;
    const int64_t row = slot * slice.b.strides[0] + n * slice.b.strides[1];
    for (size_t j = 0; j < h.size(); ++j) sum += h[j] * read(slice.b, row + int64_t(j));
    const int64_t at = token * call.y.strides[0] + first_column + n;
    const float delta = slice.scalings[slot] * sum;
    write(call.y, at, layer.add_inputs != 0 ? read(call.y, at) + delta : delta);
  }
}

void run_slice(const LoratoryLayer& layer, const LoratoryCall& call, int64_t i, int64_t token,
               int32_t slot, int64_t first_column) {
  const LoratorySlice& slice = layer.slices[i];
  const int64_t row_of_h = i * call.h.strides[0] + token * call.h.strides[1];
  std::vector<float> h;
  if (layer.operation == LORATORY_OP_EXPAND) {
    h.resize(size_t(slice.ranks[slot]));
    for (size_t j = 0; j < h.size(); ++j) h[j] = read(call.h, row_of_h + int64_t(j));
  } else {
    h = shrink(layer, slice, call, token, slot);
  }
  if (layer.operation == LORATORY_OP_SHRINK) {
    for (size_t j = 0; j < h.size(); ++j) write(call.h, row_of_h + int64_t(j), h[j]);
  } else if (!h.empty()) {  // rank 0: the adapter leaves these columns alone
    expand(layer, slice, call, token, slot, first_column, h);
  }
}

int create(void*, const LoratoryLayer* layer, void** state) {
  *state = new State{layer};
  return 0;
}

int run(void* state, const LoratoryCall* call, void*) {
  const LoratoryLayer& layer = *static_cast<State*>(state)->layer;
  for (int64_t t = 0; t < call->step->num_tokens; ++t) {
    const int32_t slot = call->step->slots[t];
    int64_t column = layer.offset_start;
    for (int64_t i = 0; slot >= 0 && i < layer.num_slices; ++i) {
      run_slice(layer, *call, i, t, slot, column);
      column += layer.slices[i].num_out;
    }
  }
  return 0;
}

void destroy(void* state) { delete static_cast<State*>(state); }

}  // namespace

extern "C" const LoratoryPlugin* loratory_plugin(void) {
  static LoratoryClaims claims{};
  claims.struct_bytes = sizeof claims;
  claims.operations =
      1U << LORATORY_OP_LINEAR | 1U << LORATORY_OP_SHRINK | 1U << LORATORY_OP_EXPAND;
  claims.weight_dtypes = 1U << LORATORY_F32 | 1U << LORATORY_BF16;
  claims.layouts = 1U << LORATORY_LAYOUT_SLICES | 1U << LORATORY_LAYOUT_DENSE;
  claims.promises = LORATORY_REPEATABLE | LORATORY_BATCH_INVARIANT;
  claims.abilities = LORATORY_TAKES_OFFSET | LORATORY_TAKES_NO_INPUTS | LORATORY_TAKES_GAPS |
                     LORATORY_TAKES_ABSENT_SLICES;
  static LoratoryPlugin plugin{};
  plugin.struct_bytes = sizeof plugin;
  plugin.version = LORATORY_PLUGIN_VERSION;
  plugin.name = "naive_cpu, a sample";
  plugin.memory = LORATORY_MEMORY_HOST;
  plugin.claims = &claims;
  plugin.create = create;
  plugin.run = run;
  plugin.destroy = destroy;
  return &plugin;
}
