#include "reference/moe/router.hpp"

#include <fmt/format.h>

#include "reference/base/input_error.hpp"

namespace loratory::reference {

void check_num_chosen(int64_t k, int64_t num_experts) {
  if (k >= 1 && k <= num_experts) return;
  throw InputError("router: k", fmt::format("{} experts of {} are asked for", k, num_experts));
}

}  // namespace loratory::reference
