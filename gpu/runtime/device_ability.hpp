#pragma once

namespace loratory::gpu {

/// Whether the current device takes clusters and programmatic dependent launches: sm_90 or later.
/// True where there is no device to ask: plans are for the newest.
bool has_clusters();

/// Whether it has the matrix instructions of a warpgroup: sm_90 alone.
bool has_wgmma();

}  // namespace loratory::gpu
