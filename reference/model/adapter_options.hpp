#pragma once

#include <string>

#include "reference/adapter/adapter.hpp"
#include "reference/model/model.hpp"

namespace loratory::reference {

/// Options that compare what PEFT saved of the base weights with those of `model` [4.9], which
/// outlives them.
LoadOptions adapter_options(const Model& model);

/// The same for an engine that keeps its weights elsewhere: they are read in the model's folder,
/// which stays mapped as long as the options live.
/// Errors   InputError as of Checkpoint.
LoadOptions adapter_options(const std::string& directory, const ModelConfig& config);

}  // namespace loratory::reference
