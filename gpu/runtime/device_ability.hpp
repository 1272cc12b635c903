#pragma once

namespace loratory::gpu {

/// Whether the current device has clusters and programmatic dependent launches: sm_90 or later.
/// True without a device, because plans are then made for the newest.
bool has_clusters();

/// Whether it has wgmma, the matrix instructions of a warpgroup: sm_90 alone.
bool has_wgmma();

/// The SMs of the current device. Errors: std::runtime_error without one.
int num_sms();

}  // namespace loratory::gpu
