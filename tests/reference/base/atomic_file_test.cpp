#include "reference/base/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"

namespace {
bool has_anonymous_files = true;
}

// In place of the C library's, to stand in for a file system without O_TMPFILE.
extern "C" int open(const char* path, int flags, ...) {
  if (!has_anonymous_files && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return int(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace loratory {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "atomic_file";
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

TEST_F(AtomicFileTest, APrivateFileStaysPrivate) {
  const mode_t before = ::umask(022);
  std::ofstream(path("a.txt")) << "old";
  fs::permissions(path("a.txt"), fs::perms::owner_read | fs::perms::owner_write);
  AtomicFile file(path("a.txt"));
  file.stream() << "new";
  file.commit();
  EXPECT_EQ(read_file(path("a.txt")), "new");
  EXPECT_EQ(fs::status(path("a.txt")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  ::umask(before);
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

class NamedTemporaryTest : public AtomicFileTest {
 protected:
  void SetUp() override {
    AtomicFileTest::SetUp();
    has_anonymous_files = false;
  }
  void TearDown() override {
    has_anonymous_files = true;
    AtomicFileTest::TearDown();
  }
};

TEST_F(NamedTemporaryTest, IsRenamedByCommit) {
  AtomicFile file(path("a.txt"));
  EXPECT_EQ(num_files(), 1);
  EXPECT_FALSE(fs::exists(path("a.txt")));
  file.stream() << "new";
  file.commit();
  EXPECT_EQ(read_file(path("a.txt")), "new");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(NamedTemporaryTest, GoesWithAFileThatIsNotCommitted) {
  std::ofstream(path("a.txt")) << "old";
  {
    AtomicFile file(path("a.txt"));
    EXPECT_EQ(num_files(), 2);
  }
  EXPECT_EQ(read_file(path("a.txt")), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(NamedTemporaryTest, GoesWhenTheProcessIsAboutToEnd) {
  std::ofstream(path("a.txt")) << "old";
  const auto die = [&] {  // in a child of its own: no file can be opened after it
    AtomicFile a(path("a.txt")), b(path("b.txt"));
    if (num_files() != 3) std::_Exit(1);
    abandon_files();
    std::_Exit(0);
  };
  EXPECT_EXIT(die(), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_file(path("a.txt")), "old");
  EXPECT_EQ(num_files(), 1);
}

// As a signal handler would end the process, in a child.
TEST_F(AtomicFileTest, LastWordsAppearWhereThereAreSome) {
  std::ofstream(path("a.txt")) << "old";
  std::ofstream(path("b.txt")) << "old";
  const auto die = [&] {
    AtomicFile a(path("a.txt")), b(path("b.txt")), c(path("c.gz"));
    a.set_last_words("not yet");
    a.set_last_words("the last");
    c.set_last_words("packed");
    for (AtomicFile* file : {&a, &b, &c}) file->publish_last_words();
    std::_Exit(0);
  };
  for (const bool is_anonymous : {true, false}) {
    has_anonymous_files = is_anonymous;
    EXPECT_EXIT(die(), testing::ExitedWithCode(0), "");
    has_anonymous_files = true;
    EXPECT_EQ(read_file(path("a.txt")), "the last");
    EXPECT_EQ(read_file(path("b.txt")), "old");
    EXPECT_EQ(read_file(path("c.gz")).substr(0, 2), "\x1f\x8b");
  }
}

TEST_F(AtomicFileTest, LastWordsAreForgottenByACommit) {
  AtomicFile file(path("a.txt"));
  file.set_last_words("the last");
  file.stream() << "whole";
  file.commit();
  EXPECT_EQ(read_file(path("a.txt")), "whole");
}

TEST_F(AtomicFileTest, LeavesADeviceADevice) {
  AtomicFile file("/dev/null");
  file.stream() << "gone";
  file.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// In a child: its stdout is closed, and the file gets that number.
TEST_F(AtomicFileTest, AppearsWhereStdoutIsClosed) {
  const auto commit = [&] {
    ::close(STDOUT_FILENO);
    AtomicFile file(path("a.txt"));
    file.stream() << "whole";
    file.commit();
    std::_Exit(0);
  };
  EXPECT_EXIT(commit(), testing::ExitedWithCode(0), "");
  ASSERT_TRUE(fs::exists(path("a.txt")));
  EXPECT_EQ(read_file(path("a.txt")), "whole");
}

// What opening it says; empty if nothing is wrong.
std::string error_of(const std::string& path) {
  try {
    AtomicFile file(path);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_F(AtomicFileTest, WhatCannotBeOpenedIsOneClearLine) {
  EXPECT_EQ(error_of(path("none/a.txt")),
            path("none/a.txt") +
                ": cannot be created: No such file or directory; name a folder "
                "that exists, is writable and has room");
  EXPECT_EQ(error_of(folder_),
            folder_.string() + ": cannot be opened: Is a directory; name a file in it");
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
