#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace loratory {

/// What a user wrote, in quotes; of more than 60 bytes the first 40 and how many there are:
/// "'111...' (309 bytes)". Who prints it escapes it.
std::string shown(std::string_view text);

/// The candidate that `name` most likely is a slip of: the smallest number of characters inserted,
/// left out, replaced or swapped with their neighbour, the case of ASCII letters aside. Empty if
/// none is within a third of the name's length, as clang looks for names (Sema/TypoCorrection).
/// Among equals the first. Where none is near: the shortest that begins with `name`, which has two
/// letters or digits at least. Cost: length of `name` x length of all candidates.
std::string_view nearest(std::string_view name, std::span<const std::string> candidates);

/// "did you mean 'size'?", or else `otherwise`: the end of a message about an unknown name.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates,
                         std::string_view otherwise);

/// The same, and `otherwise` also if `name` is a candidate: its name is right, the rest is not.
std::string did_you_mean_other(std::string_view name, std::span<const std::string> candidates,
                               std::string_view otherwise);

}  // namespace loratory
