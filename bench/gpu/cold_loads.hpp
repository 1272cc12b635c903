#pragma once

#include <string>

#include "gpu/engine/device/device_model.hpp"
#include "gpu/product/base_product.hpp"

namespace loratory::gpu {

/// What an adapter that is not on the GPU costs, with adapters of `rank` on all linear layers:
///   the time to first token of a request alone, by where its adapter is: on the GPU, in pinned
///   host memory, in a file that the page cache has, in a file that it has not;
///   the steps of a batch of 32 others that decode, while adapters come from files, beside those
///   of a run without loads, by the GPU's clock and as the host sees them. Nobody asks for these
///   adapters: no tokens of theirs are in the way.
/// Prints tables; returns JSON objects with commas between them. Adapters are written to `folder`.
std::string measure_cold_loads(const std::string& name, const DeviceModel& model,
                               Products& products, int64_t rank, const std::string& folder);

}  // namespace loratory::gpu
