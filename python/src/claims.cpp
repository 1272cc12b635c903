#include "python/src/claims.hpp"

#include <nanobind/stl/vector.h>

#include "check/kernels/kernel.hpp"

namespace loratory::python {

Claims::Claims(const nb::dict& claims) {
  const auto bits = [&](const char* name) { return nb::cast<uint32_t>(claims[name]); };
  const auto number = [&](const char* name) { return nb::cast<int64_t>(claims[name]); };
  using Modes = std::vector<std::vector<int32_t>>;
  for (const auto& mode : nb::cast<Modes>(claims["modes"])) {
    modes_.push_back({mode.at(0), mode.at(1), mode.at(2)});
  }
  claims_.struct_bytes = sizeof claims_;
  claims_.modes = modes_.data();
  claims_.num_modes = std::ssize(modes_);
  claims_.operations = bits("operations");
  claims_.weight_dtypes = bits("weight_dtypes");
  claims_.x_dtypes = bits("x_dtypes");
  claims_.y_dtypes = bits("y_dtypes");
  claims_.h_dtypes = bits("h_dtypes");
  claims_.layouts = bits("layouts");
  claims_.weight_scales = bits("weight_scales");
  claims_.activation_scales = bits("activation_scales");
  claims_.max_rank = number("max_rank");
  claims_.max_slots = number("max_slots");
  claims_.max_slices = number("max_slices");
  claims_.max_tokens = number("max_tokens");
  claims_.max_experts_per_token = number("max_experts_per_token");
  claims_.rank_multiple = number("rank_multiple");
  claims_.num_in_multiple = number("num_in_multiple");
  claims_.num_out_multiple = number("num_out_multiple");
  claims_.alignment = number("alignment");
  claims_.unit = nb::cast<double>(claims["unit"]);
  claims_.operand_rounding = nb::cast<double>(claims["operand_rounding"]);
  claims_.promises = bits("promises");
  claims_.abilities = bits("abilities");
  check::check_claims(claims_);
}

}  // namespace loratory::python
