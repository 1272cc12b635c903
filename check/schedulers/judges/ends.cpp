#include <fmt/format.h>

#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// A request ends when it must, for the reason that it has, and never otherwise.
class EndsJudge final : public Judge {
 public:
  const char* name() const override { return "ends"; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind != Event::Kind::finish) return {};
    const World::Request& r = *w.request(e.id);
    const std::string problem = of_reason(w, r, e);
    if (!problem.empty()) {
      return fmt::format("request {} ends with {}, and {}", e.id, word_of(e.reason), problem);
    }
    if (e.num_generated == r.num_generated()) return {};
    return fmt::format("request {} ends with {} tokens generated, and it has {}", e.id,
                       e.num_generated, r.num_generated());
  }

  std::string on_reply(const World& w, const Message&) override {
    for (const auto& [id, serial] : w.live()) {
      const World::Request& r = w.requests()[serial];
      if (r.must_end) {
        return fmt::format("request {} has its last token ({}), and goes on", id,
                           word_of(*r.must_end));
      }
      if (r.aborted && r.num_in_flight == 0) {
        return fmt::format("request {} was aborted, has no row in flight, and goes on", id);
      }
      if (r.was_left_out && r.num_in_flight == 0) {
        return fmt::format("request {} was left out of its step without weights, and goes on", id);
      }
    }
    return {};
  }

 private:
  static std::string of_reason(const World& w, const World::Request& r, const Event& e) {
    if (e.reason == FinishReason::abort) return r.aborted ? "" : "nobody aborted it";
    if (e.reason == FinishReason::error) {
      const bool failed =
          r.uid != kBaseUid && w.adapter(r.uid)->num_failed_loads > r.failed_loads_before;
      return failed ? "" : "no load of its adapter failed since it was submitted";
    }
    if (r.must_end == e.reason) return {};
    if (r.must_end) return fmt::format("its last token means {}", word_of(*r.must_end));
    return fmt::format("it has {} of {} tokens", r.num_generated(), r.max_new_tokens);
  }
};

}  // namespace

std::unique_ptr<Judge> make_ends_judge() { return std::make_unique<EndsJudge>(); }

}  // namespace loratory::check
