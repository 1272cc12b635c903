#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "python/src/arrays.hpp"
#include "reference/layout/chunked_layout.hpp"
#include "reference/layout/request_layout.hpp"
#include "reference/layout/sampler_mapping.hpp"

namespace loratory::python {
namespace {

using reference::RequestTokens;
using Requests = std::vector<std::pair<int32_t, int32_t>>;  // slot, number of tokens

std::vector<RequestTokens> requests_of(const Requests& requests) {
  std::vector<RequestTokens> out;
  for (const auto& [slot, num_tokens] : requests) out.push_back({slot, num_tokens});
  return out;
}

nb::dict batch_layout(const Int32s& slots, int32_t max_loras, int32_t num_padded_tokens) {
  reference::BatchLayout layout;
  without_gil([&] { reference::build(slots, max_loras, num_padded_tokens, layout); });
  nb::dict out;
  out["token_lora_mapping"] = to_numpy(std::move(layout.token_lora_mapping));
  out["token_indices_sorted"] = to_numpy(std::move(layout.token_indices_sorted));
  out["active_lora_ids"] = to_numpy(std::move(layout.active_lora_ids));
  out["num_tokens_per_lora"] = to_numpy(std::move(layout.num_tokens_per_lora));
  out["lora_token_start_loc"] = to_numpy(std::move(layout.lora_token_start_loc));
  out["no_lora"] = layout.no_lora;
  out["num_active"] = layout.num_active;
  return out;
}

nb::dict chunked_layout(const Requests& requests, int32_t segment_size, const Int32s& ranks,
                        const Floats& scalings) {
  reference::ChunkedLayout layout;
  without_gil(
      [&] { reference::build(requests_of(requests), segment_size, ranks, scalings, layout); });
  nb::dict out;
  out["permutation"] = to_numpy(std::move(layout.permutation));
  out["weight_indices"] = to_numpy(std::move(layout.weight_indices));
  out["seg_indptr"] = to_numpy(std::move(layout.seg_indptr));
  out["lora_ranks"] = to_numpy(std::move(layout.lora_ranks));
  out["scalings"] = to_numpy(std::move(layout.scalings));
  return out;
}

nb::dict request_layout(const Requests& requests, const Int32s& ranks, const Floats& scalings) {
  reference::RequestLayout layout;
  without_gil([&] { reference::build(requests_of(requests), ranks, scalings, layout); });
  nb::dict out;
  out["seg_lens"] = to_numpy(std::move(layout.seg_lens));
  out["seg_indptr"] = to_numpy(std::move(layout.seg_indptr));
  out["weight_indices"] = to_numpy(std::move(layout.weight_indices));
  out["max_len"] = layout.max_len;
  out["sort_order"] = to_numpy(std::move(layout.sort_order));
  out["group_slots"] = to_numpy(std::move(layout.group_slots));
  out["group_starts"] = to_numpy(std::move(layout.group_starts));
  out["group_sizes"] = to_numpy(std::move(layout.group_sizes));
  out["num_groups"] = layout.num_groups;
  out["max_group_size"] = layout.max_group_size;
  out["single_lora_slot"] = layout.single_lora_slot;
  out["single_lora_rank"] = layout.single_lora_rank;
  out["multi_lora_start_slot"] = layout.multi_lora_start_slot;
  out["multi_lora_count"] = layout.multi_lora_count;
  out["multi_lora_segment_len"] = layout.multi_lora_segment_len;
  out["multi_lora_rank"] = layout.multi_lora_rank;
  return out;
}

using Sampled = std::vector<std::tuple<int32_t, int32_t, bool, bool>>;

nb::dict sampler_mapping(const Sampled& requests) {
  reference::SamplerMapping mapping = without_gil([&] {
    std::vector<reference::SampledRequest> sampled;
    for (const auto& [slot, num_tokens, samples, prompt_logprobs] : requests) {
      sampled.push_back({{slot, num_tokens}, samples, prompt_logprobs});
    }
    return reference::make_sampler_mapping(sampled);
  });
  nb::dict out;
  out["row_slots"] = to_numpy(std::move(mapping.row_slots));
  out["row_tokens"] = to_numpy(std::move(mapping.row_tokens));
  return out;
}

}  // namespace

void add_layouts(nb::module_& m) {
  m.def("token_slots", [](const Requests& requests) {
    return to_numpy(without_gil([&] { return reference::token_slots(requests_of(requests)); }));
  });
  m.def("batch_layout", &batch_layout);
  m.def("chunked_layout", &chunked_layout);
  m.def("request_layout", &request_layout);
  m.def("sampler_mapping", &sampler_mapping);
}

}  // namespace loratory::python
