#include "cli/progress.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

namespace loratory::cli {
namespace {

TEST(Progress, LineShowsWhatIsLeft) {
  EXPECT_EQ(progress_line("size", 5, 10, 12),
            "size  [###############...............]  5/10  12 s, 12 s left");
  EXPECT_EQ(progress_line("size", 10, 10, 24),
            "size  [##############################]  10/10  24 s");
}

TEST(Progress, SilentWhenNotATerminal) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress("size", file);
    std::thread other([&] {
      for (int i = 0; i < 50; ++i) progress.show(i, 100);
    });
    for (int i = 50; i < 100; ++i) progress.show(i, 100);
    other.join();
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace loratory::cli
