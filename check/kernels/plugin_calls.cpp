#include "check/kernels/plugin_calls.hpp"

#include <fmt/format.h>

#include "check/library/guarded_call.hpp"
#include "reference/base/escape.hpp"

namespace loratory::check {
namespace {

constexpr int64_t kMostWorkspace = int64_t(1) << 40;  // more is no size but a mistake

const char* error_text(const Kernel& kernel) {
  const auto error = kernel.plugin().error;
  if (error == nullptr) return nullptr;
  return guarded<KernelFailed>("error()", [&] { return error(kernel.plugin().context); });
}

}  // namespace

void must_succeed(const Kernel& kernel, std::string_view function,
                  const std::function<int()>& call) {
  const int status = guarded<KernelFailed>(function, call);
  if (status == 0) return;
  const char* const text = error_text(kernel);
  throw KernelFailed(fmt::format("{} returned {}: {}", function, status,
                                 text == nullptr ? "no error text" : printable(text)));
}

int64_t workspace_bytes(const Kernel& kernel, void* state, int64_t max_tokens) {
  const auto ask = kernel.plugin().workspace_bytes;
  if (ask == nullptr) return 0;
  const int64_t bytes =
      guarded<KernelFailed>("workspace_bytes()", [&] { return ask(state, max_tokens); });
  if (bytes < 0 || bytes > kMostWorkspace) {
    throw KernelFailed(
        fmt::format("workspace_bytes() returned {}, which is not within [0, 2^40]", bytes));
  }
  return bytes;
}

}  // namespace loratory::check
