#pragma once

#include <cstdint>
#include <string>

#include "gpu/model/batch_view.hpp"
#include "gpu/model/kv_view.hpp"
#include "gpu/runtime/device_view.hpp"

// Rules that several kernels of a model share. Each throws InputError "<place>: <rule>".

namespace loratory::gpu {

void require(bool ok, const std::string& place, const std::string& rule);

/// A matrix [rows, columns] of f32, f16 or bf16, its columns side by side, its rows apart.
void check_matrix(const DeviceView& view, const std::string& place);
/// The same, with this shape and dtype.
void check_matrix_like(const DeviceView& view, reference::Dtype dtype, int64_t rows,
                       int64_t columns, const std::string& place);
/// What every kernel reads of a batch: its counts and arrays by token.
void check_batch(const BatchView& batch, const std::string& place);
/// The blocks of a batch, and that they are those of the KV.
void check_blocks(const BatchView& batch, const KvView& kv, const std::string& place);

/// Whether every row begins at a multiple of 16 bytes.
bool has_aligned_rows(const DeviceView& view);

}  // namespace loratory::gpu
