#include "reference/model/checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "reference/adapter/adapter_error.hpp"
#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/json_fields.hpp"

namespace loratory::reference {
namespace {

constexpr size_t kLargestIndex = size_t{64} << 20;
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// name -> file, as the index says.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const nlohmann::json root =
      parse_json_object(read_text_file(path, kLargestIndex), path, kLargestIndex);
  const JsonFields fields(root, path);
  const nlohmann::json* const weight_map = fields.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty()) {
    fields.fail("weight_map", "must be an object from tensors to files");
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [name, file] : weight_map->items()) {
    const bool plain = file.is_string() && !file.get<std::string>().empty() &&
                       file.get<std::string>().find('/') == std::string::npos &&
                       file.get<std::string>() != "..";
    if (!plain) fields.fail(printable_key(name), "must name a file of the same folder");
    file_of.emplace(name, file.get<std::string>());
  }
  return file_of;
}

float at(const StoredTensor& tensor, Dtype dtype, int64_t index) {
  return float(load(dtype, tensor.bytes.data() + index * int64_t(size_bytes(dtype))));
}

}  // namespace

Checkpoint::Checkpoint(std::string directory) : directory_(std::move(directory)) {
  namespace fs = std::filesystem;
  const std::string index_path = fmt::format("{}/{}", directory_, kIndex);
  if (fs::exists(fmt::format("{}/{}", directory_, kOneFile))) {
    open_file(kOneFile);
  } else if (fs::exists(index_path)) {
    open_shards(index_path);
  } else {
    throw InputError(directory_, fmt::format("has neither {} nor {}", kOneFile, kIndex));
  }
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      if (!tensors_.emplace(tensor.name, &tensor).second) {
        fail(tensor.name, "is in two files");
      }
    }
  }
}

void Checkpoint::open_file(const std::string& name) {
  files_.push_back(SafetensorsFile::open(fmt::format("{}/{}", directory_, name)));
}

void Checkpoint::open_shards(const std::string& index_path) {
  const std::map<std::string, std::string> file_of = read_weight_map(index_path);
  std::map<std::string, size_t> opened;  // file -> its place in files_
  for (const auto& [name, file] : file_of) {
    if (opened.emplace(file, files_.size()).second) open_file(file);
    if (files_[opened[file]].find(name) == nullptr) {
      throw InputError(fmt::format("{}: {}", index_path, printable_key(name)),
                       fmt::format("is not in {}", printable_key(file)));
    }
  }
  for (const auto& [file, place] : opened) {
    for (const StoredTensor& tensor : files_[place].tensors()) {
      const auto it = file_of.find(tensor.name);
      if (it == file_of.end() || it->second != file) {
        fail(tensor.name, fmt::format("is in {}, but the index does not say so", file));
      }
    }
  }
}

const StoredTensor& Checkpoint::stored(const std::string& name, const std::vector<int64_t>& shape) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) fail(name, "is missing");
  const StoredTensor& tensor = *it->second;
  const auto dtype = weight_dtype(tensor.dtype);
  if (!dtype || is_f8(*dtype)) {
    fail(name,
         fmt::format("{} is not supported, only F32, F16 and BF16 are", dtype_name(tensor.dtype)));
  }
  if (tensor.shape != shape) {
    fail(name, fmt::format("has shape {}, the configuration asks for {}", shape_text(tensor.shape),
                           shape_text(shape)));
  }
  used_.insert(name);
  return tensor;
}

std::vector<Matrix<float>> Checkpoint::planes(const std::string& name, int64_t num_planes,
                                              int64_t num_rows, int64_t num_columns) {
  const StoredTensor& tensor = stored(name, {num_planes, num_rows, num_columns});
  const Dtype dtype = *weight_dtype(tensor.dtype);
  std::vector<Matrix<float>> out;
  int64_t index = 0;
  for (int64_t p = 0; p < num_planes; ++p) {
    Matrix<float>& plane = out.emplace_back(num_rows, num_columns);
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t j = 0; j < num_columns; ++j) plane(i, j) = at(tensor, dtype, index++);
    }
  }
  return out;
}

Matrix<float> Checkpoint::matrix(const std::string& name, int64_t num_rows, int64_t num_columns) {
  const StoredTensor& tensor = stored(name, {num_rows, num_columns});
  const Dtype dtype = *weight_dtype(tensor.dtype);
  Matrix<float> out(num_rows, num_columns);
  int64_t index = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t j = 0; j < num_columns; ++j) out(i, j) = at(tensor, dtype, index++);
  }
  return out;
}

Vector<float> Checkpoint::vector(const std::string& name, int64_t size) {
  const StoredTensor& tensor = stored(name, {size});
  Vector<float> out(size);
  for (int64_t i = 0; i < size; ++i) out(i) = at(tensor, *weight_dtype(tensor.dtype), i);
  return out;
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (used_.count(name) == 0) names.push_back(name);
  }
  return names;
}

void Checkpoint::refuse_unused() const {
  const std::vector<std::string> unknown = unused();
  if (unknown.empty()) return;
  fail(unknown[0], fmt::format("is not a tensor of this model ({} such in all)", unknown.size()));
}

void Checkpoint::fail(const std::string& name, const std::string& rule) const {
  throw InputError(fmt::format("{}: {}", directory_, printable_key(name)), rule);
}

}  // namespace loratory::reference
