#include "reference/base/atomic_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"

namespace loratory {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  long num_files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  fs::path folder_;
};

TEST_F(AtomicFileTest, AppearsOnlyWhenCommitted) {
  AtomicFile file(path("a.txt"));
  file.stream() << "hello " << 42 << std::flush;
  EXPECT_FALSE(fs::exists(path("a.txt")));
  file.commit();
  EXPECT_EQ(read_file(path("a.txt")), "hello 42");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(AtomicFileTest, WithoutCommitTheOldFileStaysAndNothingElse) {
  std::ofstream(path("a.txt")) << "old";
  { AtomicFile(path("a.txt")).stream() << std::string(1 << 20, 'x'); }
  EXPECT_EQ(read_file(path("a.txt")), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(AtomicFileTest, ReplacesTheFileBehindALink) {
  std::ofstream(path("target")) << "old";
  fs::create_symlink("target", path("link"));
  AtomicFile file(path("link"));
  file.stream() << "new";
  file.commit();
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("target")), "new");
}

TEST_F(AtomicFileTest, LeavesADeviceADevice) {
  AtomicFile file("/dev/null");
  file.stream() << "gone";
  file.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, AFolderThatDoesNotExistIsOneClearLine) {
  try {
    AtomicFile file(path("none/a.txt"));
    FAIL() << "opened a file in a folder that does not exist";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()), path("none/a.txt") +
                                             ": cannot be created: No such file or directory; "
                                             "name a folder that exists, is writable and has room");
  }
}

TEST_F(AtomicFileTest, CompressesByName) {
  for (const char* name : {"a.gz", "a.zst"}) {
    AtomicFile file(path(name));
    for (int i = 0; i < 100000; ++i) file.stream() << "the same line\n";
    file.commit();
    EXPECT_LT(fs::file_size(path(name)), 10000u) << name;
  }
  EXPECT_EQ(read_file(path("a.gz")).substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(read_file(path("a.zst")).substr(0, 4), "\x28\xb5\x2f\xfd");
}

}  // namespace
}  // namespace loratory
