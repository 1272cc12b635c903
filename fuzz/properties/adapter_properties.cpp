// Adapters that are saved are loaded as what they are; damaged ones are refused with a key.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "fuzz/support/draw.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

using sim::Draw;
using sim::SeededCase;

// What one module should come back as: B·A of the matrices it was written from.
struct Expected {
  int64_t rank = 0;
  double alpha = 0;
  Tensor a;
  Tensor b;
};

// A random adapter for a random model, with what must be read from it.
struct Written {
  BaseModelShapes shapes;
  std::string config_text;
  bool use_rslora = false;
  std::vector<std::unique_ptr<Tensor>> owned;
  std::vector<StoredTensor> tensors;
  std::map<ModuleId, Expected> expected;
  std::map<std::string, int64_t> ranks;
  std::map<std::string, double> alphas;
};

BaseModelShapes any_model(Draw& draw) {
  BaseModelShapes shapes;
  shapes.num_layers = draw.between(1, 3);
  for (int64_t* size : {&shapes.hidden, &shapes.q_size, &shapes.kv_size, &shapes.o_input,
                        &shapes.intermediate, &shapes.vocab, &shapes.expert_intermediate}) {
    *size = draw.between(1, 9);
  }
  shapes.num_experts = draw.one_in(2) ? 0 : draw.between(1, 4);
  shapes.interleaved_gate_up = draw.one_in(2);
  return shapes;
}

Tensor any_matrix(Draw& draw, Dtype dtype, Extents shape) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.shape()[0]; ++i) {
    for (int64_t j = 0; j < tensor.shape()[1]; ++j) {
      tensor.set(double(draw.between(-64, 64)) / 16, i, j);
    }
  }
  return tensor;
}

void write_tensor(Written& out, const std::string& name, Tensor tensor, Extents shape) {
  out.owned.push_back(std::make_unique<Tensor>(std::move(tensor)));
  const Tensor& kept = *out.owned.back();
  out.tensors.push_back({name, storage_dtype(kept.dtype()), std::move(shape), kept.bytes()});
}

// Rank and alpha of `path`, by pattern or by default.
std::pair<int64_t, double> any_rank(Draw& draw, Written& out, const std::string& path) {
  int64_t rank = 2;
  double alpha = 3;
  if (draw.one_in(2)) out.ranks[path] = rank = draw.between(1, 5);
  if (draw.one_in(2)) out.alphas[path] = alpha = double(draw.between(-8, 8)) / 4;
  return {rank, alpha};
}

// One linear module [rows, columns] -> one pair of tensors.
void write_linear(Draw& draw, Written& out, const std::string& path, ModuleId id, int64_t rows,
                  int64_t columns) {
  const auto [rank, alpha] = any_rank(draw, out, path);
  const Dtype dtype = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
  Tensor a = any_matrix(draw, dtype, {rank, columns});
  Tensor b = any_matrix(draw, dtype, {rows, rank});
  out.expected.insert({id, {rank, alpha, a, b}});
  write_tensor(out, "base_model.model." + path + ".lora_A.weight", std::move(a), {rank, columns});
  write_tensor(out, "base_model.model." + path + ".lora_B.weight", std::move(b), {rows, rank});
}

// All experts of both parameters, in PEFT's nested form [1.38], element by element.
void write_parameter(Draw& draw, Written& out, int64_t layer, bool is_down) {
  const BaseModelShapes& s = out.shapes;
  const int64_t num_experts = s.num_experts;
  const int64_t half = is_down ? s.hidden : s.expert_intermediate;
  const int64_t columns = is_down ? s.expert_intermediate : s.hidden;
  const int64_t rows = is_down ? half : 2 * half;
  const std::string experts = fmt::format("model.layers.{}.mlp.experts", layer);
  const auto [rank, alpha] =
      any_rank(draw, out, experts + (is_down ? ".down_proj" : ".gate_up_proj"));
  Tensor a(Dtype::f32, {num_experts * rank, columns});
  Tensor b(Dtype::f32, {rows, rank * num_experts});
  for (int64_t e = 0; e < num_experts; ++e) {
    const Tensor one_a = any_matrix(draw, Dtype::f32, {rank, columns});
    for (int64_t j = 0; j < rank; ++j) {
      for (int64_t k = 0; k < columns; ++k) a.set(one_a.get(j, k), e * rank + j, k);
    }
    for (const bool is_up : {false, true}) {
      if (is_down && is_up) continue;
      const Tensor one_b = any_matrix(draw, Dtype::f32, {half, rank});
      for (int64_t n = 0; n < half; ++n) {
        const int64_t row = is_down                 ? n
                            : s.interleaved_gate_up ? 2 * n + (is_up ? 1 : 0)
                                                    : n + (is_up ? half : 0);
        for (int64_t j = 0; j < rank; ++j) b.set(one_b.get(n, j), row, j * num_experts + e);
      }
      const auto projection = is_down ? Projection::down
                              : is_up ? Projection::up
                                      : Projection::gate;
      out.expected.insert({{layer, e, projection}, {rank, alpha, one_a, one_b}});
    }
  }
  const std::string key = "base_model.model." + experts + (is_down ? "" : ".base_layer");
  write_tensor(out, key + ".lora_A.weight", std::move(a), {num_experts * rank, columns});
  write_tensor(out, key + ".lora_B.weight", std::move(b), {rows, rank * num_experts});
}

void write_layer(Draw& draw, Written& out, int64_t layer) {
  const BaseModelShapes& s = out.shapes;
  struct Linear {
    const char* name;
    Projection projection;
    int64_t rows, columns;
  };
  for (const auto& [name, projection, rows, columns] : std::initializer_list<Linear>{
           {"self_attn.q_proj", Projection::q, s.q_size, s.hidden},
           {"self_attn.k_proj", Projection::k, s.kv_size, s.hidden},
           {"self_attn.v_proj", Projection::v, s.kv_size, s.hidden},
           {"self_attn.o_proj", Projection::o, s.hidden, s.o_input},
           {"mlp.up_proj", Projection::up, s.intermediate, s.hidden},
           {"mlp.down_proj", Projection::down, s.hidden, s.intermediate}}) {
    if (draw.one_in(2)) continue;
    const std::string path = fmt::format("model.layers.{}.{}", layer, name);
    write_linear(draw, out, path, {layer, -1, projection}, rows, columns);
  }
  if (s.num_experts == 0 || draw.one_in(3)) return;
  write_parameter(draw, out, layer, /*is_down=*/false);
  write_parameter(draw, out, layer, /*is_down=*/true);
}

template <typename Map>
std::string json_map(const Map& map) {
  std::string text;
  for (const auto& [path, value] : map) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", path, value);
  }
  return "{" + text + "}";
}

Written any_adapter(uint64_t seed) {
  Draw draw(seed);
  Written out;
  out.shapes = any_model(draw);
  out.use_rslora = draw.one_in(2);
  write_linear(draw, out, "lm_head", {-1, -1, Projection::lm_head}, out.shapes.vocab,
               out.shapes.hidden);
  for (int64_t layer = 0; layer < out.shapes.num_layers; ++layer) write_layer(draw, out, layer);
  out.config_text = fmt::format(
      R"({{"r": 2, "lora_alpha": 3, "use_rslora": {}, "rank_pattern": {}, "alpha_pattern": {},
          "target_modules": ".*", "target_parameters": ["gate_up_proj", "down_proj"]}})",
      out.use_rslora, json_map(out.ranks), json_map(out.alphas));
  return out;
}

void require_equal(const ConstTensorView& loaded, const Tensor& written) {
  RC_ASSERT(loaded.shape == written.shape());
  for (int64_t i = 0; i < loaded.size(0); ++i) {
    for (int64_t j = 0; j < loaded.size(1); ++j) {
      RC_ASSERT(loaded.get(i, j) == written.get(i, j));
    }
  }
}

void require_expected(const Adapter& adapter, const Written& written) {
  RC_ASSERT(adapter.modules.size() == written.expected.size());
  for (const auto& [id, expected] : written.expected) {
    const LoraModule* module = adapter.find(id);
    RC_ASSERT(module != nullptr);
    RC_ASSERT(module->rank == expected.rank);
    const auto r = double(expected.rank);
    RC_ASSERT(module->scaling == float(expected.alpha / (written.use_rslora ? std::sqrt(r) : r)));
    require_equal(module->a, expected.a);
    require_equal(module->b, expected.b);
  }
}

// [1.10] [1.26] [1.38] [4.1] [4.7]
RC_GTEST_PROP(Adapter, WhatIsSavedIsLoaded, ()) {
  const SeededCase c = sim::any_seeded_case(2);
  const Written written = any_adapter(c.seed);
  RC_CLASSIFY(written.shapes.num_experts > 0, "experts");
  RC_CLASSIFY(written.use_rslora, "rsLoRA");
  RC_CLASSIFY(!written.ranks.empty(), "rank_pattern");
  RC_CLASSIFY(written.expected.size() > 1, "several modules");
  const std::string folder = testing::TempDir() + "adapter";
  save_adapter(folder, parse_adapter_config(written.config_text), written.tensors);
  const Adapter adapter = load_adapter(folder, written.shapes);
  std::filesystem::remove_all(folder);  // the mapping keeps the bytes
  require_expected(adapter, written);
  RC_ASSERT(write_safetensors(adapter.file.tensors(), {{"format", "pt"}}) ==
            write_safetensors(written.tensors, {{"format", "pt"}}));
}

// [4.19]
// Bytes of the header changed, cut or doubled: one error with a code, or an adapter.
RC_GTEST_PROP(Adapter, DamageIsRefusedWithACode, ()) {
  const SeededCase c = sim::any_seeded_case(8);
  const Written written = any_adapter(c.seed);
  std::string bytes = write_safetensors(written.tensors);
  Draw draw(c.seed + 1);
  for (int i = 0; i < c.num_ops; ++i) {
    const auto at = size_t(draw(int64_t(bytes.size())));
    if (draw.one_in(8)) bytes.resize(at + 1);
    bytes[at] = char(draw.one_in(2) ? "{}[]\":,0919 "[draw(12)] : draw(256));
  }
  bool refused = false;
  try {
    const auto file = SafetensorsFile::view(std::as_bytes(std::span(bytes)), "damaged");
    load_adapter(parse_adapter_config(written.config_text), file, written.shapes);
  } catch (const AdapterError& error) {
    refused = true;
    RC_ASSERT(std::string_view(error.what()).starts_with(code_word(error.code())));
  }
  RC_CLASSIFY(refused, "refused");
  RC_CLASSIFY(!refused, "only weights changed");
}

}  // namespace
}  // namespace loratory::reference
