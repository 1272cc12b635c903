#pragma once

#include <string>
#include <vector>

#include "gpu/product/base_product.hpp"

namespace loratory::gpu {

/// Times the kernels of a shape on the device, on random weights that come from HBM, and compares
/// the bits of those that order exact may choose with the first's: on random data and on data of a
/// wide range of exponents. `notes` gets a line for each kernel that had other bits.
/// Errors   std::runtime_error: CUDA's name and text, also out of memory.
ProductPlan tune_product(Products& products, const ProductShape& shape,
                         const ProductOptions& options, std::vector<std::string>& notes);

/// Random numbers for products, the same for the same seed; wide: exponents of -20 to 20, of f16 -6
/// to 6.
void fill_random(const DeviceView& to, uint64_t seed, bool wide, CUstream_st* stream);

}  // namespace loratory::gpu
