#include "reference/adapter/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "reference/adapter/adapter_error.hpp"
#include "reference/adapter/safetensors_header.hpp"

namespace loratory::reference {
namespace {

using Code = AdapterErrorCode;

constexpr uint64_t kSizeBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    value = value << 8 | std::to_integer<uint64_t>(bytes[i - 1]);
  }
  return value;
}

uint64_t header_size(std::span<const std::byte> bytes, std::string_view place) {
  if (bytes.size() < kSizeBytes) {
    throw AdapterError(Code::io, place, "is shorter than the 8 bytes of the header size");
  }
  const uint64_t size = little_endian(bytes.first(kSizeBytes));
  if (size > kLargestHeader) {
    throw AdapterError(
        Code::io, place,
        fmt::format("a header of {} bytes, but at most {} are allowed", size, kLargestHeader),
        "the file is damaged or not a safetensors file");
  }
  if (size > bytes.size() - kSizeBytes) {
    throw AdapterError(Code::io, place, fmt::format("ends within its header of {} bytes", size),
                       "the file is truncated");
  }
  return size;
}

std::string json_text(const std::string& text, const std::string& name) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw AdapterError(Code::key, name, "is not UTF-8");
  }
}

void require_writable(const std::vector<StoredTensor>& sorted) {
  for (const StoredTensor& tensor : sorted) {
    const int64_t needed = tensor_bytes(tensor.dtype, tensor.shape, tensor.name);
    if (uint64_t(needed) != tensor.bytes.size()) {
      throw AdapterError(Code::shape, tensor.name,
                         fmt::format("{} {} needs {} bytes, has {}", dtype_name(tensor.dtype),
                                     shape_text(tensor.shape), needed, tensor.bytes.size()));
    }
  }
  std::vector<std::string_view> names;
  for (const StoredTensor& tensor : sorted) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw AdapterError(Code::key, *twice, "is given twice");
  if (std::binary_search(names.begin(), names.end(), "__metadata__")) {
    throw AdapterError(Code::key, "__metadata__", "cannot be the name of a tensor");
  }
}

std::string header_text(const std::vector<StoredTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> fields;
  if (!metadata.empty()) {
    std::vector<std::string> items;
    for (const auto& [key, value] : metadata) {
      items.push_back(json_text(key, "__metadata__") + ":" + json_text(value, "__metadata__"));
    }
    fields.push_back(fmt::format(R"("__metadata__":{{{}}})", fmt::join(items, ",")));
  }
  uint64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    fields.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                 json_text(tensor.name, tensor.name), dtype_name(tensor.dtype),
                                 fmt::join(tensor.shape, ","), offset,
                                 offset + tensor.bytes.size()));
    offset += tensor.bytes.size();
  }
  std::string text = fmt::format("{{{}}}", fmt::join(fields, ","));
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  auto mapping = std::make_shared<const MappedFile>(path);
  SafetensorsFile file = view(mapping->bytes(), path);
  file.mapping_ = std::move(mapping);
  return file;
}

SafetensorsFile SafetensorsFile::view(std::span<const std::byte> bytes, std::string_view place) {
  const uint64_t size = header_size(bytes, place);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kSizeBytes, size);
  const auto data = bytes.subspan(kSizeBytes + size);
  SafetensorsFile file;
  for (HeaderEntry& entry : parse_safetensors_header(header, data.size(), place)) {
    file.index_.emplace(entry.name, file.tensors_.size());
    file.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                             data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return file;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::string write_safetensors(std::vector<StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  require_writable(tensors);
  const std::string header = header_text(tensors, metadata);
  if (header.size() > kLargestHeader) {
    throw AdapterError(Code::io, "", "the header would have more than 100,000,000 bytes");
  }
  std::string out;
  for (uint64_t i = 0; i < kSizeBytes; ++i) {
    out.push_back(char(header.size() >> (8 * i) & 0xff));
  }
  out += header;
  for (const StoredTensor& tensor : tensors) {
    out.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return out;
}

int64_t tensor_bytes(StorageDtype dtype, std::span<const int64_t> shape, std::string_view name) {
  int64_t bits = dtype_bits(dtype);
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) {
      throw AdapterError(Code::shape, name,
                         fmt::format("{}: the number of bytes overflows", shape_text(shape)));
    }
  }
  if (bits % 8 != 0) {
    throw AdapterError(
        Code::shape, name,
        fmt::format("{} {} does not end on a byte", dtype_name(dtype), shape_text(shape)));
  }
  return bits / 8;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace loratory::reference
