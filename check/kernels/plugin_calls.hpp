#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string_view>

#include "check/kernels/kernel.hpp"

namespace loratory::check {

/// A kernel refused what it claims to take, or failed at it.
class KernelFailed : public std::runtime_error {
  using runtime_error::runtime_error;
};

/// Calls a function of the plugin; `function` is its name, such as "run()".
/// Errors   KernelFailed: it returned anything but 0, or threw. std::bad_alloc passes: memory that
///          ends is not the kernel's fault.
void must_succeed(const Kernel& kernel, std::string_view function,
                  const std::function<int()>& call);

/// Of a step of `max_tokens`; 0 if the plugin needs none.
/// Errors   KernelFailed: it threw, or it returned what no workspace can be.
int64_t workspace_bytes(const Kernel& kernel, void* state, int64_t max_tokens);

}  // namespace loratory::check
