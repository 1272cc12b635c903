#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "python/src/arrays.hpp"
#include "reference/adapter/adapter_error.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/report/config_fields.hpp"

namespace loratory::python {
namespace {

// loratory.errors has the classes, so that their docstrings and fields are Python's.
void raise(const char* type, const nb::object& exception) {
  PyErr_SetObject(nb::module_::import_("loratory.errors").attr(type).ptr(), exception.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const reference::AdapterError& error) {
    const nb::object type = nb::module_::import_("loratory.errors").attr("AdapterError");
    raise("AdapterError",
          type(error.what(), std::string(reference::code_word(error.code())).c_str(),
               error.detail().c_str(), error.key().c_str()));
  } catch (const InputError& error) {
    const nb::object type = nb::module_::import_("loratory.errors").attr("InputError");
    raise("InputError", type(error.what()));
  }
}

template <typename T>
const char* python_type() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_integral_v<T>) return "int";
  if constexpr (std::is_floating_point_v<T>) return "float";
  return "str";
}

std::vector<std::pair<std::string, std::string>> config_fields() {
  std::vector<std::pair<std::string, std::string>> fields;
  sim::report::visit_fields(sim::ConfigResult{}, [&](const auto& name, const auto& value) {
    fields.emplace_back(name, python_type<std::remove_cvref_t<decltype(value)>>());
  });
  return fields;
}

}  // namespace

NB_MODULE(_loratory, m) {
  m.doc() = "The compiled half of loratory; the package has the public names.";
  nb::register_exception_translator(&translate);
  m.def("config_fields", &config_fields,
        "(name, type) of each field of a configuration in results.json.");
  add_arrays(m);
  add_operations(m);
  add_quantized(m);
  add_experts(m);
  add_bounds(m);
  add_layouts(m);
  add_adapters(m);
  add_traces(m);
  add_check(m);
  add_cases(m);
}

}  // namespace loratory::python
