// A CUDA kernel for `loratory check --impl ./libnaive_cuda.so`: linear in bf16 or f32, a thread for
// each element of y. It includes loratory_plugin.h and nothing else of loratory:
//   nvcc -std=c++20 -shared -Xcompiler -fPIC -I<loratory> naive_cuda.cu -o libnaive_cuda.so
// All that it needs of a layer it copies into a small struct, which the launch takes by value, so
// that the launch may be captured: replays read ranks, slots and weights that lie there by then.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "check/loratory_plugin.h"

namespace {

constexpr int kMostSlices = 8;
constexpr int kThreads = 128;

struct Slice {
  const void* a;
  const void* b;
  int64_t a_slot, a_row, b_slot, b_row;  // strides in elements
  const int32_t* ranks;
  const float* scalings;
  int64_t begin, end;  // columns of y
};

struct Launch {
  Slice slices[kMostSlices];
  int64_t num_slices, num_in, num_tokens, x_row, y_row;
  const void* x;
  void* y;
  const int32_t* slots;
  int add_inputs;
};

__device__ float read(const float* at) { return *at; }
__device__ float read(const __nv_bfloat16* at) { return __bfloat162float(*at); }
__device__ void write(float* at, float value) { *at = value; }
__device__ void write(__nv_bfloat16* at, float value) { *at = __float2bfloat16_rn(value); }

// blockIdx.x: 128 columns of a slice, y: token, z: slice. Every thread computes h anew: naive.
template <typename Number>
__global__ void lora_kernel(Launch launch) {
  const Slice& slice = launch.slices[blockIdx.z];
  const int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x, token = blockIdx.y;
  const int32_t slot = launch.slots[token];
  if (slot < 0 || n >= slice.end - slice.begin) return;  // nothing of y may be touched
  const int32_t rank = slice.ranks[slot];
  if (rank == 0) return;
  const Number* const x = static_cast<const Number*>(launch.x) + token * launch.x_row;
  const Number* const a = static_cast<const Number*>(slice.a) + slot * slice.a_slot;
  const Number* const b =
      static_cast<const Number*>(slice.b) + slot * slice.b_slot + n * slice.b_row;
  float sum = 0;
  for (int32_t j = 0; j < rank; ++j) {
    float h = 0;
    for (int64_t c = 0; c < launch.num_in; ++c) h += read(x + c) * read(a + j * slice.a_row + c);
    sum += h * read(b + j);
  }
  Number* const y = static_cast<Number*>(launch.y) + token * launch.y_row + slice.begin + n;
  const float delta = slice.scalings[slot] * sum;
  write(y, launch.add_inputs != 0 ? read(y) + delta : delta);
}

struct State {
  const LoratoryLayer* layer;
  Launch launch{};
  int64_t most_columns = 0;
};

const char* last_error = "";

int create(void*, const LoratoryLayer* layer, void** state) {
  auto* const out = new State{layer};
  int64_t column = layer->offset_start;
  for (int64_t i = 0; i < layer->num_slices; ++i) {
    const LoratorySlice& s = layer->slices[i];
    out->launch.slices[i] = {s.a.data,       s.b.data,          s.a.strides[0], s.a.strides[1],
                             s.b.strides[0], s.b.strides[1],    s.ranks,        s.scalings,
                             column,         column + s.num_out};
    column += s.num_out;
    out->most_columns = s.num_out > out->most_columns ? s.num_out : out->most_columns;
  }
  out->launch.num_slices = layer->num_slices;
  out->launch.num_in = layer->num_in;
  out->launch.add_inputs = layer->add_inputs;
  *state = out;
  return 0;
}

int run(void* state, const LoratoryCall* call, void* stream) {
  State& of = *static_cast<State*>(state);
  if (call->step->num_tokens == 0) return 0;
  of.launch.num_tokens = call->step->num_tokens;
  of.launch.slots = call->step->slots;
  of.launch.x = call->x.data, of.launch.x_row = call->x.strides[0];
  of.launch.y = call->y.data, of.launch.y_row = call->y.strides[0];
  const dim3 grid(unsigned((of.most_columns + kThreads - 1) / kThreads),
                  unsigned(of.launch.num_tokens), unsigned(of.launch.num_slices));
  const auto on = static_cast<cudaStream_t>(stream);
  if (of.layer->weight_dtype == LORATORY_F32) {
    lora_kernel<float><<<grid, kThreads, 0, on>>>(of.launch);
  } else {
    lora_kernel<__nv_bfloat16><<<grid, kThreads, 0, on>>>(of.launch);
  }
  const cudaError_t error = cudaGetLastError();
  last_error = cudaGetErrorString(error);
  return int(error);
}

void destroy(void* state) { delete static_cast<State*>(state); }
const char* error(void*) { return last_error; }

}  // namespace

extern "C" const LoratoryPlugin* loratory_plugin(void) {
  static LoratoryClaims claims{};
  claims.struct_bytes = sizeof claims;
  claims.operations = 1U << LORATORY_OP_LINEAR;
  claims.weight_dtypes = 1U << LORATORY_F32 | 1U << LORATORY_BF16;
  claims.layouts = 1U << LORATORY_LAYOUT_SLICES | 1U << LORATORY_LAYOUT_DENSE;
  claims.max_slices = kMostSlices;
  claims.promises = LORATORY_REPEATABLE | LORATORY_BATCH_INVARIANT | LORATORY_CAPTURABLE;
  claims.abilities = LORATORY_TAKES_OFFSET | LORATORY_TAKES_NO_INPUTS | LORATORY_TAKES_GAPS |
                     LORATORY_TAKES_ABSENT_SLICES;
  static LoratoryPlugin plugin{};
  plugin.struct_bytes = sizeof plugin;
  plugin.version = LORATORY_PLUGIN_VERSION;
  plugin.name = "naive_cuda, a sample";
  plugin.memory = LORATORY_MEMORY_CUDA;
  plugin.claims = &claims;
  plugin.create = create;
  plugin.run = run;
  plugin.destroy = destroy;
  plugin.error = error;
  return &plugin;
}
