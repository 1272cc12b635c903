#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "check/kernels/kernel.hpp"
#include "check/kernels/run_kernel_checks.hpp"
#include "check/loratory_plugin.h"
#include "python/src/claims.hpp"
#include "reference/base/input_error.hpp"

// A kernel written in Python behind loratory_plugin.h: each function of the plugin takes the GIL
// and calls the method of the same name of an object (loratory/checking.py), which returns None or
// one line that says why it failed.
namespace loratory::python {
namespace {

using reference::Dtype;

constexpr int kCudaDevice = nb::device::cuda::value;
constexpr int kHostDevice = nb::device::cpu::value;

// Where tensors without elements lie.
std::byte nowhere[1];

// What Python sees of a tensor: the name of its dtype, and its bits as DLPack can carry them
// everywhere: uint8, uint16, float16, float32, int8. None where there is none.
nb::object tensor(const LoratoryTensor& t, int device) {
  if (t.num_axes == 0 && t.data == nullptr) return nb::none();
  const Dtype dtype = Dtype(t.dtype);
  nb::dlpack::dtype bits{uint8_t(nb::dlpack::dtype_code::UInt),
                         uint8_t(8 * reference::size_bytes(dtype)), 1};
  if (dtype == Dtype::f32 || dtype == Dtype::f16) {
    bits.code = uint8_t(nb::dlpack::dtype_code::Float);
  } else if (dtype == Dtype::i8) {
    bits.code = uint8_t(nb::dlpack::dtype_code::Int);
  }
  std::array<size_t, 4> shape{};
  for (int32_t axis = 0; axis < t.num_axes; ++axis) shape[size_t(axis)] = size_t(t.shape[axis]);
  const nb::ndarray<nb::array_api> array(t.data == nullptr ? nowhere : t.data, size_t(t.num_axes),
                                         shape.data(), nb::handle(), t.strides, bits, device);
  return nb::make_tuple(std::string(reference::name(dtype)).c_str(),
                        nb::cast(array, nb::rv_policy::reference));
}

template <typename T>
nb::object vector_of(const T* data, int64_t size, int device) {
  if (data == nullptr && size > 0) return nb::none();
  const size_t shape = size_t(size);
  const nb::ndarray<nb::array_api> array(
      data == nullptr ? static_cast<void*>(nowhere) : const_cast<T*>(data), 1, &shape, nb::handle(),
      nullptr, nb::dtype<T>(), device);
  return nb::cast(array, nb::rv_policy::reference);
}

nb::dict slice_dict(const LoratorySlice& s, int64_t num_ranks, int device) {
  nb::dict out;
  out["a"] = tensor(s.a, device);
  out["b"] = tensor(s.b, device);
  out["a_scale"] = tensor(s.a_scale, device);
  out["b_scale"] = tensor(s.b_scale, device);
  out["ranks"] = vector_of(s.ranks, num_ranks, device);
  out["scalings"] = vector_of(s.scalings, num_ranks, device);
  out["host_ranks"] = vector_of(s.host_ranks, num_ranks, kHostDevice);
  out["host_scalings"] = vector_of(s.host_scalings, num_ranks, kHostDevice);
  out["num_out"] = s.num_out;
  return out;
}

void add_numbers(const LoratoryLayer& layer, nb::dict& out) {
  out["operation"] = layer.operation;
  out["layout"] = layer.layout;
  out["mode"] = nb::make_tuple(layer.mode.h, layer.mode.sum, layer.mode.scale);
  out["add_inputs"] = layer.add_inputs != 0;
  out["num_slots"] = layer.num_slots;
  out["max_rank"] = layer.max_rank;
  out["num_in"] = layer.num_in;
  out["num_columns"] = layer.num_columns;
  out["offset_start"] = layer.offset_start;
  out["max_tokens"] = layer.max_tokens;
  out["a_block"] = nb::make_tuple(layer.a_block_n, layer.a_block_k);
  out["b_block"] = nb::make_tuple(layer.b_block_n, layer.b_block_k);
  out["num_experts"] = layer.num_experts;
  out["experts_per_token"] = layer.experts_per_token;
  out["rows_per_x"] = layer.rows_per_x;
}

nb::dict layer_dict(const LoratoryLayer& layer, int device) {
  nb::dict out;
  add_numbers(layer, out);
  nb::list slices;
  const int64_t num_ranks = layer.num_slots * layer.num_experts;
  for (int64_t i = 0; i < layer.num_slices; ++i) {
    slices.append(slice_dict(layer.slices[i], num_ranks, device));
  }
  out["slices"] = slices;
  out["stacked_a"] = tensor(layer.stacked_a, device);
  out["stacked_b"] = tensor(layer.stacked_b, device);
  return out;
}

// What is fixed in a layer and says how long the arrays of its steps are.
struct StepSizes {
  int64_t num_slots, experts_per_token;
};

nb::dict step_dict(const LoratoryStep& step, const StepSizes& sizes, int device) {
  const int64_t num_rows = step.num_tokens * sizes.experts_per_token;
  nb::dict out;
  out["num_tokens"] = step.num_tokens;
  out["slots"] = vector_of(step.slots, step.num_tokens, device);
  out["host_slots"] = vector_of(step.host_slots, step.num_tokens, kHostDevice);
  out["token_ids"] = vector_of(step.token_ids, step.num_tokens, device);
  out["host_token_ids"] = vector_of(step.host_token_ids, step.num_tokens, kHostDevice);
  out["experts"] = vector_of(step.experts, num_rows, device);
  out["host_experts"] = vector_of(step.host_experts, num_rows, kHostDevice);
  out["router_weights"] = vector_of(step.router_weights, num_rows, device);
  out["enabled"] = vector_of(step.enabled, sizes.num_slots, device);
  out["host_enabled"] = vector_of(step.host_enabled, sizes.num_slots, kHostDevice);
  return out;
}

// One kernel of Python, and the plugin that the harness sees.
class PythonKernel {
 public:
  PythonKernel(nb::object methods, std::string name, bool is_on_device, const nb::dict& claims);
  PythonKernel(const PythonKernel&) = delete;
  PythonKernel& operator=(const PythonKernel&) = delete;

  const LoratoryPlugin& plugin() const { return plugin_; }
  // Handles signals; true once an exception is kept that ends the run.
  bool is_interrupted();
  void rethrow() {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  struct State {
    nb::object layer;
    StepSizes sizes;
    PythonKernel* kernel;
  };

  // With the GIL. 0, or 1 and a line in error_. KeyboardInterrupt and the like end the run.
  template <typename Body>
  int call(Body body) {
    if (exception_) return 1;
    const nb::gil_scoped_acquire gil;
    try {
      const nb::object problem = body();
      if (problem.is_none()) return 0;
      error_ = nb::cast<std::string>(problem);
    } catch (...) {
      exception_ = std::current_exception();
      error_ = "interrupted";
    }
    return 1;
  }

  static int create(void* context, const LoratoryLayer* layer, void** state);
  static int prepare(void* state, const LoratoryStep* step, void* stream);
  static int run(void* state, const LoratoryCall* call, void* stream);
  static int weights_changed(void* state, int32_t slot);
  static void destroy(void* state);
  static int64_t workspace_bytes(void*, int64_t) { return 0; }
  static const char* error(void* context) {
    return static_cast<PythonKernel*>(context)->error_.c_str();
  }

  nb::object methods_;
  std::string name_, error_;
  Claims claims_;
  LoratoryPlugin plugin_{};
  int device_;
  std::exception_ptr exception_;
};

PythonKernel::PythonKernel(nb::object methods, std::string name, bool is_on_device,
                           const nb::dict& claims)
    : methods_(std::move(methods)),
      name_(std::move(name)),
      claims_(claims),
      device_(is_on_device ? kCudaDevice : kHostDevice) {
  plugin_.version = LORATORY_PLUGIN_VERSION;
  plugin_.struct_bytes = sizeof(LoratoryPlugin);
  plugin_.name = name_.c_str();
  plugin_.memory = is_on_device ? LORATORY_MEMORY_CUDA : LORATORY_MEMORY_HOST;
  plugin_.claims = &claims_.get();
  plugin_.context = this;
  plugin_.create = &create;
  plugin_.workspace_bytes = &workspace_bytes;
  plugin_.prepare = &prepare;
  plugin_.run = &run;
  plugin_.weights_changed = &weights_changed;
  plugin_.destroy = &destroy;
  plugin_.error = &error;
}

bool PythonKernel::is_interrupted() {
  if (exception_) return true;
  try {
    take_signals();
  } catch (const nb::python_error&) {
    exception_ = std::current_exception();
  }
  return exception_ != nullptr;
}

int PythonKernel::create(void* context, const LoratoryLayer* layer, void** state) {
  auto* const self = static_cast<PythonKernel*>(context);
  return self->call([&]() -> nb::object {
    const nb::object made = self->methods_.attr("create")(layer_dict(*layer, self->device_));
    if (nb::isinstance<nb::str>(made)) return made;  // why it failed
    *state = new State{made, {layer->num_slots, layer->experts_per_token}, self};
    return nb::none();
  });
}

int PythonKernel::prepare(void* state, const LoratoryStep* step, void* stream) {
  const State& s = *static_cast<State*>(state);
  return s.kernel->call([&]() -> nb::object {
    return s.kernel->methods_.attr("prepare")(s.layer, step_dict(*step, s.sizes, s.kernel->device_),
                                              uintptr_t(stream));
  });
}

int PythonKernel::run(void* state, const LoratoryCall* call, void* stream) {
  const State& s = *static_cast<State*>(state);
  return s.kernel->call([&]() -> nb::object {
    const int device = s.kernel->device_;
    nb::dict tensors = step_dict(*call->step, s.sizes, device);
    tensors["x"] = tensor(call->x, device);
    tensors["x_scale"] = tensor(call->x_scale, device);
    tensors["h"] = tensor(call->h, device);
    tensors["h_scale"] = tensor(call->h_scale, device);
    tensors["y"] = tensor(call->y, device);
    return s.kernel->methods_.attr("run")(s.layer, tensors, uintptr_t(stream));
  });
}

int PythonKernel::weights_changed(void* state, int32_t slot) {
  const State& s = *static_cast<State*>(state);
  return s.kernel->call(
      [&]() -> nb::object { return s.kernel->methods_.attr("weights_changed")(s.layer, slot); });
}

void PythonKernel::destroy(void* state) {
  const nb::gil_scoped_acquire gil;
  delete static_cast<State*>(state);
}

check::Options options_of(const nb::dict& given) {
  using Names = std::vector<std::string>;
  check::Options options;
  options.operations = nb::cast<Names>(given["operations"]);
  options.checks = nb::cast<Names>(given["checks"]);
  options.labels = nb::cast<Names>(given["labels"]);
  options.seed = nb::cast<uint64_t>(given["seed"]);
  options.num_cases = nb::cast<int64_t>(given["num_cases"]);
  options.budget_s = nb::cast<double>(given["budget_s"]);
  options.max_products = nb::cast<int64_t>(given["max_products"]);
  options.max_bytes = nb::cast<int64_t>(given["max_bytes"]);
  options.shrinks = nb::cast<bool>(given["shrinks"]);
  options.stops_at_first = nb::cast<bool>(given["stops_at_first"]);
  options.command = nb::cast<std::string>(given["command"]);
  return options;
}

check::Report run_checks(nb::object methods, const std::string& name, bool is_on_device,
                         const nb::dict& claims, const nb::dict& options) {
  PythonKernel kernel(std::move(methods), name, is_on_device, claims);
  check::Options chosen = options_of(options);
  chosen.is_interrupted = [&] { return kernel.is_interrupted(); };
  const nb::gil_scoped_release no_gil;
  check::Report report = check::run_kernel_checks(check::Kernel(kernel.plugin()), chosen);
  kernel.rethrow();
  return report;
}

void add_report(nb::module_& m) {
  using check::CheckResult;
  using check::Finding;
  using check::Report;
  nb::class_<CheckResult>(m, "CheckResult")
      .def_ro("name", &CheckResult::name)
      .def_prop_ro("state", [](const CheckResult& r) { return std::string(name(r.state)); })
      .def_ro("num_cases", &CheckResult::num_cases)
      .def_ro("num_comparisons", &CheckResult::num_comparisons)
      .def_ro("worst", &CheckResult::worst)
      .def_ro("note", &CheckResult::note);
  nb::class_<Finding>(m, "Finding")
      .def_ro("check", &Finding::check)
      .def_ro("label", &Finding::label)
      .def_ro("smallest", &Finding::smallest)
      .def_ro("what", &Finding::what)
      .def_ro("pattern", &Finding::pattern)
      .def_ro("repro", &Finding::repro)
      .def_ro("reference", &Finding::reference);
  nb::class_<Report>(m, "Report")
      .def_ro("subject", &Report::subject)
      .def_ro("seed", &Report::seed)
      .def_ro("num_cases", &Report::num_cases)
      .def_ro("seconds", &Report::seconds)
      .def_ro("checks", &Report::checks)
      .def_ro("findings", &Report::findings)
      .def_ro("stale", &Report::stale)
      .def_prop_ro("ok", &Report::ok)
      .def("text", [](const Report& r) { return check::as_text(r); })
      .def("json", [](const Report& r) { return check::as_json(r); })
      .def("junit", [](const Report& r) { return check::as_junit(r); });
}

}  // namespace

void add_check(nb::module_& m) {
  add_report(m);
  m.def("run_checks", &run_checks);
  m.def("check_names", &check::kernel_check_names);
}

}  // namespace loratory::python
