#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "python/src/linear_args.hpp"
#include "reference/base/input_error.hpp"
#include "reference/quantized/quantize.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::python {
namespace {

using reference::ConstTensorView;

using Block = std::pair<int64_t, int64_t>;

std::optional<ConstTensorView> if_given(const Array* array) {
  if (array == nullptr) return {};
  return array->view();
}

reference::SumMode sum_of(const std::string& name) {
  return mode_of({"fp32", name, "accumulator"}).sum;
}

void quantize(const Array& v, const Int32s& widths, int64_t group_k, const Array& bits,
              const Array& scale) {
  const nb::gil_scoped_release no_gil;
  reference::quantize({.v = v.view(),
                       .widths = widths,
                       .group_k = group_k,
                       .bits = bits.writable(),
                       .scale = scale.writable()});
}

void shrink_quantized(const Array& x, const Array* x_scale, const Int32s& slots, const Arrays& a,
                      const Arrays& a_scales, const Int32Lists& ranks, const Block& block,
                      const Array& h) {
  const nb::gil_scoped_release no_gil;
  require_slices(a.size(), {a_scales.size(), ranks.size()});
  reference::QuantizedShrinkArgs args;
  args.x = x.view();
  args.x_scale = if_given(x_scale);
  args.slots = slots;
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i]->view(), a_scales[i]->view(), ranks[i]});
  }
  args.block = {block.first, block.second};
  args.h = h.writable();
  reference::shrink_quantized(args);
}

void expand_quantized(const Array& h, const Array* h_scale, const Int32s& slots, const Arrays& b,
                      const Arrays& b_scales, const Int32Lists& ranks, const FloatLists& scalings,
                      const Block& block, int64_t offset_start, bool add_inputs,
                      const std::string& sum, const Array& y) {
  const nb::gil_scoped_release no_gil;
  require_slices(b.size(), {b_scales.size(), ranks.size(), scalings.size()});
  reference::QuantizedExpandArgs args;
  args.h = h.view();
  args.h_scale = if_given(h_scale);
  args.slots = slots;
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({b[i]->view(), b_scales[i]->view(), ranks[i], scalings[i]});
  }
  args.block = {block.first, block.second};
  args.offset_start = offset_start;
  args.add_inputs = add_inputs;
  args.sum = sum_of(sum);
  args.y = y.writable();
  reference::expand_quantized(args);
}

void linear_quantized(const Array& x, const Array* x_scale, const Arrays& a, const Arrays& a_scales,
                      const Arrays& b, const Arrays& b_scales, const Int32Lists& ranks,
                      const FloatLists& scalings, const Int32s& slots, const Block& a_block,
                      const Block& b_block, int64_t offset_start, bool add_inputs,
                      const std::string& sum, const Array& y) {
  const nb::gil_scoped_release no_gil;
  require_slices(a.size(),
                 {a_scales.size(), b.size(), b_scales.size(), ranks.size(), scalings.size()});
  reference::QuantizedLinearArgs args;
  args.x = x.view();
  args.x_scale = if_given(x_scale);
  args.slots = slots;
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i]->view(), a_scales[i]->view(), b[i]->view(), b_scales[i]->view(),
                           ranks[i], scalings[i]});
  }
  args.a_block = {a_block.first, a_block.second};
  args.b_block = {b_block.first, b_block.second};
  args.offset_start = offset_start;
  args.add_inputs = add_inputs;
  args.sum = sum_of(sum);
  args.y = y.writable();
  reference::lora_linear_quantized(args);
}

}  // namespace

void add_quantized(nb::module_& m) {
  m.def("quantize", &quantize);
  m.def("shrink_quantized", &shrink_quantized, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("expand_quantized", &expand_quantized, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("linear_quantized", &linear_quantized, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
}

}  // namespace loratory::python
