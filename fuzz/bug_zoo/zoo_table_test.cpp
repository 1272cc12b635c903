#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "fuzz/bug_zoo/zoo_table.hpp"

namespace loratory::zoo {
namespace {

const std::string kPath = LORATORY_SOURCE_DIR "/docs/bug_zoo.md";

std::string link_of(std::string_view source) {
  const size_t hash = source.find('#');
  return fmt::format("[{}](https://github.com/{}/issues/{})", source, source.substr(0, hash),
                     source.substr(hash + 1));
}

std::string table_of(const std::vector<ZooRow>& rows) {
  std::string text = "| bug | what is wrong | seen in | caught by | cases |\n";
  text += "| --- | --- | --- | --- | ---: |\n";
  for (const ZooRow& row : rows) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.note.name, row.note.what,
                        link_of(row.note.source), row.caught_by, row.num_cases);
  }
  return text;
}

std::string read() {
  std::ifstream file(kPath);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void expect_in_docs(std::string_view section, const std::vector<ZooRow>& rows) {
  const std::string text = read();
  const std::string begin = fmt::format("<!-- begin {} -->\n", section);
  const size_t from = text.find(begin);
  const size_t to = text.find(fmt::format("<!-- end {} -->", section));
  ASSERT_TRUE(from != text.npos && to != text.npos) << kPath << " has no section " << section;
  const size_t first = from + begin.size();
  const std::string table = table_of(rows);
  if (std::getenv("LORATORY_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(kPath) << text.substr(0, first) << table << text.substr(to);
    return;
  }
  EXPECT_EQ(text.substr(first, to - first), table)
      << "docs/bug_zoo.md is not what the zoo shows; write it: LORATORY_UPDATE_GOLDEN=1 "
         "build/dev/fuzz/bug_zoo_test";
}

}  // namespace loratory::zoo
