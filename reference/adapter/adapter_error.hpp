#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reference/base/input_error.hpp"

namespace loratory::reference {

/// Why an adapter was refused [4.15] [4.16]. The names are the E_ words without E_.
enum class AdapterErrorCode : uint8_t {
  io,           ///< a file is missing, cannot be read, or breaks its own format
  config,       ///< a field of adapter_config.json; the detail names it
  key,          ///< a tensor whose name means nothing here
  pair,         ///< lora_A without lora_B, or the reverse
  shape,        ///< a tensor does not fit the base model, or its own size
  dtype,        ///< a number format that weights of adapters cannot have
  rank,         ///< above max_lora_rank
  target,       ///< a tensor of a module that the configuration does not target
  unsupported,  ///< a known feature we refuse to drop silently; the detail names it
  non_finite,   ///< NaN or infinity in the weights, or an overflow of the cast
  empty,        ///< no module at all
};

/// "E_SHAPE"
std::string_view code_word(AdapterErrorCode code);

/// One refusal: `what()` is "E_SHAPE: <key>: <rule>; <remedy>", with the detail in parentheses
/// behind the code: "E_UNSUPPORTED(dora)". The key is that of the tensor, the field or the file
/// which caused it, as it is written there (unprintable bytes replaced, long keys cut).
class AdapterError : public InputError {
 public:
  AdapterError(AdapterErrorCode code, std::string_view key, std::string_view rule,
               std::string_view remedy = {});
  AdapterError(AdapterErrorCode code, std::string_view detail, std::string_view key,
               std::string_view rule, std::string_view remedy);

  AdapterErrorCode code() const { return code_; }
  /// "dora" of E_UNSUPPORTED(dora), the field of E_CONFIG(field); else empty.
  const std::string& detail() const { return detail_; }
  const std::string& key() const { return key_; }

 private:
  AdapterErrorCode code_;
  std::string detail_;
  std::string key_;
};

/// What to do with an adapter that changes more than LoRA does.
inline constexpr std::string_view kMergeRemedy =
    "merge it into its base model with PEFT's merge_and_unload, and serve that";

/// `key` for one line of text: control and non-ASCII bytes become '?', 200 characters at most.
std::string printable_key(std::string_view key);

}  // namespace loratory::reference
