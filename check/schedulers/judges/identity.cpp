#include <fmt/format.h>

#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// Whose weights a request gets: names mean uids, uids are used once, and a request keeps the one
// that its name had when it was submitted.
class IdentityJudge final : public Judge {
 public:
  const char* name() const override { return "identity"; }

  std::string on_status(const World& w, const Message& m, const Reply& reply) override {
    if (const auto* add = m.get_if<message::Register>()) return of_register(w, *add, reply);
    if (const auto* unload = m.get_if<message::Unload>()) return of_name(w, unload->name, reply);
    if (const auto* pin = m.get_if<message::Pin>()) return of_name(w, pin->name, reply);
    if (const auto* unpin = m.get_if<message::Unpin>()) return of_name(w, unpin->name, reply);
    if (const auto* submit = m.get_if<message::Submit>()) return of_submit(w, *submit, reply);
    if (const auto* abort = m.get_if<message::Abort>()) return of_abort(w, *abort, reply);
    return {};
  }

  std::string on_plan(const World& w, const Reply& reply, int64_t) override {
    for (const Row& row : reply.rows) {
      const Uid uid = w.request(row.id)->uid;
      if (row.uid != uid) {
        return fmt::format("request {} is for uid {}, and its row reads uid {}", row.id, uid,
                           row.uid);
      }
    }
    return {};
  }

 private:
  static std::string of_register(const World& w, const message::Register& m, const Reply& reply) {
    const bool is_free = w.uid_of(m.name) == kBaseUid || m.replace;
    if (is_free != (reply.status == Status::ok)) {
      return fmt::format("register of '{}' is {}, and the name is {}", m.name,
                         word_of(reply.status), is_free ? "to be had" : "taken");
    }
    if (reply.status != Status::ok) return {};
    if (reply.uid == kBaseUid) return "register gave uid 0, which is the base model's";
    if (w.adapter(reply.uid) == nullptr) return {};
    return fmt::format("register of '{}' gave uid {}, which '{}' had before", m.name, reply.uid,
                       w.adapter(reply.uid)->name);
  }

  static std::string of_name(const World& w, const std::string& name, const Reply& reply) {
    const bool is_known = w.uid_of(name) != kBaseUid;
    if (is_known != (reply.status == Status::unknown)) return {};
    return fmt::format("'{}' is {}, and the answer is {}", name,
                       is_known ? "registered" : "not registered", word_of(reply.status));
  }

  // One that was aborted in flight is as good as gone, for some, and lives until the commit.
  static std::string of_abort(const World& w, const message::Abort& m, const Reply& reply) {
    const World::Request* const r = w.request(m.id);
    const bool may_be_unknown = r == nullptr || r->num_in_flight > 0;
    if (reply.status == Status::ok && r != nullptr) return {};
    if (reply.status == Status::unknown && may_be_unknown) return {};
    return fmt::format("request {} is {}, and the answer to its abort is {}", m.id,
                       r == nullptr ? "not live" : "live", word_of(reply.status));
  }

  static std::string of_submit(const World& w, const message::Submit& m, const Reply& reply) {
    const Limits& l = w.limits();
    const uint64_t total = m.prompt.size() + m.max_new_tokens;
    const bool is_too_long =
        total > l.max_model_len ||
        (total - 1 + l.block_size - 1) / l.block_size > uint64_t{l.num_blocks} - 1;
    const bool is_bad = m.prompt.empty() || is_too_long || w.request(m.id) != nullptr;
    const bool is_unknown = !m.adapter.empty() && w.uid_of(m.adapter) == kBaseUid;
    const bool is_right = is_bad || is_unknown ? (is_bad && reply.status == Status::refused) ||
                                                     (is_unknown && reply.status == Status::unknown)
                                               : reply.status == Status::ok;
    if (is_right) return {};
    const char* const why = is_bad       ? "cannot be served"
                            : is_unknown ? "is for a name that nobody has"
                                         : "can be served";
    return fmt::format("request {} {}, and the answer is {}", m.id, why, word_of(reply.status));
  }
};

}  // namespace

std::unique_ptr<Judge> make_identity_judge() { return std::make_unique<IdentityJudge>(); }

}  // namespace loratory::check
