#include "reference/layout/sampler_mapping.hpp"

#include <fmt/format.h>

#include <limits>

#include "reference/base/input_error.hpp"

namespace loratory::reference {

SamplerMapping make_sampler_mapping(std::span<const SampledRequest> requests) {
  std::vector<RequestTokens> tokens;
  for (const SampledRequest& r : requests) tokens.push_back(r.tokens);
  check_requests(tokens);
  SamplerMapping mapping;
  int32_t begin = 0;
  for (const SampledRequest& r : requests) {
    const int32_t end = begin + r.tokens.num_tokens;
    const int32_t num_rows = r.prompt_logprobs ? end - begin : (r.samples && end > begin ? 1 : 0);
    for (int32_t token = end - num_rows; token < end; ++token) {
      mapping.row_slots.push_back(r.tokens.slot);
      mapping.row_tokens.push_back(token);
    }
    begin = end;
  }
  return mapping;
}

std::vector<int32_t> padded_sampler_indices(std::span<const int32_t> row_slots, int32_t max_loras) {
  check_slots(row_slots, max_loras);
  const auto num_rows = int32_t(row_slots.size());
  if ((int64_t{max_loras} + 1) * num_rows > std::numeric_limits<int32_t>::max()) {
    throw InputError(
        "max_loras",
        fmt::format("{} with {} rows has indices beyond 2^31 - 1", max_loras, num_rows),
        "use fewer slots or rows");
  }
  std::vector<int32_t> indices;
  for (int32_t i = 0; i < num_rows; ++i) {
    const int32_t slot = row_slots[i] == kBaseSlot ? max_loras : row_slots[i];
    indices.push_back(i + slot * num_rows);
  }
  return indices;
}

}  // namespace loratory::reference
