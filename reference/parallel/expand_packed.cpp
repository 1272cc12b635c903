#include <fmt/format.h>

#include <string>

#include "reference/base/input_error.hpp"
#include "reference/parallel/lora_pair.hpp"

namespace loratory::reference {
namespace {

constexpr auto kMisaligned = "packed LoRA B rows do not align with slice sizes";

LoraPair with_rows(const LoraPair& pair, int64_t begin, int64_t count) {
  LoraPair part = pair;
  part.b.shape[0] = count;
  part.b.data += begin * part.b.strides[0] * int64_t(size_bytes(part.b.dtype));
  return part;
}

std::string place(size_t index) { return fmt::format("lora_pairs[{}]", index); }

// Appends the parts of pairs[index] from slice out.size() on.
void append_parts(const LoraPair& pair, size_t index, const std::vector<int64_t>& output_sizes,
                  LoraPairs& out) {
  int64_t begin = 0;
  while (begin < pair.b.size(0)) {
    const bool fits =
        out.size() < output_sizes.size() && begin + output_sizes[out.size()] <= pair.b.size(0);
    if (!fits) throw InputError(place(index), kMisaligned);
    const int64_t count = output_sizes[out.size()];
    out.emplace_back(with_rows(pair, begin, count));
    begin += count;
  }
}

}  // namespace

LoraPairs expand_packed(const LoraPairs& pairs, const std::vector<int64_t>& output_sizes) {
  LoraPairs out;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i]) {
      append_parts(*pairs[i], i, output_sizes, out);
    } else if (pairs.size() == output_sizes.size() && out.size() == i) {
      out.emplace_back(std::nullopt);
    } else {
      throw InputError(
          place(i),
          fmt::format("is None in a list of {} for {} slices", pairs.size(), output_sizes.size()),
          "give one entry for each slice");
    }
  }
  if (out.size() != output_sizes.size()) throw InputError(place(pairs.size()), kMisaligned);
  return out;
}

}  // namespace loratory::reference
