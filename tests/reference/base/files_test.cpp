#include "reference/base/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "reference/base/input_error.hpp"

namespace loratory {
namespace {

namespace fs = std::filesystem;
using testing::ThrowsMessage;

class ReadFile : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(path_, std::ios::binary) << bytes_; }
  void TearDown() override { fs::remove(path_); }

  const std::string path_ = testing::TempDir() + "read_file";
  const std::string bytes_{"a\r\n\0b", 5};
};

// tests/main.cpp: else tests that run side by side write each other's files.
TEST(TestProgram, HasATempFolderOfItsOwn) {
  const fs::path folder = fs::temp_directory_path();
  EXPECT_THAT(folder.filename().string(), testing::StartsWith("loratory-test-"));
  EXPECT_TRUE(fs::equivalent(folder, testing::TempDir()));
}

TEST_F(ReadFile, GivesEveryByte) {
  EXPECT_EQ(read_file(path_), bytes_);
  EXPECT_EQ(read_file(path_, 5), bytes_);
}

TEST_F(ReadFile, RefusesMoreThanTheLimit) {
  EXPECT_THAT([&] { read_file(path_, 4, "cut it"); },
              ThrowsMessage<InputError>(path_ + ": has more than 4 bytes; cut it"));
}

TEST_F(ReadFile, NamesWhatCannotBeRead) {
  const std::string none = path_ + "/none", folder = testing::TempDir();
  EXPECT_THAT([&] { read_file(none, 4, "look"); },
              ThrowsMessage<InputError>(none + ": cannot be read; look"));
  EXPECT_THAT([&] { read_file(folder, 4, "look"); },
              ThrowsMessage<InputError>(folder + ": is a folder, not a file; look"));
}

TEST_F(ReadFile, AsTextRefusesWhatIsNone) {
  // The start of a .safetensors file: the length of its header in 8 bytes.
  std::ofstream(path_, std::ios::binary) << std::string("P\0\0\0\0\0\0\0{", 9);
  EXPECT_THAT(
      [&] { read_text_file(path_, 4, "give text"); },
      ThrowsMessage<InputError>(path_ + ": is binary or UTF-16, not UTF-8 text; give text"));
  EXPECT_THAT([&] { read_text_file(path_ + "none", 4, "look"); },
              ThrowsMessage<InputError>(path_ + "none: cannot be read; look"));
}

TEST_F(ReadFile, NeitherWaitsForAPipeNorReadsADevice) {
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path : {path_, std::string("/dev/zero")}) {
    const std::string error =
        path + ": is a pipe or a device, not a file; write it to a file first";
    EXPECT_THAT([&] { read_file(path); }, ThrowsMessage<InputError>(error));
    EXPECT_THAT([&] { read_text_file(path); }, ThrowsMessage<InputError>(error));
  }
}

TEST_F(ReadFile, AsTextLeavesOutTheByteOrderMark) {
  std::ofstream(path_) << "\xef\xbb\xbfrank,weight\n";
  EXPECT_EQ(read_text_file(path_), "rank,weight\n");
}

TEST_F(ReadFile, RefusesPointersOfGitLfs) {
  std::ofstream(path_) << "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n";
  EXPECT_THAT(
      [&] { read_file(path_); },
      ThrowsMessage<InputError>(path_ + ": is a git-LFS pointer, not the file it stands for; run "
                                        "'git lfs pull' in its folder"));
}

}  // namespace
}  // namespace loratory
