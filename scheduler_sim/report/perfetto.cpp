#include "scheduler_sim/report/perfetto.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>

#include "reference/base/check.hpp"
#include "reference/base/escape.hpp"

namespace loratory::sim {
namespace {

// Processes of the first run; those of a second one follow.
constexpr int kSlotsPid = 1;
constexpr int kEnginePid = 2;
constexpr int kRequestsPid = 3;
constexpr int kNumPids = 3;

// Where the events of a run go.
struct Lane {
  int run = 0;              // of how many
  std::string_view suffix;  // of its processes' names
  size_t first_id = 0;      // of its requests' tracks

  int pid(int of_first) const { return of_first + run * kNumPids; }
};

std::string micros(int64_t time_ns) {
  return fmt::format("{}.{:03}", time_ns / 1000, time_ns % 1000);
}

// One event a line, with the commas of a JSON array between them.
class EventList {
 public:
  explicit EventList(std::ostream& out) : out_(out) {}

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    line_.clear();
    fmt::format_to(std::back_inserter(line_), format, std::forward<Args>(args)...);
    out_ << (first_ ? "\n" : ",\n");
    out_.write(line_.data(), static_cast<std::streamsize>(line_.size()));
    first_ = false;
  }

 private:
  std::ostream& out_;
  fmt::memory_buffer line_;
  bool first_ = true;
};

std::string name_of(uint32_t adapter, std::span<const TraceAdapter> adapters) {
  if (adapter == kBaseModel) return "base model";
  LORATORY_ASSERT(adapter < adapters.size(), "a record names an adapter of its trace");
  return adapters[adapter].name;
}

void add_names(EventList& events, const ConfigResult& config, const Lane& lane) {
  const auto process = [&](int of_first, std::string_view name) {
    const int pid = lane.pid(of_first);
    const int place = lane.suffix.empty() ? of_first : 2 * of_first + lane.run;
    events.add(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}{}"}}}})", pid, name,
               lane.suffix);
    events.add(R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}})",
               pid, place);
  };
  process(kSlotsPid, "adapter slots");
  process(kEnginePid, "engine");
  process(kRequestsPid, "requests");
  int num_slots = 0;
  for (const SlotSpan& span : config.slot_spans) num_slots = std::max(num_slots, span.slot + 1);
  for (int slot = 0; slot < num_slots; ++slot) {
    events.add(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"slot {}"}}}})",
               lane.pid(kSlotsPid), slot + 1, slot);
  }
}

void add_slots(EventList& events, std::span<const SlotSpan> spans,
               std::span<const TraceAdapter> adapters, const Lane& lane) {
  for (const SlotSpan& span : spans) {
    events.add(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},)"
               R"("cat":"residency","name":{},"args":{{"rank":{}}}}})",
               lane.pid(kSlotsPid), span.slot + 1, micros(span.begin_ns),
               micros(span.end_ns - span.begin_ns), json_string(name_of(span.adapter, adapters)),
               span.adapter < adapters.size() ? adapters[span.adapter].rank : 0);
  }
}

void add_counters(EventList& events, const ConfigResult& config, const Lane& lane) {
  const auto counter = [&](const TimelineSample& sample, std::string_view name, int64_t value) {
    events.add(R"({{"ph":"C","pid":{},"ts":{},"name":"{}","args":{{"value":{}}}}})",
               lane.pid(kEnginePid), micros(sample.time_ns), name, value);
  };
  for (const TimelineSample& sample : config.timeline) {
    counter(sample, "requests running", sample.num_running);
    counter(sample, "requests waiting", sample.num_waiting);
    counter(sample, "KV blocks used", sample.kv_blocks_used);
    counter(sample, "adapters on the GPU", sample.num_adapters_gpu);
  }
}

// A phase that began but never ended ends with the request; one that never began is not drawn.
void add_phase(EventList& events, const Lane& lane, size_t id, std::string_view name,
               int64_t begin_ns, int64_t end_ns, int64_t finish_ns) {
  const int64_t stop_ns = end_ns >= 0 ? end_ns : finish_ns;
  if (begin_ns < 0 || stop_ns < begin_ns) return;
  for (const auto& [phase, time_ns] : {std::pair{'b', begin_ns}, std::pair{'e', stop_ns}}) {
    events.add(R"({{"ph":"{}","pid":{},"tid":1,"id":{},"cat":"request","ts":{},"name":"{}"}})",
               phase, lane.pid(kRequestsPid), lane.first_id + id, micros(time_ns), name);
  }
}

void add_request(EventList& events, const Lane& lane, size_t id, const RequestRecord& r,
                 std::span<const TraceAdapter> adapters) {
  if (r.finish_ns < 0) return;
  const std::string name =
      json_string(fmt::format("request {}: {}", id, name_of(r.adapter, adapters)));
  events.add(R"({{"ph":"b","pid":{},"tid":1,"id":{},"cat":"request","ts":{},"name":{},)"
             R"("args":{{"prompt_tokens":{},"output_tokens":{},)"
             R"("cached_tokens":{},"preemptions":{}}}}})",
             lane.pid(kRequestsPid), lane.first_id + id, micros(r.arrival_ns), name,
             r.prompt_tokens, r.output_tokens, r.cached_tokens, r.num_preemptions);
  add_phase(events, lane, id, "queued", r.arrival_ns, r.first_scheduled_ns, r.finish_ns);
  add_phase(events, lane, id, "prefill", r.first_scheduled_ns, r.first_token_ns, r.finish_ns);
  add_phase(events, lane, id, "decode", r.first_token_ns, r.finish_ns, r.finish_ns);
  events.add(R"({{"ph":"e","pid":{},"tid":1,"id":{},"cat":"request","ts":{},"name":{}}})",
             lane.pid(kRequestsPid), lane.first_id + id, micros(r.finish_ns), name);
}

void add_metadata(std::ostream& out, const ConfigResult& config, const Provenance& provenance,
                  const PerfettoExtent& extent) {
  out << fmt::format(
      "\n],\"otherData\":{{\"command\":{},\"commit\":{},\"seed\":{},\"max_loras\":{},"
      "\"max_cpu_loras\":{},\"event_log_hash\":{},\"complete\":{},\"requests_drawn\":{},"
      "\"requests\":{},\"slot_spans_drawn\":{},\"slot_spans\":{},\"settings\":{{",
      json_string(provenance.command), json_string(provenance.commit), config.seed,
      config.max_loras, config.max_cpu_loras, json_string(config.event_log_hash),
      extent.is_complete(), extent.requests, extent.all_requests, extent.slot_spans,
      extent.all_slot_spans);
  const char* comma = "";
  for (const Setting& setting : provenance.settings) {
    out << comma << json_string(setting.name) << ':' << json_string(setting.value);
    comma = ",";
  }
  out << "}}}\n";
}

PerfettoExtent extent_of(const ConfigResult& config, const PerfettoLimits& limits) {
  return {.requests = std::min(limits.requests, config.requests.size()),
          .all_requests = config.requests.size(),
          .slot_spans = std::min(limits.slot_spans, config.slot_spans.size()),
          .all_slot_spans = config.slot_spans.size()};
}

void add_run(EventList& events, const ConfigResult& config, const PerfettoExtent& extent,
             std::span<const TraceAdapter> adapters, const Lane& lane) {
  add_names(events, config, lane);
  add_slots(events, std::span(config.slot_spans).first(extent.slot_spans), adapters, lane);
  add_counters(events, config, lane);
  for (size_t id = 0; id < extent.requests; ++id) {
    add_request(events, lane, id, config.requests[id], adapters);
  }
}

constexpr std::string_view kBegin = R"({"displayTimeUnit":"ms","traceEvents":[)";

}  // namespace

PerfettoExtent write_perfetto(std::ostream& out, const ConfigResult& config,
                              const Provenance& provenance, std::span<const TraceAdapter> adapters,
                              PerfettoLimits limits) {
  const PerfettoExtent extent = extent_of(config, limits);
  out << kBegin;
  EventList events(out);
  add_run(events, config, extent, adapters, {});
  add_metadata(out, config, provenance, extent);
  return extent;
}

PerfettoExtent write_perfetto(std::ostream& out, const PerfettoRun& a, const PerfettoRun& b,
                              const Provenance& provenance, std::span<const TraceAdapter> adapters,
                              PerfettoLimits limits) {
  const PerfettoExtent extent = extent_of(a.config, limits);
  out << kBegin;
  EventList events(out);
  const std::string first = fmt::format(" ({})", a.name), second = fmt::format(" ({})", b.name);
  add_run(events, a.config, extent, adapters, {.run = 0, .suffix = first});
  add_run(events, b.config, extent_of(b.config, limits), adapters,
          {.run = 1, .suffix = second, .first_id = a.config.requests.size()});
  add_metadata(out, a.config, provenance, extent);
  return extent;
}

}  // namespace loratory::sim
