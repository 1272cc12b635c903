#pragma once

#include "reference/adapter/adapter.hpp"
#include "reference/model/model.hpp"

namespace loratory::reference {

/// Options that compare what PEFT saved of the base weights with those of `model` [4.9], which
/// outlives them.
LoadOptions adapter_options(const Model& model);

}  // namespace loratory::reference
