// House rules as tests. Every test collects all violations of one rule over the whole tree and
// prints each as `file:line: what`, so that one run shows everything there is to mend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxColumns = 100;
constexpr size_t kMaxFunctionLines = 70;

// Functions that are longer for now, with their lengths: they may shrink, never grow, and leave
// the list when they are short enough. Nothing is added to it.
const std::map<std::string, size_t> kLongFunctions = {};

struct File {
  std::string path;  // from the repository root
  std::vector<std::string> lines;
  std::vector<std::string> code;  // C++ only: without comments and the inside of literals
  std::vector<bool> in_raw_text;  // C++ only: the line begins or ends inside a raw string

  bool is_header() const { return path.ends_with(".hpp"); }
  bool is_cpp() const { return is_header() || path.ends_with(".cpp"); }
  bool is_in(std::string_view room) const { return path.starts_with(room); }
};

// --- reading --------------------------------------------------------------------------------

// Blanks comments and the inside of literals, so that what remains can be searched for braces and
// words. Newlines stay where they are.
class LiteralStripper {
 public:
  explicit LiteralStripper(std::string_view text) : text_(text) {}

  std::string strip() {
    while (at_ < text_.size()) {
      if (starts("//"))
        blank_until("\n", 0);
      else if (starts("/*"))
        blank_until("*/", 2);
      else if (starts("R\""))
        blank_raw_string();
      else if (text_[at_] == '"')
        blank_quoted('"');
      else if (text_[at_] == '\'' && !is_digit_separator())
        blank_quoted('\'');
      else
        out_.push_back(text_[at_++]);
    }
    return std::move(out_);
  }

  // [begin, end) offsets of raw strings; valid after strip().
  const std::vector<std::pair<size_t, size_t>>& raw_strings() const { return raw_strings_; }

 private:
  bool starts(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool is_digit_separator() const { return at_ > 0 && std::isalnum(uint8_t(text_[at_ - 1])) != 0; }

  void blank_to(size_t end) {
    for (end = std::min(end, text_.size()); at_ < end; ++at_) {
      out_.push_back(text_[at_] == '\n' ? '\n' : ' ');
    }
  }

  void blank_until(std::string_view end, size_t extra) {
    const size_t found = text_.find(end, at_);
    blank_to(found == std::string_view::npos ? text_.size() : found + extra);
  }

  void blank_raw_string() {
    const size_t open = text_.find('(', at_);
    const std::string close = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
    const size_t begin = at_;
    blank_until(close, close.size());
    raw_strings_.emplace_back(begin, at_);
  }

  void blank_quoted(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    blank_to(end + 1);
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string out_;
  std::vector<std::pair<size_t, size_t>> raw_strings_;
};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

size_t line_of(std::string_view text, size_t offset) {
  return size_t(std::ranges::count(text.substr(0, offset), '\n'));
}

File read_file(const fs::path& root, const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  File file;
  file.path = fs::relative(path, root).generic_string();
  file.lines = split_lines(text.str());
  if (!file.is_cpp()) return file;
  const std::string bytes = text.str();
  LiteralStripper stripper(bytes);
  file.code = split_lines(stripper.strip());
  file.in_raw_text.resize(file.lines.size());
  for (const auto& [begin, end] : stripper.raw_strings()) {
    const size_t first = line_of(bytes, begin), last = line_of(bytes, end);
    for (size_t i = first; first != last && i <= last; ++i) file.in_raw_text[i] = true;
  }
  return file;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kEndings = {".hpp", ".cpp", ".cu", ".cuh", ".cmake", ".sh"};
  return kEndings.contains(path.extension()) || path.filename() == "CMakeLists.txt";
}

std::vector<File> read_tree() {
  const fs::path root = LORATORY_SOURCE_DIR;
  std::vector<File> files;
  for (const char* folder :
       {"reference", "scheduler_sim", "gpu", "cli", "fuzz", "tests", "bench", "cmake", "scripts"}) {
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

// Text inside raw strings (style sheets, scripts) has line lengths of its own.
TEST(Tidy, LinesFitIn100Columns) {
  Violations violations;
  for (const File& file : tree()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (num_columns(file.lines[i]) <= kMaxColumns) continue;
      if (file.is_cpp() && file.in_raw_text[i]) continue;
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

// reference <- scheduler_sim <- gpu <- cli, and no CUDA before gpu. Reports are a library of their
// own: only they and the program know them.
const std::vector<Arrow> kArrows = {
    {"reference/", "scheduler_sim/|gpu/|cli/|cuda|cu[a-z]+\\.h|nccl|cooperative_groups"},
    {"scheduler_sim/", "gpu/|cli/|cuda|cu[a-z]+\\.h|nccl|cooperative_groups"},
    {"scheduler_sim/", "scheduler_sim/report/", "scheduler_sim/report/"},
    {"gpu/", "cli/|scheduler_sim/report/"},
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

struct Function {
  std::string name;
  size_t first_line, num_lines;
};

// Outermost function bodies of a file, by braces: a `{` whose statement has parentheses and is no
// type, namespace or initialiser opens one. Crude, and enough.
std::vector<Function> functions_of(const File& file) {
  static const std::regex kNoFunction(R"(\b(namespace|class|struct|union|enum)\b|=\s*$)");
  static const std::regex kName(R"(([\w:~]+)\s*\()");
  std::vector<Function> functions;
  std::string statement;
  size_t statement_line = 0, depth = 0, body_depth = 0;
  for (size_t i = 0; i < file.code.size(); ++i) {
    if (file.code[i].starts_with('#')) continue;
    for (const char c : file.code[i] + "\n") {
      if (c == '{') {
        ++depth;
        std::smatch name;
        if (body_depth == 0 && std::regex_search(statement, name, kName) &&
            !std::regex_search(statement, kNoFunction)) {
          body_depth = depth;
          functions.push_back({name[1], statement_line, 0});
        }
      } else if (c == '}') {
        if (depth == body_depth && body_depth != 0) {
          functions.back().num_lines = i + 1 - functions.back().first_line;
          body_depth = 0;
        }
        --depth;
      }
      if (c == '{' || c == '}' || c == ';') {
        statement.clear();
      } else if (!statement.empty() || std::isspace(uint8_t(c)) == 0) {
        if (statement.empty()) statement_line = i;
        statement.push_back(c);
      }
    }
  }
  return functions;
}

TEST(Tidy, FunctionsAreShort) {
  Violations violations;
  std::map<std::string, size_t> still_long;
  for (const File& file : tree()) {
    if (!file.is_cpp()) continue;
    for (const Function& f : functions_of(file)) {
      if (f.num_lines <= kMaxFunctionLines) continue;
      const std::string key = file.path + " " + f.name;
      const auto known = kLongFunctions.find(key);
      if (known != kLongFunctions.end()) still_long[key] = f.num_lines;
      if (known != kLongFunctions.end() && f.num_lines <= known->second) continue;
      violations.add(file, f.first_line, f.name + " has " + std::to_string(f.num_lines) + " lines");
    }
  }
  violations.expect_none();
  EXPECT_EQ(still_long, kLongFunctions) << "lower the ratchet: these functions became shorter";
}

TEST(Tidy, FindsFunctions) {
  const std::string text =
      "namespace a {\nclass B {\n  int f() const { return 1; }\n};\n"
      "// not( a function {\nint g(int x,\n      int y) {\n  if (x) {\n    return y;\n  }\n"
      "  const char* s = \"}\";\n  return '}';\n}\nconst int k[] = {1, 2};\n}\n";
  File file;
  file.code = split_lines(LiteralStripper(text).strip());
  const std::vector<Function> functions = functions_of(file);
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0].name, "f");
  EXPECT_EQ(functions[1].name, "g");
  EXPECT_EQ(functions[1].first_line, 5u);
  EXPECT_EQ(functions[1].num_lines, 8u);
}

}  // namespace
