#pragma once

#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {

/// What an InputError from `action` says; "" when there is none.
template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

}  // namespace loratory::gpu
