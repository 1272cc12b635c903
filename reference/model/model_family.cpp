#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "reference/base/json_fields.hpp"
#include "reference/model/model_config_parts.hpp"

namespace loratory::reference {
namespace {

constexpr uint32_t kGemma3 = kQkNorm | kPostNorms | kFivePerFull;
constexpr uint32_t kGptOss = kExperts | kSinks | kAttentionBias | kAlternates;

// Defaults that no published file leaves out are those of the first of its kind.
constexpr std::array<ModelFamily, 20> kFamilies{{
    // type, heads, KV heads, positions, eps, theta, end token, head_dim, vocab, window, computed,
    // tied, traits
    {"llama", 0, 0, 2048, 1e-6, 1e4, 2, 0, 0, 0, true, false, kLlamaCode},
    {"mistral", 0, 8, 131072, 1e-6, 1e4, 2, 0, 0, 4096, true, false, kWindowAlways | kLlamaCode},
    {"mixtral", 0, 8, 131072, 1e-5, 1e6, 2, 0, 0, 0, true, false,
     kExperts | kWindowAlways | kLlamaCode},
    {"qwen2", 0, 32, 32768, 1e-6, 1e4, -1, 0, 0, 4096, true, false, kWindowByFlag},
    {"qwen3", 0, 32, 32768, 1e-6, 1e4, -1, 128, 0, 4096, true, false, kQkNorm | kWindowByFlag},
    {"qwen2_moe", 0, 16, 32768, 1e-6, 1e4, -1, 0, 0, 4096, true, false, kExperts | kWindowByFlag},
    {"qwen3_moe", 0, 4, 32768, 1e-6, 1e4, -1, 0, 0, 4096, true, false,
     kExperts | kQkNorm | kWindowByFlag},
    {"gemma", 0, 16, 8192, 1e-6, 1e4, 1, 256, 0, 0, false, true, kPlain},
    {"gemma2", 8, 4, 8192, 1e-6, 1e4, 1, 256, 256000, 4096, false, true, kPostNorms | kAlternates},
    {"gemma3", 8, 4, 131072, 1e-6, 1e6, 1, 256, 262208, 4096, false, true, kGemma3},
    {"gemma3_text", 8, 4, 131072, 1e-6, 1e6, 1, 256, 262208, 4096, false, true, kGemma3},
    {"phi3", 0, 0, 4096, 1e-5, 1e4, 32000, 0, 0, 0, false, false, kFused | kWindowAlways},
    {"gpt_oss", 0, 8, 131072, 1e-5, 1.5e5, 200002, 64, 0, 128, false, false, kGptOss},
    {"deepseek_v2", 0, 0, 2048, 1e-6, 1e4, 1, 0, 0, 0, false, false, kExperts | kLatent},
    {"deepseek_v3", 0, 0, 4096, 1e-6, 1e4, 1, 0, 0, 0, false, false, kExperts | kLatent},
    {"deepseek_v32", 0, 0, 4096, 1e-6, 1e4, 1, 0, 0, 0, false, false, kExperts | kLatent},
    {"kimi_k2", 0, 0, 4096, 1e-6, 1e4, -1, 0, 0, 0, false, false, kExperts | kLatent},
    {"llama4", 0, 8, 131072, 1e-5, 5e5, -1, 128, 0, 8192, false, false, kExperts | kLlama4},
    {"llama4_text", 0, 8, 131072, 1e-5, 5e5, -1, 128, 0, 8192, false, false, kExperts | kLlama4},
    {"ministral", 0, 8, 131072, 1e-5, 1e6, 2, 128, 0, 4096, false, false, kWindowAlways},
}};

}  // namespace

const ModelFamily& family_of(const JsonFields& fields) {
  const std::string type = fields.text_or("model_type", "");
  const auto* const it = std::ranges::find(kFamilies, type, &ModelFamily::type);
  if (it == kFamilies.end()) {
    std::vector<std::string_view> known;
    for (const ModelFamily& family : kFamilies) known.push_back(family.type);
    fields.fail("model_type", fmt::format("'{}' is not a supported model", type.substr(0, 64)),
                fmt::format("supported are {}; if its layers have Llama's form, write \"llama\"",
                            fmt::join(known, ", ")));
  }
  return *it;
}

}  // namespace loratory::reference
