#pragma once

#include <span>
#include <string_view>

namespace loratory::reference {

/// A published model under a short name: `config` is the config.json of `repository` on the Hugging
/// Face hub, cut to the fields that parse_model_config reads.
struct ModelPreset {
  std::string_view name, repository, config;
};

/// The one list of models, in the order in which `--help` shows it.
std::span<const ModelPreset> model_presets();

}  // namespace loratory::reference
