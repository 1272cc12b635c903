// SafetensorsFile and load_adapter: any bytes give tensors that cover the data, or one
// AdapterError; what was read is written and read again as the same tensors. As an adapter, in
// lenient mode, they give modules of the shapes of the model, or one AdapterError.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"
#include "reference/adapter/safetensors.hpp"

namespace {

using namespace loratory::reference;

void require_same(const StoredTensor& a, const StoredTensor* b) {
  const bool same = b != nullptr && a.dtype == b->dtype && a.shape == b->shape &&
                    std::ranges::equal(a.bytes, b->bytes);
  if (!same) std::abort();
}

BaseModelShapes tiny_model() {
  BaseModelShapes shapes;
  shapes.num_layers = 2;
  shapes.hidden = shapes.q_size = shapes.o_input = shapes.intermediate = shapes.vocab = 4;
  shapes.kv_size = shapes.num_experts = shapes.expert_intermediate = 2;
  shapes.tied_embeddings = true;
  return shapes;
}

// Touches the corners of both matrices: the sanitizers see a view that leaves its tensor.
void require_inside(const LoraModule& module) {
  const int64_t rank = module.rank;
  const double corners = module.a.get(0, 0) + module.a.get(rank - 1, module.a.size(1) - 1) +
                         module.b.get(0, 0) + module.b.get(module.b.size(0) - 1, rank - 1);
  const bool sound = std::isfinite(corners) && std::isfinite(module.scaling);
  if (!sound) std::abort();
}

void load(const SafetensorsFile& file) {
  static const AdapterConfig config = loratory::reference::parse_adapter_config(
      R"({"r": 2, "lora_alpha": 3, "target_modules": ".*", "rank_pattern": {"k_proj": 1},
          "target_parameters": ["gate_up_proj", "down_proj"]})");
  LoadOptions options;
  options.strict = false;
  const Adapter adapter = load_adapter(config, file, tiny_model(), options);
  if (adapter.modules.empty()) std::abort();
  for (const LoraModule& module : adapter.modules) require_inside(module);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto file = SafetensorsFile::view(bytes, "input");
    const std::string again = write_safetensors(file.tensors());
    const auto copy = SafetensorsFile::view(std::as_bytes(std::span(again)), "copy");
    if (copy.tensors().size() != file.tensors().size()) std::abort();
    for (const StoredTensor& tensor : file.tensors()) require_same(tensor, copy.find(tensor.name));
    load(file);
  } catch (const AdapterError&) {
  }
  return 0;
}
