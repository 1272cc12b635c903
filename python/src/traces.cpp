#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <ostream>
#include <string_view>

#include "python/src/arrays.hpp"
#include "reference/base/atomic_file.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/summary.hpp"
#include "scheduler_sim/trace/writer.hpp"

namespace loratory::python {
namespace {

using sim::Trace;
using sim::TraceRequest;

sim::ReadOptions options_of(const std::string& format, bool skip_bad_rows, uint32_t block_tokens,
                            bool adapter_from_model, std::vector<std::string> base_models,
                            uint32_t default_prompt_tokens, uint32_t default_output_tokens) {
  sim::ReadOptions options;
  options.format = sim::trace_format(format);
  options.skip_bad_rows = skip_bad_rows;
  options.block_tokens = block_tokens;
  options.adapter_from_model = adapter_from_model;
  options.base_models = std::move(base_models);
  options.default_prompt_tokens = default_prompt_tokens;
  options.default_output_tokens = default_output_tokens;
  options.on_progress = [](uint64_t, uint64_t, uint64_t) { take_signals(); };
  return options;
}

template <typename T, typename Get>
nb::ndarray<nb::numpy, T> column(const Trace& trace, Get get) {
  return to_numpy(without_gil([&] {
    std::vector<T> values;
    values.reserve(trace.requests.size());
    for (const TraceRequest& request : trace.requests) values.push_back(get(request));
    return values;
  }));
}

nb::dict columns(const Trace& trace) {
  nb::dict out;
  out["arrival_ns"] = column<int64_t>(trace, [](auto& r) { return r.arrival_ns; });
  out["cancel_ns"] = column<int64_t>(
      trace, [](auto& r) { return r.cancel_ns == sim::kNever ? int64_t{-1} : r.cancel_ns; });
  out["prompt_tokens"] = column<uint32_t>(trace, [](auto& r) { return r.prompt_tokens; });
  out["output_tokens"] = column<uint32_t>(trace, [](auto& r) { return r.output_tokens; });
  out["adapter"] = column<int64_t>(trace, [](auto& r) {
    return r.adapter == sim::kBaseModel ? int64_t{-1} : int64_t(r.adapter);
  });
  out["priority"] = column<int32_t>(trace, [](auto& r) { return r.priority; });
  out["session"] = column<uint32_t>(trace, [](auto& r) { return r.session; });
  return out;
}

std::vector<std::tuple<std::string, uint32_t>> adapters(const Trace& trace) {
  std::vector<std::tuple<std::string, uint32_t>> out;
  for (const sim::TraceAdapter& adapter : trace.adapters) {
    out.emplace_back(adapter.name, adapter.rank);
  }
  return out;
}

nb::dict tokens(const sim::TokenStatistics& s) {
  nb::dict out;
  out["mean"] = s.mean;
  out["p50"] = s.p50;
  out["p90"] = s.p90;
  out["p95"] = s.p95;
  out["p99"] = s.p99;
  out["min"] = s.min;
  out["max"] = s.max;
  return out;
}

nb::dict summary(const Trace& trace) {
  const sim::TraceSummary s = without_gil([&] { return sim::summarize(trace); });
  nb::dict out;
  out["num_requests"] = s.num_requests;
  out["span_s"] = s.span_s;
  out["request_rate"] = s.request_rate;
  out["gap_mean_s"] = s.gap_mean_s;
  out["gap_cv"] = s.gap_cv;
  out["prompt"] = tokens(s.prompt);
  out["output"] = tokens(s.output);
  out["num_base_requests"] = s.num_base_requests;
  out["num_blocks"] = s.num_blocks;
  out["num_distinct_blocks"] = s.num_distinct_blocks;
  out["num_sessions"] = s.num_sessions;
  out["num_cancelled"] = s.num_cancelled;
  return out;
}

void save(const Trace& trace, const std::string& path) {
  const nb::gil_scoped_release no_gil;
  AtomicFile file(path);
  sim::write_native(file.stream(), trace, [](uint64_t) { take_signals(); });
  file.commit();
}

struct LoadedTrace {
  std::shared_ptr<const Trace> trace;
};

void add_trace_class(nb::module_& m) {
  nb::class_<LoadedTrace>(m, "Trace", "A trace in memory.")
      .def("__len__", [](const LoadedTrace& t) { return t.trace->requests.size(); })
      .def("columns", [](const LoadedTrace& t) { return columns(*t.trace); })
      .def("adapters", [](const LoadedTrace& t) { return adapters(*t.trace); })
      .def("summary", [](const LoadedTrace& t) { return summary(*t.trace); })
      .def("ids", [](const LoadedTrace& t) { return t.trace->ids; })
      .def("blocks_of",
           [](const LoadedTrace& t, size_t i) {
             const auto blocks = t.trace->blocks_of(t.trace->requests.at(i));
             return to_numpy(std::vector<uint64_t>(blocks.begin(), blocks.end()));
           })
      .def("tokens_of",
           [](const LoadedTrace& t, size_t i) {
             const auto ids = t.trace->tokens_of(t.trace->requests.at(i));
             return to_numpy(std::vector<int32_t>(ids.begin(), ids.end()));
           })
      .def("save", [](const LoadedTrace& t, const std::string& path) { save(*t.trace, path); })
      .def_prop_ro("block_tokens", [](const LoadedTrace& t) { return t.trace->block_tokens; })
      .def_prop_ro("source", [](const LoadedTrace& t) { return t.trace->source; })
      .def_prop_ro("format", [](const LoadedTrace& t) { return t.trace->format; })
      .def_prop_ro("checksum", [](const LoadedTrace& t) { return t.trace->checksum; })
      .def_prop_ro("notes", [](const LoadedTrace& t) { return t.trace->notes; })
      .def_prop_ro("num_rows_skipped",
                   [](const LoadedTrace& t) { return t.trace->num_rows_skipped; });
}

}  // namespace

void add_traces(nb::module_& m) {
  add_trace_class(m);
  m.def("trace_format_names", &sim::trace_format_names);
  m.def("read_trace", [](const std::string& path, const std::string& format, bool skip_bad_rows,
                         uint32_t block_tokens, bool adapter_from_model,
                         std::vector<std::string> base_models, uint32_t default_prompt_tokens,
                         uint32_t default_output_tokens) {
    const nb::gil_scoped_release no_gil;
    return LoadedTrace{std::make_shared<const Trace>(sim::read_trace(
        path, options_of(format, skip_bad_rows, block_tokens, adapter_from_model,
                         std::move(base_models), default_prompt_tokens, default_output_tokens)))};
  });
  m.def("parse_trace", [](const nb::bytes& bytes, const std::string& name,
                          const std::string& format, bool skip_bad_rows) {
    const std::string_view text(static_cast<const char*>(bytes.data()), bytes.size());
    const nb::gil_scoped_release no_gil;
    return LoadedTrace{std::make_shared<const Trace>(
        sim::read_trace_from(text, name, options_of(format, skip_bad_rows, 0, false, {}, 0, 0)))};
  });
}

}  // namespace loratory::python
