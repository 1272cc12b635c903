#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace loratory {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

/// Runs the program in a folder of its own, as a user would.
class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    if (program().empty()) GTEST_SKIP() << "the program is not built";
    folder_ = fs::path(testing::TempDir()) / "program";
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  std::string content(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// LORATORY_CLI in the environment, or what was built with the test.
  static std::string program() {
    const char* const elsewhere = std::getenv("LORATORY_CLI");
    return elsewhere != nullptr ? elsewhere : LORATORY_CLI;
  }
  Outcome loratory(const std::string& arguments) const {
    const std::string command =
        "cd '" + folder_.string() + "' && '" + program() + "' " + arguments + " >out.txt 2>err.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content("out.txt"), content("err.txt")};
  }

  fs::path folder_;
};

}  // namespace loratory
