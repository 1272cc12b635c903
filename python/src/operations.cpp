#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/src/linear_args.hpp"
#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/scaling.hpp"

namespace loratory::python {
namespace {

using reference::EmbeddingArgs;
using reference::ExpandArgs;
using reference::IntermediateMode;
using reference::LinearArgs;
using reference::ScaleMode;
using reference::ShrinkArgs;
using reference::SumMode;

template <typename Value>
Value one_of(const std::string& name, const std::string& field,
             std::initializer_list<std::pair<const char*, Value>> known) {
  std::string names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    names.append(names.empty() ? "" : ", ").append(text);
  }
  throw InputError("mode." + field, "\"" + name + "\" is not known", "one of " + names);
}

void shrink(const Array& x, const Int32s& slots, const Arrays& a, const Int32Lists& ranks,
            const Array& h) {
  const nb::gil_scoped_release no_gil;
  require_slices(a.size(), {ranks.size()});
  ShrinkArgs args{.x = x.view(), .slots = slots, .slices = {}, .h = h.writable()};
  double products = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i]->view(), ranks[i]});
    const auto& shape = args.slices[i].a.shape;
    if (shape.size() == 3) products += double(slots.size()) * double(shape[1]) * double(shape[2]);
  }
  reference::check_shrink(args);
  run_in_parts(std::ssize(slots), products, [&](int64_t begin, int64_t end) {
    ShrinkArgs part = args;
    part.x = args.x.part(0, begin, end);
    part.slots = args.slots.subspan(size_t(begin), size_t(end - begin));
    part.h = args.h.part(1, begin, end);
    reference::shrink(part);
  });
}

void expand(const Array& h, const Int32s& slots, const Arrays& b, const Int32Lists& ranks,
            const FloatLists& scalings, int64_t offset_start, bool add_inputs,
            const std::tuple<std::string, std::string, std::string>& mode, const Array& y) {
  const nb::gil_scoped_release no_gil;
  require_slices(b.size(), {ranks.size(), scalings.size()});
  ExpandArgs args{.h = h.view(), .slots = slots, .slices = {}, .y = {}};
  args.offset_start = offset_start;
  args.add_inputs = add_inputs;
  args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
  args.y = y.writable();
  double products = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({b[i]->view(), ranks[i], scalings[i]});
    const auto& shape = args.slices[i].b.shape;
    if (shape.size() == 3) products += double(slots.size()) * double(shape[1]) * double(shape[2]);
  }
  reference::check_expand(args);
  run_in_parts(std::ssize(slots), products, [&](int64_t begin, int64_t end) {
    ExpandArgs part = args;
    part.h = args.h.part(1, begin, end);
    part.slots = args.slots.subspan(size_t(begin), size_t(end - begin));
    part.y = args.y.part(0, begin, end);
    reference::expand(part);
  });
}

void linear(const Array& x, const Arrays& a, const Arrays& b, const Int32Lists& ranks,
            const FloatLists& scalings, const Int32s& slots, const Arrays& biases,
            int64_t offset_start, bool add_inputs,
            const std::tuple<std::string, std::string, std::string>& mode, const Array& y) {
  const nb::gil_scoped_release no_gil;
  LinearArgs args = linear_args(x, a, b, ranks, scalings, slots, y.writable());
  args.offset_start = offset_start;
  args.add_inputs = add_inputs;
  args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
  if (!biases.empty()) require_slices(a.size(), {biases.size()});
  for (size_t i = 0; i < biases.size(); ++i) {
    if (biases[i] != nullptr) args.slices[i].bias = biases[i]->view();
  }
  reference::check_linear(args);
  run_in_parts(std::ssize(slots), num_products(args), [&](int64_t begin, int64_t end) {
    reference::lora_linear(rows_of(args, begin, end));
  });
}

void embedding(const std::vector<int64_t>& token_ids, const Int32s& slots, const Array& a,
               const Array& b, const Int32s& ranks, const Floats& scalings,
               const std::tuple<std::string, std::string, std::string>& mode, const Array& y) {
  const nb::gil_scoped_release no_gil;
  EmbeddingArgs args{.token_ids = token_ids, .slots = slots, .slice = {}, .y = {}};
  args.slice = {a.view(), b.view(), ranks, scalings, {}};
  args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
  args.y = y.writable();
  reference::lora_embedding(args);
}

}  // namespace

reference::NumericMode mode_of(const ModeNames& names) {
  return {one_of<IntermediateMode>(names.h, "h",
                                   {{"fp32", IntermediateMode::fp32},
                                    {"split2", IntermediateMode::split2},
                                    {"cast_to_weight", IntermediateMode::cast_to_weight},
                                    {"store_as_x", IntermediateMode::store_as_x}}),
          one_of<SumMode>(names.sum, "sum",
                          {{"one_round", SumMode::one_round}, {"two_round", SumMode::two_round}}),
          one_of<ScaleMode>(
              names.scale, "scale",
              {{"accumulator", ScaleMode::accumulator}, {"folded_b", ScaleMode::folded_b}})};
}

void require_slices(size_t num_slices, std::initializer_list<size_t> others) {
  for (const size_t size : others) {
    if (size != num_slices) {
      throw InputError("slices", "a, b, ranks and scalings have unequal numbers of slices",
                       "give one entry of each for each slice");
    }
  }
}

LinearArgs linear_args(const Array& x, const Arrays& a, const Arrays& b, const Int32Lists& ranks,
                       const FloatLists& scalings, const Int32s& slots,
                       const reference::TensorView& y) {
  require_slices(a.size(), {b.size(), ranks.size(), scalings.size()});
  LinearArgs args{.x = x.view(), .slots = slots, .slices = {}, .y = y};
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i]->view(), b[i]->view(), ranks[i], scalings[i], {}});
  }
  return args;
}

double num_products(const LinearArgs& args) {
  double of_row = 0;
  for (const reference::LoraSlice& slice : args.slices) {
    if (slice.a.num_axes() != 3 || slice.b.num_axes() != 3) return 0;  // an error soon
    of_row += double(slice.a.size(1)) * double(slice.a.size(2) + slice.b.size(1));
  }
  return of_row * double(args.slots.size());
}

void add_operations(nb::module_& m) {
  m.def("shrink", &shrink);
  m.def("expand", &expand);
  m.def("linear", &linear);
  m.def("embedding", &embedding);
  m.def("lora_scaling", &reference::lora_scaling, nb::arg("alpha"), nb::arg("rank"),
        nb::arg("use_rslora"));
}

}  // namespace loratory::python
