#include <algorithm>

#include "check/schedulers/run_scheduler_checks.hpp"

namespace loratory::check {
namespace {

class Shrinking {
 public:
  Shrinking(const Session& session, const std::function<bool(const Session&)>& is_shown,
            int64_t most_tries)
      : best_(session), is_shown_(is_shown), tries_left_(most_tries) {}

  Session smallest() {
    for (Session before = best_; tries_left_ > 0; before = best_) {
      cut_operations();
      leave_out_operations();
      simplify_engine();
      if (best_ == before) break;
    }
    return best_;
  }

 private:
  bool take(const Session& smaller) {
    if (smaller == best_ || tries_left_ <= 0) return false;
    --tries_left_;
    if (!is_shown_(smaller)) return false;
    best_ = smaller;
    return true;
  }

  template <typename Change>
  bool take_changed(const Change& change) {
    Session smaller = best_;
    change(smaller);
    return take(smaller);
  }

  // From the end, in steps that halve.
  void cut_operations() {
    for (int32_t step = best_.num_ops; step > 0 && tries_left_ > 0; step /= 2) {
      while (best_.num_ops >= step &&
             take_changed([&](Session& s) { s.num_ops -= step, trim(s); })) {
      }
    }
  }

  void leave_out_operations() {
    for (int32_t size = std::max(best_.num_ops / 2, 1); size > 0; size /= 2) {
      for (int32_t first = 0; first < best_.num_ops && tries_left_ > 0; first += size) {
        const int32_t last = std::min(first + size, best_.num_ops) - 1;
        if (are_dropped(first, last)) continue;
        take_changed([&](Session& s) { drop(s, first, last); });
      }
    }
  }
  bool are_dropped(int32_t first, int32_t last) const {
    for (int32_t op = first; op <= last; ++op) {
      if (!best_.is_dropped(op)) return false;
    }
    return true;
  }

  // The ranges anew, none beside another.
  static void drop(Session& s, int32_t first, int32_t last) {
    s.dropped.emplace_back(first, last);
    trim(s);
  }
  static void trim(Session& s) {
    const Session before = s;
    s.dropped.clear();
    for (int32_t op = 0; op < s.num_ops; ++op) {
      if (!before.is_dropped(op)) continue;
      if (!s.dropped.empty() && s.dropped.back().second == op - 1) {
        s.dropped.back().second = op;
      } else {
        s.dropped.emplace_back(op, op);
      }
    }
  }

  void simplify_engine() {
    take_changed([](Session& s) { s.faults = false; });
    take_changed([](Session& s) { s.ahead = false; });
    for (const auto field :
         {&Session::max_loras, &Session::num_names, &Session::num_load_workers,
          &Session::max_num_seqs, &Session::block_size, &Session::longest, &Session::num_blocks}) {
      const int32_t least = field == &Session::longest || field == &Session::num_blocks ? 2 : 1;
      for (int32_t value : {least, best_.*field / 2, best_.*field - 1}) {
        if (value < least || value >= best_.*field) continue;
        if (take_changed([&](Session& s) { s.*field = value; })) break;
      }
    }
    take_changed([](Session& s) { s.max_cpu_loras = s.max_loras; });
    take_changed([](Session& s) { s.max_num_batched_tokens = s.max_num_seqs; });
  }

  Session best_;
  const std::function<bool(const Session&)>& is_shown_;
  int64_t tries_left_;
};

}  // namespace

Session shrink_session(const Session& session, const std::function<bool(const Session&)>& is_shown,
                       int64_t most_tries) {
  return Shrinking(session, is_shown, most_tries).smallest();
}

}  // namespace loratory::check
