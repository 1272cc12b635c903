// Adapters in memory, for tests: tensors with known numbers, and a small model to load them for.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {

/// 32 layers, GQA, 6 experts; every size differs, so that no mix-up fits by chance.
inline BaseModelShapes small_model() {
  BaseModelShapes shapes;
  shapes.num_layers = 32;
  shapes.hidden = 8;
  shapes.q_size = 12;
  shapes.kv_size = 6;
  shapes.o_input = 11;
  shapes.intermediate = 14;
  shapes.vocab = 10;
  shapes.num_experts = 6;
  shapes.expert_intermediate = 5;
  shapes.shared_expert_intermediate = 9;
  return shapes;
}

/// A configuration that targets everything.
inline AdapterConfig config_of(const std::string& fields = "\"r\": 2, \"lora_alpha\": 3") {
  return parse_adapter_config(
      "{" + fields +
      R"(, "target_modules": ".*", "target_parameters": ["gate_up_proj", "down_proj"]})");
}

/// A safetensors file with this header, and zeros as data.
inline std::string file_of(const std::string& header, size_t num_data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(char(header.size() >> (8 * i)));
  return file + header + std::string(num_data_bytes, '\0');
}

/// Owns the numbers of tensors. Element i of a tensor is first + i, in fp32.
class TestTensors {
 public:
  TestTensors& add(const std::string& name, std::vector<int64_t> shape, float first = 1) {
    int64_t num_numbers = 1;
    for (const int64_t size : shape) num_numbers *= size;
    std::vector<float> numbers;
    for (int64_t i = 0; i < num_numbers; ++i) numbers.push_back(first + float(i));
    return add_numbers(name, std::move(shape), std::move(numbers));
  }

  TestTensors& add_numbers(const std::string& name, std::vector<int64_t> shape,
                           std::vector<float> numbers) {
    numbers_.push_back(std::move(numbers));
    const auto bytes = std::as_bytes(std::span(numbers_.back()));
    tensors_.push_back({name, StorageDtype::f32, std::move(shape), bytes});
    return *this;
  }

  TestTensors& add_bytes(const std::string& name, StorageDtype dtype, std::vector<int64_t> shape,
                         const std::string& bytes) {
    texts_.push_back(bytes);
    tensors_.push_back({name, dtype, std::move(shape), std::as_bytes(std::span(texts_.back()))});
    return *this;
  }

  /// A and B of one module of the given rank, for a base weight [rows, columns].
  TestTensors& add_pair(const std::string& path, int64_t rows, int64_t columns, int64_t rank = 2) {
    const std::string key = "base_model.model." + path;
    return add(key + ".lora_A.weight", {rank, columns})
        .add(key + ".lora_B.weight", {rows, rank}, 100);
  }

  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  /// The bytes live as long as this object.
  SafetensorsFile file() {
    texts_.push_back(write_safetensors(tensors_));
    return SafetensorsFile::view(std::as_bytes(std::span(texts_.back())), "test");
  }

  Adapter load(const AdapterConfig& config = config_of(), const LoadOptions& options = {},
               const BaseModelShapes& shapes = small_model()) {
    return load_adapter(config, file(), shapes, options);
  }

  /// "E_KEY", "E_UNSUPPORTED(dora)", or "accepted".
  std::string refusal(const AdapterConfig& config = config_of(), const LoadOptions& options = {},
                      const BaseModelShapes& shapes = small_model()) {
    try {
      load(config, options, shapes);
    } catch (const AdapterError& error) {
      last_error_ = error.what();
      const std::string code(code_word(error.code()));
      return error.detail().empty() ? code : code + "(" + error.detail() + ")";
    }
    return "accepted";
  }

  /// The line of the last refusal.
  const std::string& last_error() const { return last_error_; }

 private:
  std::deque<std::vector<float>> numbers_;
  std::deque<std::string> texts_;
  std::vector<StoredTensor> tensors_;
  std::string last_error_;
};

}  // namespace loratory::reference
