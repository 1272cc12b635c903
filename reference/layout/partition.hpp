#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "reference/layout/batch_layout.hpp"
#include "reference/layout/chunked_layout.hpp"
#include "reference/layout/request_layout.hpp"

namespace loratory::reference {

/// What every layout says in its own arrays: the tokens of each slot, in the order of the layout.
/// Base tokens are left out. Forms built from one batch give equal partitions [2.27].
using Partition = std::map<int32_t, std::vector<int32_t>>;

Partition partition(const BatchLayout& layout);
Partition partition(const ChunkedLayout& layout, int32_t base_slot);
Partition partition(const RequestLayout& layout);

}  // namespace loratory::reference
