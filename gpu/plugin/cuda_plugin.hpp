#pragma once

#include "check/loratory_plugin.h"
#include "gpu/api/lora_layer.hpp"

// The kernels of gpu/ behind the C header of kernels under test: what `loratory check --impl cuda`
// judges, and what libloratory_c.so exports.

namespace loratory::gpu {

/// Null in a build without CUDA kernels.
const LoratoryPlugin* cuda_plugin();

/// What cuda_plugin() says of the kernels.
LoratoryClaims cuda_claims();

/// The layer as a LoraLayer takes it. An embedding is the expand of its column of A. Workspace and
/// router weights come with each call.
/// Errors   InputError: a dtype, operation or layout that there is not.
LoraLayerDesc desc_of(const LoratoryLayer& layer);

/// The tensors of a call; `h` in the place of call.h for an embedding.
LoraTensors tensors_of(const LoratoryLayer& layer, const LoratoryCall& call, void* h);

/// Of run(): room for h, in 8 bits too where x is.
size_t workspace_bytes_of(const LoratoryLayer& layer, int64_t max_tokens);

}  // namespace loratory::gpu
