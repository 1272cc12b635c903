#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {

std::vector<std::unique_ptr<Judge>> all_judges() {
  std::vector<std::unique_ptr<Judge>> all;
  all.push_back(make_sense_judge());
  all.push_back(make_identity_judge());
  all.push_back(make_budgets_judge());
  all.push_back(make_positions_judge());
  all.push_back(make_blocks_judge());
  all.push_back(make_prefixes_judge());
  all.push_back(make_slots_judge());
  all.push_back(make_generations_judge());
  all.push_back(make_tiers_judge());
  all.push_back(make_pins_judge());
  all.push_back(make_unloads_judge());
  all.push_back(make_ends_judge());
  all.push_back(make_overtaking_judge());
  return all;
}

std::vector<SessionJudge> session_judges() {
  return {{"tokens", nullptr},
          {"progress", nullptr},
          {"leaks", nullptr},
          {"repeatable", "deterministic"},
          {"door", nullptr}};
}

}  // namespace loratory::check
