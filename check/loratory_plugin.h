#ifndef LORATORY_PLUGIN_H
#define LORATORY_PLUGIN_H

#include <stdint.h>

/// A LoRA kernel as `loratory check` calls it. C11, no dependency, one exported function:
///
///     const struct LoratoryPlugin* loratory_plugin(void);
///
/// check/samples/naive_cpu.cpp and naive_cuda.cu are whole plugins in under 150 lines;
/// docs/check.md is the way from there to a report.
///
/// Letters   T tokens of a step, K in-features, L slots (max_loras), S slices of a packed layer, R
///           rows of a slot's buffer in one slice, N_i columns of slice i, o_i = offset_start + N_0
///           + ... + N_{i-1}, s(t) slot of token t, -1 for the base model, r(s, i) rank of slot s
///           in slice i; 0: the adapter has no such slice, or the slot is empty.
/// Covered   row t and columns [o_i, o_i + N_i) of y where s(t) >= 0 and r(s(t), i) > 0. Nothing
///           else of y may be written, nothing else of any tensor may be read: rows of base tokens,
///           what lies beyond the rank, between rows or in empty slots holds NaN.
/// Memory    the harness allocates everything in the memory that the claims name and owns it; what
///           create() sees lives until destroy(), what run() sees until the stream has passed.
///           Names that begin with `host_` are in host memory whatever the claims say.
/// Strides   in elements, 64-bit, not negative, outermost axis first; the innermost is 1.
/// Errors    a function that returns int returns 0, or anything else for a failure; error() then
///           says why in one line. Nothing may be thrown, and the process may not end.
/// Threads   calls come one at a time, from one thread. Several layers may be alive at once.
///
/// Growing   new fields come behind those that are there, in structs that begin with
/// `struct_bytes`:
///           where they end for who filled them in. What lies beyond counts as 0. The other structs
///           stay as they are; `version` changes with anything else.

#define LORATORY_PLUGIN_VERSION 1

#if defined(__GNUC__) || defined(__clang__)
#define LORATORY_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define LORATORY_PLUGIN_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Number formats, in the order of reference::Dtype. Sets of them: bit 1 << dtype.
enum LoratoryDtype {
  LORATORY_F32 = 0,
  LORATORY_F16 = 1,
  LORATORY_BF16 = 2,
  LORATORY_F8_E4M3FN = 3,
  LORATORY_F8_E5M2 = 4,
  LORATORY_I8 = 5
};

/// What a layer computes. Sets of them: bit 1 << operation.
///
/// linear   y[t, o_i + n] = base + scaling · sum_j B_i[s, n, j] · (sum_c A_i[s, j, c] · x[t, c])
/// shrink   h[i, t, j] = sum_c A_i[s, j, c] · x[t, c], j < r(s, i); no scaling
/// expand   y[t, o_i + n] = base + scaling · sum_j h[i, t, j] · B_i[s, n, j]
/// embedding  y[t, n] = base + scaling · sum_j A[s, j, id(t)] · B[s, n, j]; one slice, K = V,
///          offset_start 0
/// logits   linear on one slice, whose rows are rows of logits; `slots` has one for each of them
/// expert_* the same on row t·k + i: token t at its i-th expert e. A [L, E, R, K],
///          B [L, E, N_i, R], ranks and scalings [L, E]; delta is multiplied by the row's router
///          weight, after scaling and before it is rounded
///
/// base is what y holds before the call; 0, and y not read, where add_inputs is 0: linear
/// and expand alone.
/// With 8-bit weights (and activations) a number is its bits times its factor: LoratoryScales.
enum LoratoryOperation {
  LORATORY_OP_LINEAR = 0,
  LORATORY_OP_SHRINK = 1,
  LORATORY_OP_EXPAND = 2,
  LORATORY_OP_EMBEDDING = 3,
  LORATORY_OP_LOGITS = 4,
  LORATORY_OP_EXPERT_LINEAR = 5,
  LORATORY_OP_EXPERT_SHRINK = 6,
  LORATORY_OP_EXPERT_EXPAND = 7,
  LORATORY_NUM_OPERATIONS = 8
};

/// Where the weights of a slot lie. Sets of them: bit 1 << layout.
enum LoratoryLayout {
  /// A tensor for each slice, any strides.
  LORATORY_LAYOUT_SLICES = 0,
  /// The same without gaps: vLLM's lora_a_stacked [L, 1, R, K] and lora_b_stacked [L, 1, N_i, R].
  LORATORY_LAYOUT_DENSE = 1,
  /// SGLang's and TokenSpeed's pool: `stacked_a` [L, S·R, K], where slice i of slot s has rows
  /// [i·r, (i + 1)·r), r being the slot's rank; `stacked_b` [L, sum N_i, R]. A slot's rank and
  /// scaling are the same in all slices. linear alone; the slices' own a and b are null.
  LORATORY_LAYOUT_STACKED = 2
};

/// What h is between shrink and expand, how delta meets base, where scaling is applied: the values
/// of reference::NumericMode (reference/numerics/numeric_mode.hpp).
enum LoratoryHMode {
  LORATORY_H_FP32 = 0,            ///< the fp32 accumulator
  LORATORY_H_SPLIT2 = 1,          ///< hi + lo, both of the dtype of B
  LORATORY_H_CAST_TO_WEIGHT = 2,  ///< fp32, rounded to the dtype of B before it meets B (vLLM)
  LORATORY_H_STORE_AS_X = 3       ///< a buffer of x's dtype (SGLang)
};
enum LoratorySumMode {
  LORATORY_SUM_ONE_ROUND = 0,  ///< y = round(base + d)
  LORATORY_SUM_TWO_ROUND = 1   ///< y = round(base + round(d))
};
enum LoratoryScaleMode {
  LORATORY_SCALE_ACCUMULATOR = 0,  ///< d = scaling · sum
  LORATORY_SCALE_FOLDED_B = 1  ///< scaling · B rounded to B's dtype, then no product at the end
};
struct LoratoryMode {
  int32_t h;
  int32_t sum;
  int32_t scale;
};

/// What shares one fp32 factor in an 8-bit tensor. Sets of them: bit 1 << scales.
/// Weights: tensor [L], channel [L, R] and [L, N_i], block [L, ceil(R/n), ceil(K/k)] and
/// [L, ceil(N_i/n), ceil(R/k)]. x and h: tensor [] and [S], token [T, 1] and [S, T, 1], block
/// [T, ceil(K/k)] and [S, T, ceil(R/k)]. Block goes with block.
enum LoratoryScales {
  LORATORY_SCALES_NONE = 0,  ///< not an 8-bit tensor
  LORATORY_SCALES_TENSOR = 1,
  LORATORY_SCALES_CHANNEL = 2,
  LORATORY_SCALES_TOKEN = 3,
  LORATORY_SCALES_BLOCK = 4
};

enum LoratoryMemory { LORATORY_MEMORY_HOST = 0, LORATORY_MEMORY_CUDA = 1 };

/// A view. Element [i, j, ...] lies at data + size·(i·strides[0] + j·strides[1] + ...). data is
/// null where the operation has no such tensor.
struct LoratoryTensor {
  void* data;
  int64_t shape[4];
  int64_t strides[4];
  int32_t num_axes;
  int32_t dtype;
};

/// One of the outputs packed into a layer, for all slots.
struct LoratorySlice {
  struct LoratoryTensor a;        ///< [L, R, K]; experts: [L, E, R, K]; not of an expand
  struct LoratoryTensor b;        ///< [L, N_i, R]; experts: [L, E, N_i, R]; not of a shrink
  struct LoratoryTensor a_scale;  ///< f32; of 8-bit weights
  struct LoratoryTensor b_scale;
  const int32_t* ranks;       ///< [L], experts [L, E]; each in [0, R]
  const float* scalings;      ///< [L], experts [L, E]; not of a shrink
  const int32_t* host_ranks;  ///< the same numbers in host memory
  const float* host_scalings;
  int64_t num_out;  ///< N_i
};

/// One operation on one packed layer, as create() sees it. The numbers behind the pointers may
/// change (weights_changed()); everything in these structs stays.
struct LoratoryLayer {
  uint32_t struct_bytes;
  int32_t operation;
  int32_t layout;
  int32_t weight_dtype;  ///< of A and B; of x too, unless they are 8-bit
  int32_t x_dtype;       ///< linear, shrink, logits
  int32_t h_dtype;       ///< of the tensor h of shrink and expand
  int32_t y_dtype;
  struct LoratoryMode mode;  ///< one of the modes claimed
  int32_t add_inputs;        ///< 0: y = delta
  int64_t num_slots;         ///< L
  int64_t max_rank;          ///< R
  int64_t num_in;            ///< K; V of an embedding
  int64_t num_columns;       ///< of y: where the last slice ends
  int64_t offset_start;      ///< first column of slice 0
  int64_t max_tokens;        ///< no step has more

  int64_t num_slices;  ///< S
  const struct LoratorySlice* slices;
  struct LoratoryTensor stacked_a;  ///< LORATORY_LAYOUT_STACKED
  struct LoratoryTensor stacked_b;

  int32_t weight_scales;         ///< LoratoryScales of A and B
  int32_t activation_scales;     ///< of x, of h in an expand
  int64_t a_block_n, a_block_k;  ///< rows and columns under one factor
  int64_t b_block_n, b_block_k;

  int64_t num_experts;        ///< E; 1 without experts
  int64_t experts_per_token;  ///< k; 1 without experts
  int64_t rows_per_x;         ///< k: row r is made from row r / k of x [T, K]; 1: x is [T·k, K]
  int32_t has_router_weights;
};

/// Whose tokens. The arrays keep their addresses from capture to replay; the numbers do not.
struct LoratoryStep {
  uint32_t struct_bytes;
  int64_t num_tokens;    ///< T
  const int32_t* slots;  ///< [T] each in [-1, L)
  const int32_t* host_slots;
  const int64_t* token_ids;  ///< [T] each in [0, V); embedding
  const int64_t* host_token_ids;
  /// [T·k] each in [0, E), those of a token distinct. With LORATORY_TAKES_ABSENT_EXPERTS some are
  /// -1: that expert lies elsewhere (expert parallel), and nothing of its row is covered.
  const int32_t* experts;
  const int32_t* host_experts;
  const float* router_weights;  ///< [T·k] or null
  /// [L], of experts with LORATORY_TAKES_DISABLED_SLOTS. 0: the slot's tokens are as the base
  /// model's. Null: all are on.
  const int32_t* enabled;
  const int32_t* host_enabled;
};

struct LoratoryCall {
  uint32_t struct_bytes;
  const struct LoratoryStep* step;
  struct LoratoryTensor x;  ///< [T, K]
  struct LoratoryTensor x_scale;
  struct LoratoryTensor h;  ///< [S, T, R]; [S, T·k, R]: written by shrink, read by expand
  struct LoratoryTensor h_scale;
  struct LoratoryTensor y;  ///< [T, num_columns]; [T·k, num_columns]
  void* workspace;          ///< 256-byte aligned; NaN before every call, between guards
  int64_t workspace_bytes;
};

/// What a kernel promises beyond numbers. Each is checked; what is not promised is reported only.
enum LoratoryPromise {
  LORATORY_REPEATABLE = 1 << 0,       ///< the same call gives the same bits
  LORATORY_BATCH_INVARIANT = 1 << 1,  ///< a row's bits are those of the row alone
  LORATORY_CAPTURABLE = 1 << 2        ///< run() may be captured into a CUDA graph, prepare() not
};

/// What a kernel can and cannot take. The harness draws nothing else.
enum LoratoryAbility {
  LORATORY_TAKES_OFFSET = 1 << 0,         ///< offset_start > 0
  LORATORY_TAKES_NO_INPUTS = 1 << 1,      ///< add_inputs 0
  LORATORY_TAKES_GAPS = 1 << 2,           ///< rows of x, h, y (and A, B) that lie apart
  LORATORY_TAKES_ABSENT_SLICES = 1 << 3,  ///< a slot of rank 0 in one slice and not in another
  LORATORY_TAKES_ROUTER_WEIGHTS = 1 << 4,
  LORATORY_TAKES_ROWS_OF_X = 1 << 5,  ///< experts: rows_per_x = 1 as well as k
  /// All R ranks are multiplied: zeros and not NaN lie beyond the rank (vLLM's kernels), as bits
  /// and as factors, and a shrink may write zeros there.
  LORATORY_READS_BEYOND_RANK = 1 << 6,
  /// Results of products and sums below the normal range become 0.
  LORATORY_FLUSHES_SUBNORMALS = 1 << 7,
  /// Beside 8-bit weights: an h of f32 meets B as hi + lo in bf16.
  LORATORY_SPLITS_H = 1 << 8,
  LORATORY_TAKES_ABSENT_EXPERTS = 1 << 9,  ///< experts of -1: LoratoryStep
  LORATORY_TAKES_DISABLED_SLOTS = 1 << 10  ///< experts: LoratoryStep::enabled
};

/// What there is to judge. 0 in a limit: none.
struct LoratoryClaims {
  uint32_t struct_bytes;  ///< sizeof(struct LoratoryClaims)
  uint32_t operations;
  uint32_t weight_dtypes;  ///< with f32, f16, bf16: those of x too; 8-bit: linear, shrink, expand
  uint32_t x_dtypes;       ///< beside 8-bit weights: of x, and of h in an expand
  uint32_t y_dtypes;       ///< 0: as the weights (as x beside 8-bit ones)
  uint32_t h_dtypes;       ///< of h in shrink and expand; 0: f32
  uint32_t layouts;
  uint32_t weight_scales;            ///< of 8-bit weights, which need some: tensor, channel, block
  uint32_t activation_scales;        ///< of 8-bit x and h, likewise: tensor, token, block
  const struct LoratoryMode* modes;  ///< null: the default, {0, 0, 0}
  int64_t num_modes;
  int64_t max_rank;  ///< this and the next four: 0, no limit
  int64_t max_slots;
  int64_t max_slices;
  int64_t max_tokens;
  int64_t max_experts_per_token;
  /// Of R; true ranks are any up to R. This and the next two: up to 65,536; 0: any size.
  int64_t rank_multiple;
  int64_t num_in_multiple;
  int64_t num_out_multiple;  ///< of every N_i and of offset_start
  /// Bytes that the first element and every row of A, B, x, h and y are aligned to, and in some
  /// cases the first element no further: a power of two. 0: rows as their dtype, and the first
  /// element to 256 in every case.
  int64_t alignment;
  /// Relative error of one product or sum in the accumulators: 2^-24 for fp32, 2^-22 for tensor
  /// cores, which truncate. 0: 2^-24. From n·unit = 1 on nothing bounds the error of a sum of n
  /// terms, so that K and ranks are drawn up to 1/(4·unit), or one multiple if that is more.
  double unit;
  /// Of an operand rounded before the product, summed over both: 2^-10 for TF32. 0: none.
  double operand_rounding;
  uint32_t promises;
  uint32_t abilities;
};

struct LoratoryPlugin {
  uint32_t struct_bytes;  ///< sizeof(struct LoratoryPlugin)
  uint32_t version;       ///< LORATORY_PLUGIN_VERSION
  const char* name;       ///< one line
  int32_t memory;         ///< LoratoryMemory
  const struct LoratoryClaims* claims;
  void* context;  ///< the plugin's own; create() gets it

  /// `layer` and the tensors it names live until destroy(). *state comes back in every other call.
  int (*create)(void* context, const struct LoratoryLayer* layer, void** state);
  /// Bytes of run()'s workspace for steps of up to `max_tokens`, 2^40 at most; null: none.
  int64_t (*workspace_bytes)(void* state, int64_t max_tokens);
  /// Once for each step before its run(), outside any graph: where engines build their metadata.
  /// The step's arrays lie where those of run() will. May be null.
  int (*prepare)(void* state, const struct LoratoryStep* step, void* stream);
  /// In order on `stream` (a CUstream; null on the host). May return before the work is done on a
  /// device. With LORATORY_CAPTURABLE the stream may be capturing: no allocation, no waiting.
  int (*run)(void* state, const struct LoratoryCall* call, void* stream);
  /// An adapter came into a slot, or left it: A, B, factors, rank and scaling are others now, at
  /// the same addresses. Called between runs. May be null.
  int (*weights_changed)(void* state, int32_t slot);
  void (*destroy)(void* state);
  /// Why the last call failed. May be null.
  const char* (*error)(void* context);
};

/// Where a plugin is a shared library of its own.
LORATORY_PLUGIN_EXPORT const struct LoratoryPlugin* loratory_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
