// SafetensorsFile: any bytes give tensors that cover the data, or one AdapterError; what was read
// is written and read again as the same tensors.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "reference/adapter/adapter_error.hpp"
#include "reference/adapter/safetensors.hpp"

namespace {

using loratory::reference::SafetensorsFile;
using loratory::reference::StoredTensor;

void require_same(const StoredTensor& a, const StoredTensor* b) {
  const bool same = b != nullptr && a.dtype == b->dtype && a.shape == b->shape &&
                    std::ranges::equal(a.bytes, b->bytes);
  if (!same) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto file = SafetensorsFile::view(bytes, "input");
    const std::string again = loratory::reference::write_safetensors(file.tensors());
    const auto copy = SafetensorsFile::view(std::as_bytes(std::span(again)), "copy");
    if (copy.tensors().size() != file.tensors().size()) std::abort();
    for (const StoredTensor& tensor : file.tensors()) require_same(tensor, copy.find(tensor.name));
  } catch (const loratory::reference::AdapterError&) {
  }
  return 0;
}
