// House rules as tests. Every test collects all violations of one rule over the whole tree and
// prints each as `file:line: what`, so that one run shows everything there is to mend.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxColumns = 100;
constexpr size_t kMaxFunctionLines = 70;

struct File {
  std::string path;  // from the repository root
  std::vector<std::string> lines;

  bool is_header() const { return path.ends_with(".hpp") || path.ends_with(".cuh"); }
  bool is_code() const { return is_header() || path.ends_with(".cpp") || path.ends_with(".cu"); }
  bool is_in(std::string_view room) const { return path.starts_with(room); }
};

// --- reading --------------------------------------------------------------------------------

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

File read_file(const fs::path& root, const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return {fs::relative(path, root).generic_string(), split_lines(text.str())};
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kEndings = {".hpp", ".cpp", ".cu", ".cuh", ".cmake", ".sh"};
  return kEndings.contains(path.extension()) || path.filename() == "CMakeLists.txt";
}

std::vector<File> read_tree() {
  const fs::path root = LORATORY_SOURCE_DIR;
  std::vector<File> files;
  for (const char* folder : {"reference", "scheduler_sim", "check", "gpu", "cli", "fuzz", "tests",
                             "bench", "cmake", "python", "scripts"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.is_regular_file() && is_source(entry.path())) {
        files.push_back(read_file(root, entry.path()));
      }
    }
  }
  files.push_back(read_file(root, root / "CMakeLists.txt"));
  std::ranges::sort(files, {}, &File::path);
  return files;
}

const std::vector<File>& tree() {
  static const std::vector<File> files = read_tree();
  return files;
}

// --- reporting ------------------------------------------------------------------------------

struct Violations {
  std::string text;

  void add(const File& file, size_t line_index, std::string_view what) {
    text += file.path + ":" + std::to_string(line_index + 1) + ": " + std::string(what) + "\n";
  }
  void expect_none() const { EXPECT_TRUE(text.empty()) << text; }
};

// --- rules ----------------------------------------------------------------------------------

size_t num_columns(std::string_view line) {
  return size_t(std::ranges::count_if(line, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}

TEST(Tidy, ReadsTheWholeTree) {
  EXPECT_GT(tree().size(), 50u);
  EXPECT_TRUE(std::ranges::any_of(tree(), [](const File& f) { return f.is_in("reference/"); }));
  EXPECT_TRUE(std::ranges::any_of(tree(), [](const File& f) { return f.is_in("scripts/"); }));
}

// Finds the lines inside raw strings: style sheets and scripts have line lengths of their own.
class RawStrings {
 public:
  bool contains(const std::string& line) {
    const bool inside = !close_.empty();
    const size_t open = line.find("R\"");
    const size_t paren = open == std::string::npos ? open : line.find('(', open);
    if (!inside && paren != std::string::npos) {
      close_ = ")" + line.substr(open + 2, paren - open - 2) + "\"";
    }
    const bool closes = !close_.empty() && line.find(close_) != std::string::npos;
    if (closes) close_.clear();
    return inside || (paren != std::string::npos && !closes);
  }

 private:
  std::string close_;  // what ends the raw string that is open
};

TEST(Tidy, LinesFitIn100Columns) {
  Violations violations;
  for (const File& file : tree()) {
    RawStrings raw_strings;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (raw_strings.contains(file.lines[i]) || num_columns(file.lines[i]) <= kMaxColumns)
        continue;
      violations.add(file, i, std::to_string(num_columns(file.lines[i])) + " columns");
    }
  }
  violations.expect_none();
}

TEST(Tidy, NoTabsNoTrailingBlanks) {
  Violations violations;
  for (const File& file : tree()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      if (line.find('\t') != std::string::npos) violations.add(file, i, "a tab");
      if (line.ends_with(' ')) violations.add(file, i, "blanks at the end");
    }
  }
  violations.expect_none();
}

TEST(Tidy, EveryHeaderHasPragmaOnce) {
  Violations violations;
  for (const File& file : tree()) {
    if (file.is_header() && std::ranges::find(file.lines, "#pragma once") == file.lines.end()) {
      violations.add(file, 0, "no #pragma once");
    }
  }
  violations.expect_none();
}

struct Arrow {
  std::string_view room;
  std::string forbidden;       // what its includes must not begin with
  std::string_view but = "-";  // a part of the room that may
};

// reference <- scheduler_sim <- gpu, check <- cli, and no CUDA before gpu. Reports are a library of
// their own: only they and the program know them.
const std::vector<Arrow> kArrows = {
    {"reference/", "scheduler_sim/|check/|gpu/|cli/|cuda|cu[a-z]+\\.h|nccl|cooperative_groups"},
    {"scheduler_sim/", "check/|gpu/|cli/|cuda|cu[a-z]+\\.h|nccl|cooperative_groups"},
    {"check/", "gpu/|cli/|scheduler_sim/report/"},
    {"check/", "cuda|cu[a-z]+\\.h|nccl|cooperative_groups", "check/samples/"},
    {"check/samples/", "reference/|scheduler_sim/|check/[a-z]+/"},  // the C headers alone
    {"scheduler_sim/", "scheduler_sim/report/", "scheduler_sim/report/"},
    {"gpu/", "check/[^l]|cli/|scheduler_sim/report/"},
    {"gpu/", "scheduler_sim/", "gpu/engine/"},
    {"gpu/", "check/", "gpu/plugin/"},
    // A macro that comes with the library decides how large its parser is, so code without that
    // macro has another one.
    {"", "simdjson", "scheduler_sim/"},
};

TEST(Tidy, RoomsUseEachOtherOneWay) {
  Violations violations;
  for (const Arrow& arrow : kArrows) {
    const std::regex include("^\\s*#\\s*include\\s*[<\"](" + arrow.forbidden + ").*");
    for (const File& file : tree()) {
      if (!file.is_in(arrow.room) || file.is_in(arrow.but)) continue;
      for (size_t i = 0; i < file.lines.size(); ++i) {
        if (std::regex_match(file.lines[i], include)) violations.add(file, i, file.lines[i]);
      }
    }
  }
  violations.expect_none();
}

// clang-format has put the `}` of a function alone under the line that begins it. The `}` of a type
// has a semicolon, that of a namespace a comment.
TEST(Tidy, FunctionsAreShort) {
  Violations violations;
  for (const File& file : tree()) {
    if (!file.is_code()) continue;
    RawStrings raw_strings;
    std::map<size_t, size_t> last_with_indent;  // line index of each depth
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const size_t indent = file.lines[i].find_first_not_of(' ');
      if (raw_strings.contains(file.lines[i]) || indent == std::string::npos) continue;
      if (file.lines[i][indent] == '#') continue;
      const size_t begin = last_with_indent[indent];
      if (file.lines[i].substr(indent) == "}" && i - begin > kMaxFunctionLines) {
        violations.add(file, begin, "a function of " + std::to_string(i - begin + 1) + " lines");
      }
      last_with_indent[indent] = i;
    }
  }
  violations.expect_none();
}

}  // namespace
