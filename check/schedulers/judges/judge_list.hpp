#pragma once

#include <memory>
#include <string>

#include "check/schedulers/judge.hpp"

/// How each judge is made; judges.cpp lists them.
namespace loratory::check {

std::unique_ptr<Judge> make_sense_judge();
std::unique_ptr<Judge> make_identity_judge();
std::unique_ptr<Judge> make_budgets_judge();
std::unique_ptr<Judge> make_positions_judge();
std::unique_ptr<Judge> make_blocks_judge();
std::unique_ptr<Judge> make_prefixes_judge();
std::unique_ptr<Judge> make_slots_judge();
std::unique_ptr<Judge> make_generations_judge();
std::unique_ptr<Judge> make_tiers_judge();
std::unique_ptr<Judge> make_pins_judge();
std::unique_ptr<Judge> make_unloads_judge();
std::unique_ptr<Judge> make_ends_judge();
std::unique_ptr<Judge> make_overtaking_judge();

}  // namespace loratory::check
