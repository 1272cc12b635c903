#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "python/src/arrays.hpp"
#include "reference/adapter/adapter.hpp"
#include "reference/adapter/dequantize.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/model_config.hpp"
#include "reference/model/model_presets.hpp"

namespace loratory::python {
namespace {

using reference::Adapter;
using reference::BaseModelShapes;
using reference::LoraModule;

// One module of an adapter, which it keeps alive.
struct Module {
  std::shared_ptr<const Adapter> adapter;
  const LoraModule* module = nullptr;
};

// A preset's name, or the path of a config.json.
BaseModelShapes shapes_of(const std::string& model) {
  for (const reference::ModelPreset& preset : reference::model_presets()) {
    if (preset.name == model) {
      return base_model_shapes(reference::parse_model_config(preset.config, model));
    }
  }
  return base_model_shapes(reference::read_model_config(
      model, "give the path of the model's config.json, or a name of loratory.model_names()"));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const reference::ModelPreset& preset : reference::model_presets()) {
    names.emplace_back(preset.name);
  }
  return names;
}

std::shared_ptr<const Adapter> load(const std::string& directory, const BaseModelShapes& shapes,
                                    bool strict, int64_t max_lora_rank, bool check_finite,
                                    const std::string& engine_dtype, bool assume_residual_base) {
  const nb::gil_scoped_release no_gil;
  reference::LoadOptions options;
  options.strict = strict;
  options.max_lora_rank = max_lora_rank;
  options.check_finite = check_finite;
  options.engine_dtype = dtype_of(engine_dtype);
  options.assume_residual_base = assume_residual_base;
  return std::make_shared<const Adapter>(reference::load_adapter(directory, shapes, options));
}

std::vector<Module> modules_of(const std::shared_ptr<const Adapter>& adapter) {
  std::vector<Module> modules;
  for (const LoraModule& module : adapter->modules) modules.push_back({adapter, &module});
  return modules;
}

nb::ndarray<nb::numpy, float> numbers_of(const reference::Matrix<float>& matrix) {
  std::vector<float> values;
  values.reserve(size_t(matrix.size()));
  for (Eigen::Index row = 0; row < matrix.rows(); ++row) {
    for (Eigen::Index column = 0; column < matrix.cols(); ++column) {
      values.push_back(matrix(row, column));
    }
  }
  return to_numpy(std::move(values), {size_t(matrix.rows()), size_t(matrix.cols())});
}

std::tuple<std::string, NumpyArray> bits_of(const Module& module,
                                            const reference::ConstTensorView& view) {
  auto* const kept = new std::shared_ptr<const Adapter>(module.adapter);
  const nb::capsule owner(
      kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<const Adapter>*>(p); });
  return {std::string(reference::name(view.dtype)), show(view, owner)};
}

void add_module(nb::module_& m) {
  nb::class_<Module>(m, "Module", "The delta of one matrix of the base model.")
      .def_prop_ro("name", [](const Module& self) { return reference::to_string(self.module->id); })
      .def_prop_ro("layer", [](const Module& self) { return self.module->id.layer; })
      .def_prop_ro("expert", [](const Module& self) { return self.module->id.expert; })
      .def_prop_ro("projection",
                   [](const Module& self) {
                     return std::string(reference::projection_name(self.module->id.projection));
                   })
      .def_prop_ro("rank", [](const Module& self) { return self.module->rank; })
      .def_prop_ro("scaling", [](const Module& self) { return self.module->scaling; })
      .def("a", [](const Module& self) { return bits_of(self, self.module->a); })
      .def("b", [](const Module& self) { return bits_of(self, self.module->b); })
      .def("dequantized_a",
           [](const Module& self) {
             return numbers_of(without_gil([&] { return dequantized_a(*self.module); }));
           })
      .def("dequantized_b", [](const Module& self) {
        return numbers_of(without_gil([&] { return dequantized_b(*self.module); }));
      });
}

struct LoadedAdapter {
  std::shared_ptr<const Adapter> adapter;
};

}  // namespace

void add_adapters(nb::module_& m) {
  nb::class_<BaseModelShapes>(m, "BaseModelShapes", "What an adapter must know of its base model.")
      .def_ro("num_layers", &BaseModelShapes::num_layers)
      .def_ro("hidden", &BaseModelShapes::hidden)
      .def_ro("q_size", &BaseModelShapes::q_size)
      .def_ro("kv_size", &BaseModelShapes::kv_size)
      .def_ro("o_input", &BaseModelShapes::o_input)
      .def_ro("intermediate", &BaseModelShapes::intermediate)
      .def_ro("vocab", &BaseModelShapes::vocab)
      .def_ro("num_experts", &BaseModelShapes::num_experts)
      .def_ro("expert_intermediate", &BaseModelShapes::expert_intermediate);
  add_module(m);
  nb::class_<LoadedAdapter>(m, "Adapter", "An adapter as loaded.")
      .def_prop_ro("rank", [](const LoadedAdapter& a) { return a.adapter->rank; })
      .def_prop_ro("alpha", [](const LoadedAdapter& a) { return a.adapter->config.alpha; })
      .def_prop_ro("use_rslora",
                   [](const LoadedAdapter& a) { return a.adapter->config.use_rslora; })
      .def_prop_ro("base_model_name",
                   [](const LoadedAdapter& a) { return a.adapter->config.base_model_name; })
      .def_prop_ro("warnings", [](const LoadedAdapter& a) { return a.adapter->warnings; })
      .def_prop_ro("modules", [](const LoadedAdapter& a) { return modules_of(a.adapter); });
  m.def("base_model_shapes", &shapes_of);
  m.def("model_names", &model_names);
  m.def("load_adapter", [](const std::string& directory, const BaseModelShapes& shapes, bool strict,
                           int64_t max_lora_rank, bool check_finite,
                           const std::string& engine_dtype, bool assume_residual_base) {
    return LoadedAdapter{load(directory, shapes, strict, max_lora_rank, check_finite, engine_dtype,
                              assume_residual_base)};
  });
}

}  // namespace loratory::python
