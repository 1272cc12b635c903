// `loratory check` as a user runs it: exit codes, a finding with its REPRO line, ledger, outputs.
#include <gmock/gmock.h>
#include <sched.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

using testing::HasSubstr;

class CheckTest : public ProgramTest {
 protected:
  // The sample with its prefix cache blind to adapters: docs/check_scheduler.md plants the same.
  void write_buggy_scheduler() const {
    std::ostringstream text;
    text << std::ifstream(LORATORY_SOURCE_DIR "/check/samples/naive_scheduler.py").rdbuf();
    std::string changed = text.str();
    const std::string line = "return (request.uid, tuple(";
    const size_t at = changed.find(line);
    ASSERT_NE(at, std::string::npos);
    write("buggy.py", changed.replace(at, line.size(), "return (0, tuple("));
  }
  static bool has_python() { return std::system("python3 -c '' 2>/dev/null") == 0; }
};

TEST_F(CheckTest, OurOwnSchedulerAndTheReferencePass) {
  const Outcome own = loratory("check --scheduler own --cases 10 --seed 3");
  EXPECT_EQ(own.exit_code, 0) << own.err;
  EXPECT_THAT(own.out, HasSubstr("loratory: 10 cases, seed 3"));
  EXPECT_THAT(own.out, testing::ContainsRegex("prefixes +passed +10 cases"));
  EXPECT_EQ(own.err, "");

  const Outcome served =
      loratory("check --cases 3 --scheduler \"'" + program() + "' check --serve-scheduler\"");
  EXPECT_EQ(served.exit_code, 0) << served.out << served.err;

  const Outcome kernel = loratory("check --impl reference --operations linear --cases 3");
  EXPECT_EQ(kernel.exit_code, 0) << kernel.out << kernel.err;
}

// How many elements a run compares follows from the sizes of its cases.
TEST_F(CheckTest, MaxProductsBoundsTheCases) {
  const auto num_comparisons = [&](const std::string& flags) {
    const std::string all =
        "check --impl reference --operations linear --checks numbers --cases 6 ";
    const Outcome run = loratory(all + "--json r.json " + flags);
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    const std::string json = content("r.json"), key = "\"num_comparisons\": ";
    return std::stoll(json.substr(json.find(key) + key.size()));
  };
  EXPECT_EQ(num_comparisons(""), num_comparisons("--max-products 4194304"));
  EXPECT_GT(num_comparisons(""), num_comparisons("--max-products 64"));
}

TEST_F(CheckTest, HelpHasItsOwnExitCodes) {
  const Outcome help = loratory("check --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit codes: 0 nothing found; 1 a finding,"));
  EXPECT_THAT(help.out, HasSubstr("2 bad input."));
  EXPECT_THAT(help.out, testing::Not(HasSubstr("SLO")));
}

TEST_F(CheckTest, BadInputIsOneLine) {
  const auto expect_error = [&](const std::string& flags, const std::string& says) {
    const Outcome run = loratory("check " + flags);
    EXPECT_EQ(run.exit_code, 2) << flags;
    EXPECT_THAT(run.err, HasSubstr(says));
    EXPECT_EQ(run.out, "");
  };
  expect_error("", "check: has nothing to judge; give --impl");
  expect_error("--scheduler own --impl reference", "check: has --impl and --scheduler");
  expect_error("--scheduler own --operations linear", "--operations: ");
  expect_error("--scheduler own --max-products 9", "--max-products: ");
  expect_error("--scheduler own --max-bytes 9", "--max-bytes: ");
  expect_error("--impl reference --max-products 0", "--max-products: '0' is not a number");
  expect_error("--impl reference --transcript t", "--transcript: ");
  expect_error("--impl ./none.so", "./none.so");
  expect_error("--impl reference --budget 10ms", "--budget: '10ms' is not a number");
  expect_error("--impl reference --operations linear --case linear.K4.N4.r1.bf16.f16",
               "case: 'f16': is of the same kind as 'bf16'");
  expect_error("--scheduler ./none.so", "./none.so: cannot be loaded");
  expect_error("--scheduler no-such-program-here --cases 2",
               "--scheduler: /bin/sh cannot run it: 'no-such-program-here'; give a command");
  expect_error("--serve-scheduler --cases 3",
               "--cases: changes nothing: our own scheduler answers the lines of stdin");
  expect_error("--scheduler own --checks slot", "--checks: no judge is called 'slot'");
  expect_error("--scheduler own --case sched.seed1.lora2", "did you mean 'loras'?");
  expect_error("--scheduler own --seed x", "--seed: 'x' is not a number");
  expect_error("--scheduler own --budget 0s", "--budget: '0' is not a number");
  write("ledger", "slots *\n");
  expect_error("--scheduler own --ledger ledger", "ledger:1: has no reference");
  write("ledger", "slot * x\n");
  expect_error("--scheduler own --ledger ledger", "did you mean 'slots'?");
}

TEST_F(CheckTest, AFindingIsShownReplayedAndKnown) {
  if (!has_python()) GTEST_SKIP() << "no python3";
  write_buggy_scheduler();
  const std::string flags = "check --scheduler 'python3 buggy.py' ";
  const Outcome run =
      loratory(flags + "--stop-at-first --json r.json --junit r.xml --transcript t.jsonl");
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_THAT(run.out, HasSubstr("FINDING prefixes"));
  EXPECT_THAT(run.out, testing::ContainsRegex("computed with uid .*, and the request is for uid"));
  EXPECT_THAT(run.out, testing::ContainsRegex("pins +skipped .*pins is not claimed"));
  EXPECT_THAT(content("r.json"), HasSubstr("\"check\": \"prefixes\""));
  EXPECT_THAT(content("r.xml"), HasSubstr("<failure message="));
  EXPECT_THAT(content("t.jsonl"), HasSubstr("{\"op\":\"hello\""));

  const std::string marker = "REPRO: loratory ";
  const size_t at = run.out.find(marker);
  ASSERT_NE(at, std::string::npos);
  const std::string repro =
      run.out.substr(at + marker.size(), run.out.find('\n', at) - at - marker.size());
  const Outcome again = loratory(repro + " --no-shrink");
  EXPECT_EQ(again.exit_code, 1) << repro;
  EXPECT_THAT(again.out, HasSubstr("FINDING prefixes"));

  write("ledger", "# ours\nprefixes * https://example.org/1\n");
  const Outcome known = loratory(flags + "--no-shrink --cases 3 --ledger ledger");
  EXPECT_EQ(known.exit_code, 0) << known.out;
  EXPECT_THAT(known.out, HasSubstr("KNOWN   prefixes"));
  const Outcome stale = loratory("check --scheduler own --cases 2 --ledger ledger");
  EXPECT_EQ(stale.exit_code, 1);
  EXPECT_THAT(stale.out, HasSubstr("STALE line 2: prefixes * https://example.org/1"));
}

// What the run was told and what decides the finding is on the line as well.
TEST_F(CheckTest, ReproHasTheFlagsThatDecide) {
  if (!has_python()) GTEST_SKIP() << "no python3";
  write_buggy_scheduler();
  const Outcome run = loratory(
      "check --scheduler 'python3 buggy.py' --stop-at-first --no-shrink --timeout-ms 9000 "
      "--checks tokens,slots");
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_THAT(run.out, HasSubstr("FINDING tokens"));
  EXPECT_THAT(run.out, HasSubstr("REPRO: loratory check --scheduler 'python3 buggy.py' "
                                 "--timeout-ms 9000 --checks tokens,slots --case sched.seed"));
}

// A scheduler has a group of processes of its own, which Ctrl-C and a signal do not reach.
TEST_F(CheckTest, ASignalEndsTheSchedulerToo) {
  write("hangs.sh", "echo $$ >pid.tmp; mv pid.tmp pid; exec sleep 600\n");
  write("run.sh", "'" + program() + "' check --scheduler 'sh hangs.sh' --timeout-ms 600000 &\n" +
                      "while ! [ -e pid ]; do :; done; kill -TERM $!; wait $!\n");
  const std::string command = "cd '" + folder_.string() + "' && sh run.sh >out.txt 2>err.txt";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM) << content("err.txt");
  const std::string pid = content("pid");
  const auto state = [&] {
    std::ifstream process("/proc/" + pid.substr(0, pid.find('\n')) + "/status");
    for (std::string word; process >> word;) {
      if (word == "State:" && process >> word) return word;
    }
    return std::string("gone");
  };
  // It was killed; the kernel may not have come to it yet.
  for (int i = 0; i < 100'000 && state() != "gone" && state() != "Z"; ++i) sched_yield();
  EXPECT_THAT(state(), testing::AnyOf("gone", "Z"));
}

// A kernel in C, by what it does in a run; false if there is no compiler.
class KernelInC : public CheckTest {
 protected:
  bool compile(const std::string& run) const {
    write("mine.c", R"(
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "check/loratory_plugin.h"
static int create(void* context, const struct LoratoryLayer* layer, void** state) { return 0; }
static int run(void* state, const struct LoratoryCall* call, void* stream) { )" +
                        run + R"( return 0; }
static void destroy(void* state) {}
static const struct LoratoryClaims claims = {
  .struct_bytes = sizeof claims, .operations = 1 << LORATORY_OP_LINEAR,
  .weight_dtypes = 1 << LORATORY_F32, .layouts = 1 << LORATORY_LAYOUT_SLICES};
static const struct LoratoryPlugin plugin = {
  .struct_bytes = sizeof plugin, .version = LORATORY_PLUGIN_VERSION, .name = "mine",
  .claims = &claims, .create = create, .run = run, .destroy = destroy};
const struct LoratoryPlugin* loratory_plugin(void) { return &plugin; }
)");
    return in_folder("cc -shared -fPIC -I'" LORATORY_SOURCE_DIR "' mine.c -o mine.so 2>err.txt") ==
           0;
  }
  int in_folder(const std::string& command) const {
    return std::system(("cd '" + folder_.string() + "' && " + command).c_str());
  }
};

// A kernel that never returns: whoever ends the run learns in which case.
TEST_F(KernelInC, ASignalNamesTheCaseThatRuns) {
  if (!compile("fclose(fopen(\"runs\", \"w\")); for (;;) pause();")) {
    GTEST_SKIP() << "no C compiler: " << content("err.txt");
  }
  write("run.sh", "'" + program() + "' check --impl ./mine.so --json r.json &\n" +
                      "while ! [ -e runs ]; do :; done; kill -INT $!; wait $!\n");
  const int status = in_folder("sh run.sh >out.txt 2>err.txt");
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "r.json"));
  const std::string err = content("err.txt");
  EXPECT_THAT(err, HasSubstr("the kernel was interrupted in this case\n"
                             "  REPRO: loratory check --impl ./mine.so --case linear."));
  const std::string marker = "--case ";
  const size_t at = err.find(marker);
  ASSERT_NE(at, std::string::npos);
  const std::string label = err.substr(at + marker.size());
  EXPECT_EQ(
      loratory("check --impl reference --case " + label.substr(0, label.find('\n'))).exit_code, 0);
}

// A kernel that ends the process: what was found before is told, and that it did, whatever the
// ledger knows.
TEST_F(KernelInC, ThatEndsTheProcessLeavesAReport) {
  std::vector<std::string> ends = {"abort();", "exit(0);"};
#if !defined(__SANITIZE_ADDRESS__)  // which ends a crash itself
  ends.emplace_back("raise(SIGSEGV);");
#endif
  write("ledger", "accepted * https://example.org/1\ninputs_unchanged * https://example.org/2\n");
  for (const std::string& end : ends) {
    if (!compile("static int n; if (++n == 60) " + end)) {
      GTEST_SKIP() << "no C compiler: " << content("err.txt");
    }
    write("r.json", "old");
    const Outcome run =
        loratory("check --impl ./mine.so --json r.json --junit r.xml --ledger ledger");
    EXPECT_EQ(run.exit_code, 1) << end;
    const std::string repro = "REPRO: loratory check --impl ./mine.so --case linear.";
    EXPECT_THAT(run.err, HasSubstr(repro));
    EXPECT_THAT(run.out, HasSubstr("FINDING covered_written"));
    EXPECT_THAT(run.out, HasSubstr("FINDING accepted"));
    EXPECT_THAT(run.out, testing::EndsWith("\nNOT OK\n"));
    EXPECT_THAT(run.out, testing::Not(HasSubstr("STALE")));
    const auto json = nlohmann::json::parse(content("r.json"));
    EXPECT_EQ(json["ok"], false);
    EXPECT_EQ(json["findings"].back()["check"], "accepted");
    EXPECT_EQ(json["findings"].back()["what"],
              "the kernel ends the process: exit(), abort() or a crash");
    EXPECT_EQ(json["checks"][0]["state"], "failed");
    EXPECT_THAT(content("r.xml"), HasSubstr(repro));
    EXPECT_THAT(content("r.xml"), testing::EndsWith("</testsuite>\n"));
  }
}

// A scheduler in a library can end the process as well.
TEST_F(CheckTest, ASchedulerThatEndsTheProcessLeavesAReport) {
  write("mine.c", R"(
#include <stdlib.h>
#include "check/loratory_scheduler.h"
static int state;
static void* create(void) { return &state; }
static int exchange(void* s, const char* message, const char** reply) { exit(0); }
static void destroy(void* s) {}
static const struct LoratoryScheduler mine = {
  .version = LORATORY_SCHEDULER_VERSION, .create = create, .exchange = exchange, .destroy = destroy};
const struct LoratoryScheduler* loratory_scheduler(void) { return &mine; }
)");
  const std::string compile = "cd '" + folder_.string() +
                              "' && cc -shared -fPIC -I'" LORATORY_SOURCE_DIR
                              "' mine.c -o mine.so 2>err.txt";
  if (std::system(compile.c_str()) != 0) GTEST_SKIP() << "no C compiler: " << content("err.txt");
  const Outcome run = loratory("check --scheduler ./mine.so --json r.json");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("loratory: the scheduler called exit() in this case\n"
                                 "  REPRO: loratory check --scheduler ./mine.so --case "));
  EXPECT_THAT(run.out, HasSubstr("FINDING door"));
  const auto json = nlohmann::json::parse(content("r.json"));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["findings"][0]["what"],
            "the scheduler ends the process: exit(), abort() or a crash");
}

}  // namespace
}  // namespace loratory
