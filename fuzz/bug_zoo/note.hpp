#pragma once

#include <string_view>

/// The bug zoo: implementations that are wrong in one way each, and what must notice them.
namespace loratory::zoo {

struct Note {
  std::string_view name;
  std::string_view what;    ///< is wrong
  std::string_view source;  ///< project#number of an issue or a pull request; empty: it is right
};

}  // namespace loratory::zoo
