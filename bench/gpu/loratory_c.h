#pragma once

#include <stdint.h>

#include "check/loratory_plugin.h"

// What libloratory_c.so exports besides loratory_plugin(), whose tensors, slices and dtypes these
// functions take: what a script needs to time our kernels beside those that live in Python, one
// variant at a time, with segments that are there already. What is computed, which shapes fit and
// what a launch promises: gpu/api/lora_layer.hpp. Tensors stay with the caller, in device memory.
//
// Errors  a function that makes something returns null, any other a value that is not 0;
//         loratory_error() then says why, in one line, until the thread's next failure.

#define LORATORY_EXPORT LORATORY_PLUGIN_EXPORT

#ifdef __cplusplus
extern "C" {
#endif

/// gpu::LoraVariant.
struct LoratoryVariant {
  int32_t rank_tiles;
  int32_t token_tiles;
  int32_t cluster;
  int32_t stages;
  int32_t aligned;
  int32_t launches;
  int32_t warps;
};

/// A gpu::LoraLayer.
struct LoratoryTimedLayer;
struct LoratorySegments;

LORATORY_EXPORT const char* loratory_error(void);

/// `op`: LORATORY_OP_LINEAR, _SHRINK or _EXPAND. linear: y += scaling · (x A^T) B^T over the
/// slices, columns from 0, in the default mode. shrink: h = x A^T, h [S, T, >= R]. expand: y +=
/// scaling · h B^T. The workspace of a linear holds h of a step of many tokens: 4 bytes · slices ·
/// tokens · largest rank, padded to a multiple of 4; of the others it may be null. Beside an 8-bit
/// x it holds h in 8 bits too: as much again, and more.
LORATORY_EXPORT struct LoratoryTimedLayer* loratory_layer_create(int32_t op,
                                                                 const struct LoratorySlice* slices,
                                                                 int32_t num_slices,
                                                                 void* workspace,
                                                                 int64_t workspace_bytes);
LORATORY_EXPORT void loratory_layer_destroy(struct LoratoryTimedLayer* layer);

/// What the rules of gpu::choose_variant() choose. `from` and `to` here and below: x and y; a
/// shrink's x and h; an expand's h and y.
LORATORY_EXPORT int loratory_layer_variant(const struct LoratoryTimedLayer* layer,
                                           const struct LoratoryTensor* from,
                                           const struct LoratoryTensor* to,
                                           struct LoratoryVariant* variant);

/// `overlaps_previous` 1: programmatic dependent launch. May be captured into a graph.
/// `from_scale`: f32 factors of an 8-bit x, [T, 1]; null: x is wide.
LORATORY_EXPORT int loratory_layer_launch(const struct LoratoryTimedLayer* layer,
                                          const struct LoratoryVariant* variant,
                                          const struct LoratoryTensor* from,
                                          const struct LoratoryTensor* from_scale,
                                          const struct LoratoryTensor* to,
                                          const struct LoratorySegments* segments, void* stream,
                                          int32_t overlaps_previous);

/// The work list of a step for kernels of `variant`, on the device when this returns.
/// `token_slots` [num_tokens] on the host, each in [-1, max_loras).
LORATORY_EXPORT struct LoratorySegments* loratory_segments_create(
    const int32_t* token_slots, int32_t num_tokens, int32_t max_loras,
    const struct LoratoryVariant* variant);
LORATORY_EXPORT void loratory_segments_destroy(struct LoratorySegments* segments);

/// A slice of an expert layer: A [L, E, R, K] and B [L, E, N, R] row-major, ranks and scalings
/// [L, E], as gpu::expert_slice() takes them.
struct LoratoryExpertSlice {
  void* a;
  void* b;
  const int32_t* ranks;
  const float* scalings;
  int64_t num_out;
};

struct LoratoryExpertLayer;
struct LoratoryGroups;

/// gpu::ExpertLora, linear, in the default mode. x [T, K] with rows_per_x = k, or [T·k, K] with 1.
/// router_weights [T·k] on the device, or null.
LORATORY_EXPORT struct LoratoryExpertLayer* loratory_expert_layer_create(
    int32_t dtype, const struct LoratoryExpertSlice* slices, int32_t num_slices, int64_t num_slots,
    int64_t num_experts, int64_t max_rank, int64_t num_in, int32_t rows_per_x,
    const float* router_weights, void* workspace, int64_t workspace_bytes);
LORATORY_EXPORT void loratory_expert_layer_destroy(struct LoratoryExpertLayer* layer);
LORATORY_EXPORT int loratory_expert_layer_variant(const struct LoratoryExpertLayer* layer,
                                                  const struct LoratoryTensor* x,
                                                  const struct LoratoryTensor* y,
                                                  struct LoratoryVariant* variant);
/// `variant` null: what the rules choose.
LORATORY_EXPORT int loratory_expert_layer_launch(const struct LoratoryExpertLayer* layer,
                                                 const struct LoratoryVariant* variant,
                                                 const struct LoratoryTensor* x,
                                                 const struct LoratoryTensor* y,
                                                 const struct LoratoryGroups* groups, void* stream,
                                                 int32_t overlaps_previous);

/// gpu::ExpertGroups. build: experts [T·k] and slots [T] int32 on the device.
LORATORY_EXPORT struct LoratoryGroups* loratory_groups_create(int64_t max_tokens,
                                                              int32_t experts_per_token,
                                                              int32_t num_experts,
                                                              int32_t num_slots);
LORATORY_EXPORT int loratory_groups_build(const struct LoratoryGroups* groups,
                                          const int32_t* experts, const int32_t* slots,
                                          int64_t num_tokens, void* stream);
LORATORY_EXPORT void loratory_groups_destroy(struct LoratoryGroups* groups);

/// bench::launch_read_node.
LORATORY_EXPORT int loratory_read_node(const void* const* spans, const int64_t* num_bytes,
                                       int32_t num_spans, void* stream);
/// bench::launch_read_stage: the first `num_early` spans, then the others.
LORATORY_EXPORT int loratory_read_stage(const void* const* spans, const int64_t* num_bytes,
                                        int32_t num_early, int32_t num_spans, void* stream);

#ifdef __cplusplus
}
#endif
