#include "check/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "reference/base/escape.hpp"

namespace loratory::check {
namespace {

bool is_known(const Finding& finding) { return !finding.reference.empty(); }

std::string finding_text(const Finding& f) {
  std::string out =
      fmt::format("{} {}\n  case     {}\n", is_known(f) ? "KNOWN  " : "FINDING", f.check, f.label);
  if (f.smallest != f.label) out += fmt::format("  smallest {}\n", f.smallest);
  out += fmt::format("  what     {}\n", f.what);
  if (!f.pattern.empty()) out += fmt::format("  pattern  {}\n", f.pattern);
  if (is_known(f)) out += fmt::format("  known    {}\n", f.reference);
  return out + fmt::format("  REPRO: {}\n", f.repro);
}

std::string check_text(const CheckResult& c) {
  std::string note = c.note;
  if (c.worst > 0)
    note = fmt::format("worst {:.3f} of the bound{}{}", c.worst, note.empty() ? "" : "; ", note);
  return fmt::format("  {:<22}{:<10}{:>7} cases{:>14} comparisons{}{}\n", c.name, name(c.state),
                     c.num_cases, c.num_comparisons, note.empty() ? "" : "  ", note);
}

std::string xml(std::string_view text) {
  std::string out;
  for (const char letter : printable(text)) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

int64_t num_with(const Report& report, CheckState state) {
  return std::ranges::count(report.checks, state, &CheckResult::state);
}

}  // namespace

std::string_view name(CheckState state) {
  constexpr std::array<std::string_view, 4> kNames{"passed", "FAILED", "observed", "skipped"};
  return kNames[size_t(state)];
}

bool Report::ok() const { return stale.empty() && std::ranges::all_of(findings, is_known); }

const CheckResult* Report::find(std::string_view check) const {
  const auto found = std::ranges::find(checks, check, &CheckResult::name);
  return found == checks.end() ? nullptr : &*found;
}

std::string as_text(const Report& report) {
  std::string out = fmt::format("{}: {} cases, seed {}, {:.1f} s\n", printable(report.subject),
                                report.num_cases, report.seed, report.seconds);
  for (const CheckResult& c : report.checks) out += check_text(c);
  for (const Finding& f : report.findings) out += "\n" + finding_text(f);
  for (const std::string& line : report.stale) {
    out += fmt::format("\nSTALE {}: it did not show; take the line out of the ledger\n", line);
  }
  return out + fmt::format("\n{}\n", report.ok() ? "ok" : "NOT OK");
}

std::string as_json(const Report& report) {
  nlohmann::ordered_json out;
  out["subject"] = report.subject;
  out["ok"] = report.ok();
  out["seed"] = report.seed;
  out["num_cases"] = report.num_cases;
  out["seconds"] = report.seconds;
  auto& checks = out["checks"] = nlohmann::ordered_json::array();
  for (const CheckResult& c : report.checks) {
    checks.push_back({{"name", c.name},
                      {"state", c.state == CheckState::failed ? "failed" : name(c.state)},
                      {"num_cases", c.num_cases},
                      {"num_comparisons", c.num_comparisons},
                      {"worst", c.worst},
                      {"note", c.note}});
  }
  auto& findings = out["findings"] = nlohmann::ordered_json::array();
  for (const Finding& f : report.findings) {
    findings.push_back({{"check", f.check},
                        {"case", f.label},
                        {"smallest", f.smallest},
                        {"what", f.what},
                        {"pattern", f.pattern},
                        {"repro", f.repro},
                        {"reference", f.reference}});
  }
  out["stale"] = report.stale;
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string as_junit(const Report& report) {
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  out += fmt::format(
      "<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n",
      xml(report.subject), report.checks.size() + report.stale.size(),
      num_with(report, CheckState::failed) + int64_t(report.stale.size()),
      num_with(report, CheckState::skipped), report.seconds);
  for (const CheckResult& c : report.checks) {
    out += fmt::format("  <testcase classname=\"loratory.check\" name=\"{}\">\n", xml(c.name));
    if (c.state == CheckState::skipped) {
      out += fmt::format("    <skipped message=\"{}\"/>\n", xml(c.note));
    }
    for (const Finding& f : report.findings) {
      if (f.check != c.name || is_known(f)) continue;
      out += fmt::format("    <failure message=\"{}\">{}</failure>\n", xml(f.what),
                         xml("REPRO: " + f.repro));
    }
    out += "  </testcase>\n";
  }
  for (const std::string& line : report.stale) {
    out += fmt::format(
        "  <testcase classname=\"loratory.check\" name=\"ledger {}\">\n"
        "    <failure message=\"a known finding did not show\"/>\n  </testcase>\n",
        xml(line));
  }
  return out + "</testsuite>\n";
}

}  // namespace loratory::check
