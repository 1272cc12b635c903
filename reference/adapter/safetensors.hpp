#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/adapter/mapped_file.hpp"
#include "reference/adapter/storage_dtype.hpp"

namespace loratory::reference {

/// One tensor: row-major, little-endian, not necessarily aligned. A view: somebody else owns the
/// bytes.
struct StoredTensor {
  std::string name;
  StorageDtype dtype = StorageDtype::f32;
  std::vector<int64_t> shape;  ///< empty = one element
  std::span<const std::byte> bytes;
};

/// The tensors of one safetensors file, in the order of their bytes.
///
/// Format: 8 bytes little-endian header size n, n <= 100,000,000 bytes of UTF-8 JSON that begin
/// with '{' and may end in spaces, then the tensors. Each entry is
/// `"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}`, offsets relative to
/// the end of the header; sorted by offset they cover the rest of the file without hole or overlap.
/// `__metadata__`, a map from strings to strings, is checked and ignored. Zero-size tensors and
/// tensors of rank 0 are part of the format; whether they make sense is for the user of the file.
///
/// Errors (AdapterError, with the tensor's name where one is to blame):
///   E_IO     truncated, header too large, not such JSON, an unknown field of an entry, offsets
///            outside the file, holes, overlaps
///   E_KEY    a name, or a field of an entry, twice
///   E_DTYPE  a type the format does not have
///   E_SHAPE  end - begin is not product(shape) x bits / 8; that product needs more than 63 bits
///
/// Limits of ours, against hostile headers: a name or a value in `__metadata__` has at most 1 MiB,
/// a shape 32 dimensions, a file 2^18 tensors and 1024 without data. Entries that together claim
/// more bytes than there are end the parse at once, so the cost is bounded by the part of the
/// header that is right.
///
/// Tensors are not copied; values are not looked at (NaN may occur).
/// Source: huggingface/safetensors, format and Rust reader.
class SafetensorsFile {
 public:
  /// Maps the file; it may be deleted afterwards, not shortened.
  static SafetensorsFile open(const std::string& path);
  /// Parses bytes that outlive the object; `place` names them in errors.
  static SafetensorsFile view(std::span<const std::byte> bytes, std::string_view place);

  /// Asks the disk for all tensors of a mapped file, before they are read in any order.
  void read_ahead() const {
    if (mapping_ != nullptr) mapping_->read_ahead();
  }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// nullptr if there is none of that name. Cost: logarithmic.
  const StoredTensor* find(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  std::shared_ptr<const MappedFile> mapping_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// The bytes of `tensors` as the official writer lays them out: by descending dtype, then by name;
/// header padded with spaces to a multiple of 8. `metadata` is written first if it is not empty.
/// Same input, same bytes. Errors: E_SHAPE if bytes and shape disagree, E_KEY for a name twice or
/// one that is not UTF-8, E_IO if the header gets too large.
std::string write_safetensors(std::vector<StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// product(shape) x bits / 8. Throws E_SHAPE naming `name` if a dimension is negative, the product
/// needs more than 63 bits, or the bits do not end on a byte.
int64_t tensor_bytes(StorageDtype dtype, std::span<const int64_t> shape, std::string_view name);

/// "[16, 4096]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace loratory::reference
