#pragma once

#include <string>

namespace loratory::sim {

/// Milliseconds for a sentence: "243 ms", "3.03 s", "20.3 min".
std::string duration_text(double ms);

/// How many times over a limit: "1.6x", "230x".
std::string factor_text(double factor);

}  // namespace loratory::sim
