#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check/cases/case.hpp"
#include "check/cases/case_data.hpp"
#include "check/cases/draw.hpp"
#include "check/cases/draw_case.hpp"
#include "check/kernels/expected.hpp"
#include "python/src/claims.hpp"
#include "reference/base/input_error.hpp"
#include "reference/numerics/error_bound.hpp"

// Cases for tests that call their kernel themselves: tensors to copy, and a judge of the result.
namespace loratory::python {
namespace {

using check::CaseData;
using check::Stretch;
using reference::Tensor;

struct TestCase {
  TestCase(const std::string& label, const nb::dict& claimed, bool must_be_claimed)
      : claims(claimed), data(draw(label, claims.get(), must_be_claimed)) {}

  Claims claims;
  CaseData data;

 private:
  static CaseData draw(const std::string& label, const LoratoryClaims& claims,
                       bool must_be_claimed) {
    const bool reads_all = (claims.abilities & LORATORY_READS_BEYOND_RANK) != 0;
    return without_gil([&] {
      const check::Case c = check::case_named(label);
      if (must_be_claimed) check::check_claimed(c, claims);
      return CaseData(c, reads_all ? check::BeyondRank::zeros : check::BeyondRank::nan);
    });
  }
};

// A numpy array of the bits of a tensor that is not written; with the name of its dtype.
nb::object shown(const std::optional<Tensor>& tensor, nb::handle owner) {
  if (!tensor) return nb::none();
  return nb::make_tuple(std::string(reference::name(tensor->dtype())).c_str(),
                        show(tensor->view(), owner));
}

template <typename T>
nb::object listed(const std::vector<T>& values) {
  if (values.empty()) return nb::none();
  return nb::cast(to_numpy(values));
}

nb::dict slice_dict(const check::SliceData& slice, nb::handle owner) {
  nb::dict out;
  out["a"] = shown(slice.a, owner);
  out["b"] = shown(slice.b, owner);
  out["a_scale"] = shown(slice.a_scale, owner);
  out["b_scale"] = shown(slice.b_scale, owner);
  out["ranks"] = listed(slice.ranks);
  out["scalings"] = listed(slice.scalings);
  return out;
}

nb::dict step_dict(const check::StepData& step, nb::handle owner) {
  nb::dict out;
  out["x"] = shown(step.x, owner);
  out["x_scale"] = shown(step.x_scale, owner);
  out["h"] = shown(step.h, owner);
  out["h_scale"] = shown(step.h_scale, owner);
  out["y"] = shown(step.y, owner);
  out["slots"] = to_numpy(step.slots);
  out["token_ids"] = listed(step.token_ids);
  out["experts"] = listed(step.experts);
  out["router_weights"] = listed(step.router_weights);
  out["enabled"] = listed(step.enabled);
  return out;
}

nb::dict layer_dict(const CaseData& data, nb::handle owner) {
  const check::Case& c = data.shape;
  nb::dict out;
  out["operation"] = int(c.operation);
  out["layout"] = int(c.layout);
  out["mode"] = nb::make_tuple(int(c.mode.h), int(c.mode.sum), int(c.mode.scale));
  out["add_inputs"] = c.add_inputs;
  out["num_slots"] = c.num_slots();
  out["max_rank"] = c.max_rank;
  out["num_in"] = c.num_in;
  out["num_columns"] = c.num_columns();
  out["offset_start"] = c.offset_start;
  out["max_tokens"] = c.num_tokens;
  out["num_out"] = c.num_out;
  out["a_block"] = nb::make_tuple(data.a_block_n, data.a_block_k);
  out["b_block"] = nb::make_tuple(data.b_block_n, data.b_block_k);
  out["num_experts"] = c.num_experts;
  out["experts_per_token"] = c.experts_per_token;
  out["rows_per_x"] = c.x_by_row ? 1 : c.experts_per_token;
  out["stacked_a"] = shown(data.stacked_a, owner);
  out["stacked_b"] = shown(data.stacked_b, owner);
  nb::list slices;
  for (const check::SliceData& slice : data.slices) slices.append(slice_dict(slice, owner));
  out["slices"] = slices;
  return out;
}

// (slice of h or 0, row, column, got, want, error / bound, whether the operation may write it).
using Wrong = std::tuple<int64_t, int64_t, int64_t, double, double, double, bool>;

class Judge {
 public:
  Judge(const TestCase& test, const reference::ConstTensorView& got)
      : data_(test.data),
        expected_(data_, data_.step, test.claims.get(), true),
        before_(data_.output(data_.step).view()),
        got_(got) {
    if (got.dtype != before_.dtype || got.shape != before_.shape) {
      throw InputError("got", "its dtype or shape is not that of the case's output");
    }
  }

  std::tuple<double, std::vector<Wrong>> judge() {
    reference::Tensor allowed(before_.dtype, before_.shape);  // where the kernel may write: 1
    for (size_t i = 0; i < expected_.stretches().size(); ++i) judge(int64_t(i), allowed.view());
    const bool is_h = before_.num_axes() == 3;
    for (int64_t s = 0; s < (is_h ? before_.size(0) : 1); ++s) {
      if (is_h) {
        untouched(s, allowed.view()[s], before_[s], got_[s]);
      } else {
        untouched(s, allowed.view(), before_, got_);
      }
    }
    return {worst_, wrong_};
  }

 private:
  void judge(int64_t index, const reference::TensorView& allowed) {
    const Stretch& at = expected_.stretches()[size_t(index)];
    const bool is_h = before_.num_axes() == 3;
    for (int64_t i = 0; i < at.count; ++i) {
      const int64_t column = at.first + i;
      double got = 0;
      if (is_h) {
        got = got_.get(int64_t(at.slice), at.row, column);
        allowed.set(1, int64_t(at.slice), at.row, column);
      } else {
        got = got_.get(at.row, column);
        allowed.set(1, at.row, column);
      }
      const double want = expected_.exact(index, i);
      const double error =
          reference::error_over(got, want, expected_.bound(index, i), before_.dtype);
      worst_ = std::max(worst_, error);
      if (!(error <= 1)) wrong_.emplace_back(at.slice, at.row, column, got, want, error, true);
    }
  }

  void untouched(int64_t slice, const reference::ConstTensorView& allowed,
                 const reference::ConstTensorView& before, const reference::ConstTensorView& got) {
    const size_t size = reference::size_bytes(before.dtype);
    for (int64_t row = 0; row < before.size(0); ++row) {
      for (int64_t column = 0; column < before.size(1); ++column) {
        if (allowed.get(row, column) == 1) continue;
        if (std::memcmp(before.address(row, column), got.address(row, column), size) == 0) continue;
        if (check::may_write_beyond_rank(data_, data_.step, row, got.get(row, column))) continue;
        worst_ = INFINITY;
        wrong_.emplace_back(slice, row, column, got.get(row, column), before.get(row, column),
                            worst_, false);
      }
    }
  }

  const CaseData& data_;
  check::Expected expected_;
  reference::ConstTensorView before_, got_;
  double worst_ = 0;
  std::vector<Wrong> wrong_;
};

std::vector<std::string> draw_labels(const LoratoryClaims& claims, int64_t num_cases, uint64_t seed,
                                     int64_t max_products) {
  std::vector<int32_t> operations;
  for (int32_t i = 0; i < LORATORY_NUM_OPERATIONS; ++i) {
    if ((claims.operations >> i & 1) != 0) operations.push_back(i);
  }
  std::vector<std::string> labels;
  for (int64_t i = 0; i < num_cases && !operations.empty(); ++i) {
    const auto operation = LoratoryOperation(operations[size_t(i) % operations.size()]);
    const check::CaseLimits limits{claims, operation, max_products};
    const uint64_t of_case = check::random_bits(seed, 1, uint64_t(i)) >> 32;
    labels.push_back(check::label_of(check::draw_case(of_case, limits)));
  }
  return labels;
}

}  // namespace

void add_cases(nb::module_& m) {
  nb::class_<TestCase>(m, "TestCase", "A case by its label, with its tensors.")
      .def(nb::init<const std::string&, const nb::dict&, bool>())
      .def_prop_ro("label", [](const TestCase& t) { return check::label_of(t.data.shape); })
      .def("layer",
           [](nb::handle_t<TestCase> self) {
             return layer_dict(nb::cast<const TestCase&>(self).data, self);
           })
      .def("step",
           [](nb::handle_t<TestCase> self) {
             return step_dict(nb::cast<const TestCase&>(self).data.step, self);
           })
      .def("judge", [](const TestCase& test, const Array& got) {
        return without_gil([&] { return Judge(test, got.view()).judge(); });
      });
  m.def("draw_labels", [](const nb::dict& claimed, int64_t num_cases, uint64_t seed,
                          int64_t max_products) {
    const Claims claims(claimed);
    return without_gil([&] { return draw_labels(claims.get(), num_cases, seed, max_products); });
  });
}

}  // namespace loratory::python
