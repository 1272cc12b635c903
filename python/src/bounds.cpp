#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>

#include "python/src/linear_args.hpp"
#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/oracle.hpp"

namespace loratory::python {
namespace {

using reference::Arithmetic;
using reference::Oracle;
using Numbers = nb::ndarray<nb::numpy, double>;

// What an implementation declares beyond its mode.
struct Declared {
  double unit, operand_rounding;
  bool flushes_subnormals;
};

void check_share(const char* name, double share) {
  if (!(share >= 0 && share < 1)) throw InputError(name, "is not within [0, 1)");
}

Arithmetic with(Arithmetic arithmetic, const Declared& declared) {
  check_share("unit", declared.unit);
  check_share("operand_rounding", declared.operand_rounding);
  arithmetic.unit = declared.unit;
  arithmetic.operand_rounding = declared.operand_rounding;
  arithmetic.flushes_subnormals = declared.flushes_subnormals;
  return arithmetic;
}

// Element by element; NaN where nothing is covered, and where a covered result is no number.
struct Judged {
  std::vector<double> expected, bound;
  std::vector<uint8_t> covered;

  void add(const Oracle& oracle, const Arithmetic& arithmetic) {
    constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
    for (const auto& facts : oracle.elements) {
      expected.push_back(facts ? facts->result() : kNothing);
      bound.push_back(facts ? reference::error_bound(*facts, arithmetic) : kNothing);
      covered.push_back(facts.has_value());
    }
  }
};

using JudgedArrays = std::tuple<Numbers, Numbers, nb::ndarray<nb::numpy, uint8_t>>;

// Of the shape of y.
JudgedArrays to_arrays(Judged judged, const Array& y) {
  const size_t rows = size_t(y.view().size(0)), columns = size_t(y.view().size(1));
  return {to_numpy(std::move(judged.expected), {rows, columns}),
          to_numpy(std::move(judged.bound), {rows, columns}),
          to_numpy(std::move(judged.covered), {rows, columns})};
}

JudgedArrays linear_bounds(const Array& x, const Arrays& a, const Arrays& b,
                           const Int32Lists& ranks, const FloatLists& scalings, const Int32s& slots,
                           int64_t offset_start, bool add_inputs,
                           const std::tuple<std::string, std::string, std::string>& mode,
                           double unit, double operand_rounding, bool flushes_subnormals,
                           const Array& y) {
  Judged judged;
  {
    const nb::gil_scoped_release no_gil;
    const reference::ConstTensorView base = y.view();
    // The oracle reads y and never writes it.
    reference::LinearArgs args =
        linear_args(x, a, b, ranks, scalings, slots,
                    {base.dtype, const_cast<std::byte*>(base.data), base.shape, base.strides});
    args.offset_start = offset_start;
    args.add_inputs = add_inputs;
    args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
    reference::check_linear(args);
    const Arithmetic arithmetic =
        with(reference::arithmetic_of(args), {unit, operand_rounding, flushes_subnormals});
    run_in_parts(std::ssize(slots), 4 * num_products(args), [&](int64_t begin, int64_t end) {
      judged.add(reference::linear_oracle(rows_of(args, begin, end)), arithmetic);
    });
  }
  return to_arrays(std::move(judged), y);
}

JudgedArrays embedding_bounds(const std::vector<int64_t>& token_ids, const Int32s& slots,
                              const Array& a, const Array& b, const Int32s& ranks,
                              const Floats& scalings,
                              const std::tuple<std::string, std::string, std::string>& mode,
                              double unit, double operand_rounding, bool flushes_subnormals,
                              const Array& y) {
  Judged judged;
  {
    const nb::gil_scoped_release no_gil;
    const reference::ConstTensorView base = y.view();
    reference::EmbeddingArgs args{.token_ids = token_ids, .slots = slots, .slice = {}, .y = {}};
    args.slice = {a.view(), b.view(), ranks, scalings, {}};
    args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
    args.y = {base.dtype, const_cast<std::byte*>(base.data), base.shape, base.strides};
    judged.add(reference::embedding_oracle(args),
               with(reference::arithmetic_of(args), {unit, operand_rounding, flushes_subnormals}));
  }
  return to_arrays(std::move(judged), y);
}

using GivenNumbers = nb::ndarray<const double, nb::c_contig>;
using GivenBytes = nb::ndarray<const uint8_t, nb::c_contig>;

// |got - expected| / bound of each element; 0 where nothing is covered.
Numbers error_over(const Array& got, const GivenNumbers& expected, const GivenNumbers& bound,
                   const GivenBytes& covered) {
  const reference::ConstTensorView view = got.view();
  if (view.num_axes() != 2 || expected.ndim() != 2 || bound.size() != expected.size() ||
      covered.size() != expected.size() || view.size(0) != int64_t(expected.shape(0)) ||
      view.size(1) != int64_t(expected.shape(1))) {
    throw InputError("got", "it has another shape than what is expected");
  }
  std::vector<double> errors(expected.size());
  const double* want = expected.data();
  const double* limit = bound.data();
  const uint8_t* is_covered = covered.data();
  without_gil([&] {
    for (size_t i = 0; i < errors.size(); ++i) {
      if (is_covered[i] == 0) continue;
      const int64_t row = int64_t(i) / view.size(1), column = int64_t(i) % view.size(1);
      errors[i] = reference::error_over(view.get(row, column), want[i], limit[i], view.dtype);
    }
  });
  return to_numpy(std::move(errors), {expected.shape(0), expected.shape(1)});
}

}  // namespace

void add_bounds(nb::module_& m) {
  m.def("linear_bounds", &linear_bounds);
  m.def("embedding_bounds", &embedding_bounds);
  m.def("error_over", &error_over);
  m.def("unit_roundoff",
        [](const std::string& dtype) { return reference::unit_roundoff(dtype_of(dtype)); });
}

}  // namespace loratory::python
