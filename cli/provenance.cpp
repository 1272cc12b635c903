#include "cli/provenance.hpp"

#include <fmt/format.h>

#include <string>

namespace loratory::cli {
namespace {

std::string& command() {
  static std::string text;
  return text;
}

// As it can be pasted into a shell.
std::string quoted(const std::string& argument) {
  const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,.:/@%";
  if (!argument.empty() && argument.find_first_not_of(plain) == std::string::npos) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string version_text() {
  return fmt::format("{} (commit {})", LORATORY_VERSION, LORATORY_COMMIT);
}

void remember_command(int argc, const char* const* argv) {
  command() = "loratory";
  for (int i = 1; i < argc; ++i) command() += fmt::format(" {}", quoted(argv[i]));
}

sim::Provenance provenance() {
  sim::Provenance provenance;
  provenance.command = command();
  provenance.commit = LORATORY_COMMIT;
  provenance.version = LORATORY_VERSION;
  return provenance;
}

}  // namespace loratory::cli
