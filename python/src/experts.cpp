#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/src/linear_args.hpp"
#include "reference/moe/expert_lora.hpp"

namespace loratory::python {
namespace {

using reference::ExpertLoraSlice;

// Which rows, of which adapters: the arguments that all functions here share.
struct Rows {
  int64_t experts_per_token = 1;
  Int32s experts, expert_map, slots, adapter_enabled;

  reference::ExpertRows rows() const { return {experts_per_token, experts, expert_map}; }
  reference::TokenAdapters adapters() const { return {slots, adapter_enabled}; }
  // Checks first: tiles are made of what is right.
  std::vector<reference::ExpertTile> tiles(int64_t num_experts) const {
    reference::check_rows(rows(), num_experts);
    reference::check_adapters(adapters(), rows());
    return reference::single_row_tiles(rows(), adapters());
  }
};

int64_t num_experts(const Arrays& weights) {
  if (weights.empty() || weights[0]->view().num_axes() != 4) return 0;
  return weights[0]->view().size(1);
}

void expert_shrink(const Array& x, const Rows& rows, const Arrays& a, const Int32Lists& ranks,
                   const Array& h) {
  const nb::gil_scoped_release no_gil;
  require_slices(a.size(), {ranks.size()});
  reference::ExpertShrinkArgs args{
      .x = x.view(), .rows = rows.rows(), .adapters = rows.adapters(), .slices = {}, .h = {}};
  for (size_t i = 0; i < a.size(); ++i) args.slices.push_back({a[i]->view(), {}, ranks[i], {}});
  args.h = h.writable();
  reference::expert_shrink(args, rows.tiles(num_experts(a)));
}

void expert_expand(const Array& h, const Rows& rows, const Arrays& b, const Int32Lists& ranks,
                   const FloatLists& scalings, const Floats& router_weights, int64_t offset_start,
                   const std::tuple<std::string, std::string, std::string>& mode, const Array& y) {
  const nb::gil_scoped_release no_gil;
  require_slices(b.size(), {ranks.size(), scalings.size()});
  reference::ExpertExpandArgs args;
  args.h = h.view();
  args.rows = rows.rows();
  args.adapters = rows.adapters();
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({{}, b[i]->view(), ranks[i], scalings[i]});
  }
  args.router_weights = router_weights;
  args.offset_start = offset_start;
  args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
  args.y = y.writable();
  reference::expert_expand(args, rows.tiles(num_experts(b)));
}

void expert_linear(const Array& x, const Rows& rows, const Arrays& a, const Arrays& b,
                   const Int32Lists& ranks, const FloatLists& scalings,
                   const Floats& router_weights,
                   const std::tuple<std::string, std::string, std::string>& mode, const Array& y) {
  const nb::gil_scoped_release no_gil;
  require_slices(a.size(), {b.size(), ranks.size(), scalings.size()});
  reference::ExpertLoraArgs args;
  args.x = x.view();
  args.rows = rows.rows();
  args.adapters = rows.adapters();
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i]->view(), b[i]->view(), ranks[i], scalings[i]});
  }
  args.router_weights = router_weights;
  args.mode = mode_of({std::get<0>(mode), std::get<1>(mode), std::get<2>(mode)});
  args.y = y.writable();
  reference::expert_lora(args, rows.tiles(num_experts(a)));
}

}  // namespace

void add_experts(nb::module_& m) {
  nb::class_<Rows>(m, "ExpertRows", "Which expert and which adapter each row has.")
      .def("__init__", [](Rows* self, int64_t experts_per_token, Int32s experts, Int32s expert_map,
                          Int32s slots, Int32s adapter_enabled) {
        new (self) Rows{experts_per_token, std::move(experts), std::move(expert_map),
                        std::move(slots), std::move(adapter_enabled)};
      });
  m.def("expert_shrink", &expert_shrink);
  m.def("expert_expand", &expert_expand);
  m.def("expert_linear", &expert_linear);
}

}  // namespace loratory::python
