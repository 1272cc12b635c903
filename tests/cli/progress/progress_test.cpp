#include "cli/progress.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/writer.hpp"
#include "scheduler_sim/workload/generate.hpp"
#include "tests/cli/program.hpp"
#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::cli {
namespace {

TEST(Progress, LineShowsWhatIsLeft) {
  EXPECT_EQ(progress_line("size", 5, 10, 12),
            "size  [###############...............]  5/10  12 s, 12 s left");
  EXPECT_EQ(progress_line("reading", 5, 10, 12, "MB"),
            "reading  [###############...............]  5/10 MB  12 s, 12 s left");
  EXPECT_EQ(progress_line("reading", 0, 0, 3), "reading  3 s");
  EXPECT_EQ(progress_line("reading", 5, 0, 3, "rows"), "reading  5 rows  3 s");
  EXPECT_EQ(progress_line("size", 10, 10, 24),
            "size  [##############################]  10/10  24 s");
}

TEST(Progress, LineFitsTheTerminal) {
  const auto line = [](int columns) { return progress_line("size", 5, 10, 12, "", columns); };
  EXPECT_EQ(line(0), line(1000)) << "0: nobody knows";
  EXPECT_EQ(line(62), "size  [###############...............]  5/10  12 s, 12 s left");
  EXPECT_EQ(line(60), "size  [##############..............]  5/10  12 s, 12 s left");
  EXPECT_EQ(line(32), "size  []  5/10  12 s, 12 s left");
  EXPECT_EQ(line(31), "size  []  5/10  12 s, 12 s lef");
  EXPECT_EQ(line(1), "");
  EXPECT_EQ(progress_line("reading", 5, 0, 3, "rows", 12), "reading  5 ");
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

using Counts = std::vector<int64_t>;

TEST(ProgressOf, AReplayCountsArrivals) {
  const sim::Trace trace = sim::round_robin(2, 10'000);
  for (const int32_t num_replicas : {0, 2}) {
    for (const auto router : {sim::RouterKind::round_robin, sim::RouterKind::least_loaded}) {
      sim::EngineSpec engine = sim::engine();
      if (num_replicas > 0) engine.fleet = {.num_replicas = num_replicas, .router = router};
      Counts counts;
      sim::replay(trace, engine, {2, 2}, {}, sim::ReplayDetail::metrics, {},
                  [&](int64_t num_arrived) { counts.push_back(num_arrived); });
      EXPECT_EQ(counts, (Counts{4096, 8192})) << num_replicas;
    }
  }
}

TEST(ProgressOf, AGeneratorAndAWriterCountRequests) {
  Counts drawn, written;
  sim::GenerateOptions options;
  options.arrivals.rate_rps = 1;
  options.limit.num_requests = 10'000;
  options.prompt_tokens = options.output_tokens = sim::LengthLaw::constant(4);
  options.on_progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, uint64_t{10'000});
    drawn.push_back(int64_t(done));
  };
  const sim::Trace trace = sim::generate(options);
  std::ostringstream out;
  sim::write_native(out, trace, [&](uint64_t done) { written.push_back(int64_t(done)); });
  EXPECT_EQ(drawn, (Counts{4096, 8192}));
  EXPECT_EQ(written, (Counts{4096, 8192}));
}

class ProgressOnATerminal : public ProgramTest {
 protected:
  // Starts the program on a terminal of its own, with `input` as its stdin unless negative.
  bool start(std::vector<const char*> words, int input = -1) {
    words.insert(words.begin(), LORATORY_CLI);
    words.push_back(nullptr);
    child_ = ::forkpty(&terminal_, nullptr, nullptr, &size_);
    if (child_ != 0) return child_ > 0;
    if (input >= 0) ::dup2(input, STDIN_FILENO);
    if (::chdir(folder_.c_str()) == 0) ::execv(LORATORY_CLI, const_cast<char**>(words.data()));
    std::_Exit(1);
  }

  // Whether `text` stands on the screen before the program ends or says nothing for 20 seconds.
  bool wait_for(std::string_view text) {
    constexpr int kPatienceMs = 20'000;
    std::array<char, 4096> bytes;
    pollfd ready{terminal_, POLLIN, 0};
    while (screen_.find(text) == std::string::npos) {
      if (::poll(&ready, 1, kPatienceMs) != 1) return false;
      const ssize_t count = ::read(terminal_, bytes.data(), bytes.size());
      if (count <= 0) return false;
      screen_.append(bytes.data(), size_t(count));
    }
    return true;
  }

  // The exit code; the screen has all that the program wrote.
  int finish() {
    wait_for("never written");
    ::close(terminal_);
    int status = 0;
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  winsize size_{};  // unknown
  pid_t child_ = -1;
  int terminal_ = -1;
  std::string screen_;
};

constexpr std::string_view kRow =
    "{\"arrival_ms\":0,\"prompt_tokens\":4,\"output_tokens\":20000}\n";

// The pipe stays open until the bar has been seen.
TEST_F(ProgressOnATerminal, ReadingAPipeShowsItsRows) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const bool is_started = start({"trace", "info", "-", "--format", "native"}, pipe[0]);
  ::close(pipe[0]);
  if (!is_started) {
    ::close(pipe[1]);
    GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
  }
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(::write(pipe[1], kRow.data(), kRow.size()), ssize_t(kRow.size()));
  }
  EXPECT_TRUE(wait_for(" rows  ")) << screen_;
  ::close(pipe[1]);
  EXPECT_EQ(finish(), 0);
  const size_t bar = screen_.find("\r\x1b[Kreading  ");
  ASSERT_NE(bar, std::string::npos) << screen_;
  const size_t table = screen_.find("requests        5,000", bar);
  ASSERT_NE(table, std::string::npos) << screen_;
  EXPECT_EQ(screen_.find("reading  ", screen_.rfind("\r\x1b[K", table)), std::string::npos)
      << screen_;
}

// So long that it is ended by Ctrl-C.
const std::vector<const char*> kLongReplay = {"replay",     "--trace",        "t.jsonl",
                                              "--stepwise", "--max-num-seqs", "1"};

TEST_F(ProgressOnATerminal, AReplayShowsItsRequests) {
  std::string rows;
  for (int i = 0; i < 5000; ++i) rows += kRow;
  write("t.jsonl", rows);
  if (!start(kLongReplay)) GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
  EXPECT_TRUE(wait_for("/5000 requests")) << screen_;
  EXPECT_NE(screen_.find("\r\x1b[Kreplaying  ["), std::string::npos) << screen_;
  EXPECT_EQ(::write(terminal_, "\x03", 1), 1);
  finish();
  EXPECT_TRUE(screen_.ends_with("\r\x1b[K")) << screen_;
}

TEST_F(ProgressOnATerminal, LinesAreNoWiderThanIt) {
  std::string rows;
  for (int i = 0; i < 5000; ++i) rows += kRow;
  write("t.jsonl", rows);
  size_.ws_col = 30;
  if (!start(kLongReplay)) GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
  EXPECT_TRUE(wait_for("replaying  [")) << screen_;
  EXPECT_EQ(::write(terminal_, "\x03", 1), 1);
  finish();
  const size_t start = screen_.find("replaying  [");
  const size_t end = screen_.find_first_of("\r^", start);  // the next line, or the echo of Ctrl-C
  ASSERT_NE(end, std::string::npos) << screen_;
  EXPECT_LT(end - start, size_.ws_col) << screen_;
}

}  // namespace
}  // namespace loratory::cli
