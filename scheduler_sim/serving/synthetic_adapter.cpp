#include "scheduler_sim/serving/synthetic_adapter.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "reference/adapter/adapter.hpp"

namespace loratory::sim {
namespace {

using reference::BaseModelShapes;
using reference::StoredTensor;

// Vigna's splitmix64 (public domain).
class Bits {
 public:
  explicit Bits(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Sign and mantissa at random, the exponent such that numbers are 1 to 2 times 2^exponent.
std::vector<std::byte> random_bf16(int64_t count, int exponent, uint64_t seed) {
  const uint64_t exponents = 0x0001'0001'0001'0001 * uint64_t((127 + exponent) << 7);
  constexpr uint64_t kSignsAndMantissas = 0x807F'807F'807F'807F;
  const auto num_words = size_t(count + 3) / 4;
  std::vector<std::byte> bytes(num_words * 8);
  Bits bits(seed);
  for (size_t i = 0; i < num_words; ++i) {
    const uint64_t word = (bits.next() & kSignsAndMantissas) | exponents;
    std::memcpy(bytes.data() + i * 8, &word, 8);
  }
  bytes.resize(size_t(count) * 2);
  return bytes;
}

struct Linear {
  std::string_view name;
  int64_t num_in, num_out;
};

std::vector<Linear> linears_of(const BaseModelShapes& s) {
  std::vector<Linear> out = {{"self_attn.q_proj", s.hidden, s.q_size},
                             {"self_attn.k_proj", s.hidden, s.kv_size},
                             {"self_attn.v_proj", s.hidden, s.kv_size},
                             {"self_attn.o_proj", s.o_input, s.hidden}};
  if (s.num_experts > 0 || s.intermediate == 0) return out;
  out.push_back({"mlp.gate_proj", s.hidden, s.intermediate});
  out.push_back({"mlp.up_proj", s.hidden, s.intermediate});
  out.push_back({"mlp.down_proj", s.intermediate, s.hidden});
  return out;
}

}  // namespace

void write_synthetic_adapter(const std::string& directory, const reference::ModelConfig& model,
                             int64_t rank, uint64_t seed) {
  const BaseModelShapes shapes = base_model_shapes(model);
  const std::vector<Linear> linears = linears_of(shapes);
  std::deque<std::vector<std::byte>> bytes;
  std::vector<StoredTensor> tensors;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    const int exponent = -(int(std::bit_width(uint64_t(columns))) + 1) / 2 - 1;  // 1 / (2 sqrt K)
    bytes.push_back(random_bf16(rows * columns, exponent, seed * 1'000'003 + tensors.size()));
    tensors.push_back({name, reference::StorageDtype::bf16, {rows, columns}, bytes.back()});
  };
  reference::AdapterConfig config;
  std::vector<std::string> targets;
  for (const Linear& linear : linears) {
    targets.emplace_back(linear.name.substr(linear.name.find('.') + 1));
    for (int64_t layer = 0; layer < shapes.num_layers; ++layer) {
      const std::string key = fmt::format("base_model.model.{}layers.{}.{}",
                                          shapes.decoder_prefixes.front(), layer, linear.name);
      add(key + ".lora_A.weight", rank, linear.num_in);
      add(key + ".lora_B.weight", linear.num_out, rank);
    }
  }
  config.rank = rank;
  config.alpha = double(rank);
  config.target_modules = targets;
  reference::save_adapter(directory, config, tensors);
}

}  // namespace loratory::sim
