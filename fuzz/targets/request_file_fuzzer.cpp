// parse_request_file: any bytes give lines in the order of time that hold all limits, or one
// InputError. So do the checks that follow.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/serving/request_file.hpp"

namespace {

using namespace loratory::sim;

void check(const ServingRequest& r, std::set<std::string>& ids) {
  const loratory::reference::SamplingParams& s = r.params.sampling;
  LORATORY_ASSERT(ids.insert(r.id).second, "ids are unique");
  LORATORY_ASSERT(r.text.has_value() == r.prompt.empty(), "a prompt is one of the two");
  LORATORY_ASSERT(!r.text || !r.text->empty(), "and is not empty");
  LORATORY_ASSERT(r.max_tokens >= 1, "a request wants tokens");
  LORATORY_ASSERT(s.temperature >= 0 && s.temperature <= 1e6, "a temperature in its limits");
  LORATORY_ASSERT(s.top_k >= 0 && s.top_p > 0 && s.top_p <= 1, "as sample() wants them");
  LORATORY_ASSERT(r.params.num_logprobs >= -1, "-1 is none");
}

void check(const AdapterOperation& o, std::set<std::string>&) {
  LORATORY_ASSERT(!o.name.empty(), "an operation is about an adapter");
  LORATORY_ASSERT((o.kind == OperationKind::load) == !o.path.empty(), "only a load has a folder");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    RequestFile file = parse_request_file(text, "requests.jsonl");
    int64_t before_ns = 0;
    std::set<std::string> ids;
    for (const RequestLine& line : file.lines) {
      LORATORY_ASSERT(line.arrival_ns >= before_ns, "time does not run backwards");
      before_ns = line.arrival_ns;
      std::visit([&](const auto& what) { check(what, ids); }, line.what);
    }
    LORATORY_ASSERT(!ids.empty(), "a file has a request");
    resolve_names(file, "base", {"sql", "chat"});
    check_vocabulary(file, 96);
  } catch (const loratory::InputError&) {
  }
  return 0;
}
