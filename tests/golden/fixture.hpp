// The fixtures that make_fixtures.py wrote; README.md says what lies in them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/safetensors.hpp"
#include "reference/base/check.hpp"
#include "reference/model/model.hpp"
#include "reference/numerics/matrix.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// In the repository, which may lie elsewhere than where this was built.
inline std::string fixtures() {
  const char* const root = std::getenv("LORATORY_SOURCE_DIR");
  return std::string(root != nullptr ? root : LORATORY_SOURCE_DIR) + "/tests/golden/fixtures/";
}
inline const std::string kFixtures = fixtures();

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(in);
}

/// One model and what its adapters do to it.
class Fixture {
 public:
  explicit Fixture(const std::string& model)
      : directory_(kFixtures + model),
        expected_(SafetensorsFile::open(directory_ + "/expected.safetensors")),
        modules_(read_json(directory_ + "/expected_modules.json")) {}

  const std::string& directory() const { return directory_; }
  std::string adapter_directory(const std::string& adapter) const {
    return directory_ + "/adapters/" + adapter;
  }

  /// Sorted; without the base model.
  std::vector<std::string> adapters() const {
    std::vector<std::string> names;
    for (const auto& [name, table] : modules_.items()) names.push_back(name);
    return names;
  }

  /// {module: [rank, scaling]} as PEFT sees the adapter.
  const nlohmann::json& modules(const std::string& adapter) const { return modules_.at(adapter); }

  /// "base.tokens", "num_prompt"
  std::vector<int32_t> integers(const std::string& name) const {
    const StoredTensor& tensor = find(name, StorageDtype::i32);
    std::vector<int32_t> numbers(tensor.bytes.size() / sizeof(int32_t));
    std::memcpy(numbers.data(), tensor.bytes.data(), tensor.bytes.size());
    return numbers;
  }

  /// "base.logits", "qv_r4.merged_logits": [vocab, tokens], one column for each token.
  Matrix<float> logits(const std::string& name) const {
    const StoredTensor& tensor = find(name, StorageDtype::f32);
    Matrix<float> logits(tensor.shape.at(1), tensor.shape.at(0));
    for (int64_t t = 0; t < logits.cols(); ++t) {
      for (int64_t v = 0; v < logits.rows(); ++v) {
        const auto* address = tensor.bytes.data() + 4 * (t * logits.rows() + v);
        logits(v, t) = float(load(Dtype::f32, address));
      }
    }
    return logits;
  }

 private:
  const StoredTensor& find(const std::string& name, StorageDtype dtype) const {
    const StoredTensor* tensor = expected_.find(name);
    if (tensor == nullptr || tensor->dtype != dtype) {
      throw std::runtime_error(directory_ + "/expected.safetensors: no " + name);
    }
    return *tensor;
  }

  std::string directory_;
  SafetensorsFile expected_;
  nlohmann::json modules_;
};

/// All of them.
inline const std::vector<std::string> kModels{"llama_gqa",    "llama3_tied_bias", "mixtral",
                                              "qwen2_linear", "qwen2_moe",        "qwen3_moe",
                                              "qwen3_yarn"};

/// What most tests are run for, each once.
struct Case {
  std::string model, adapter;  // "base" = no adapter

  friend void PrintTo(const Case& value, std::ostream* out) {
    *out << value.model << "/" << value.adapter;
  }
};

inline std::string test_name(const testing::TestParamInfo<Case>& info) {
  return info.param.model + "_" + info.param.adapter;
}

}  // namespace loratory::reference
