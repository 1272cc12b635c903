// What the program writes, from outside: which files, when, and how it ends.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

constexpr const char* kTrace =
    "{\"arrival_ms\":0,\"prompt_tokens\":4,\"output_tokens\":2,\"adapter\":\"a\",\"rank\":8}\n"
    "{\"arrival_ms\":5,\"prompt_tokens\":4,\"output_tokens\":2,\"adapter\":\"b\",\"rank\":8}\n";

class Outputs : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (!IsSkipped()) write("t.jsonl", kTrace);
  }
  size_t num_files() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      count += name != "out.txt" && name != "err.txt";
    }
    return count;
  }
  void expect_error(const std::string& arguments, const std::string& line) const {
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_EQ(run.err, "loratory: " + line + "\n") << arguments;
    EXPECT_EQ(content("t.jsonl"), kTrace) << arguments;
  }
};

TEST_F(Outputs, TheTraceIsNeverOverwritten) {
  fs::create_symlink("t.jsonl", path("soft"));
  fs::create_hard_link(path("t.jsonl"), path("hard"));
  fs::create_symlink(".", path("here"));
  for (const std::string name : {"t.jsonl", "./t.jsonl", "soft", "hard", "here/t.jsonl"}) {
    const std::string rule =
        ": '" + name + "' is the trace; it would be overwritten: name another file";
    expect_error("trace convert t.jsonl " + name, "out" + rule);
  }
  const std::string rule = ": 't.jsonl' is the trace; it would be overwritten: name another file";
  expect_error("trace convert - t.jsonl < t.jsonl", "out" + rule);
  expect_error("trace info t.jsonl --json t.jsonl", "--json" + rule);
  expect_error("replay --trace t.jsonl --event-log t.jsonl", "--event-log" + rule);
  expect_error("size --trace t.jsonl --csv t.jsonl", "--csv" + rule);
}

TEST_F(Outputs, NeitherIsAnyOtherInput) {
  write("w.txt", "a 1\n");
  expect_error("replay --trace t.jsonl --popularity weights:w.txt --html w.txt",
               "--html: 'w.txt' is the file of --popularity; it would be overwritten: name another "
               "file");
  write("run.toml", "tp = 1\n");
  expect_error("replay --trace t.jsonl --config run.toml --prom run.toml",
               "--prom: 'run.toml' is the config file; it would be overwritten: name another file");
  write("any.toml", "");
  for (const std::string command :
       {"trace info t.jsonl --json", "trace convert t.jsonl", "trace generate --requests 1 --out",
        "check --impl reference --json", "validate --measured m.csv --json",
        "calibrate --measured m.csv --out"}) {
    const std::string flag =
        command.starts_with("trace convert") ? "out" : command.substr(command.rfind("--"));
    expect_error(command + " any.toml --config any.toml",
                 flag +
                     ": 'any.toml' is the config file; it would be overwritten: name another "
                     "file");
  }
  write("kernel.so", "a kernel");
  expect_error("check --impl ./kernel.so --json kernel.so",
               "--json: 'kernel.so' is the kernel; it would be overwritten: name another file");
  expect_error("check --scheduler ./kernel.so --junit kernel.so",
               "--junit: 'kernel.so' is the scheduler; it would be overwritten: name another file");
  expect_error("trace generate --requests 1 --arrivals trace:t.jsonl --out t.jsonl",
               "--out: 't.jsonl' is the trace of --arrivals; it would be overwritten: name another "
               "file");
}

TEST_F(Outputs, NoTwoAreOneFile) {
  fs::create_symlink(".", path("here"));
  for (const std::string name : {"r", "./r", "here/r"}) {
    expect_error("replay --trace t.jsonl --json r --csv " + name,
                 "--csv: '" + name +
                     "' is the file of --json; it would be overwritten: name "
                     "another file");
  }
  EXPECT_FALSE(fs::exists(path("r")));
  EXPECT_EQ(loratory("replay --trace t.jsonl --json /dev/null --csv /dev/null").exit_code, 0);
}

// The trace is not there: who looked at it first would say so.
TEST_F(Outputs, AreOpenedBeforeTheTraceIsRead) {
  expect_error(
      "replay --trace none --json missing/r.json",
      "--json: missing/r.json: cannot be created: No such file or directory; name a folder "
      "that exists, is writable and has room");
  expect_error("trace convert none .",
               "out: .: cannot be opened: Is a directory; name a file in it");
}

TEST_F(Outputs, OfARunThatFailsAreNoneAndTheOldOnesStay) {
  write("bad.jsonl", std::string(kTrace) + "{\"arrival_ms\":9,\"prom");
  write("r.json", "old");
  const size_t before = num_files();
  EXPECT_EQ(loratory("replay --trace bad.jsonl --json r.json --csv r.csv").exit_code, 2);
  EXPECT_EQ(content("r.json"), "old");
  EXPECT_EQ(num_files(), before);
  // The disk is full for one of them.
  const Outcome full =
      loratory("replay --trace t.jsonl --json r.json --csv r.csv --prom /dev/full");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(full.err,
            "loratory: /dev/full: cannot be written to its end: No space left on device\n");
  EXPECT_EQ(content("r.json"), "old");
  EXPECT_EQ(num_files(), before);
}

// `ulimit -f`, as batch systems set it.
TEST_F(Outputs, ThatMayNotGrowAreWritesThatFail) {
  write("r.html", "old");
  const std::string command = "cd '" + folder_.string() + "' && ulimit -f 1 && '" + program() +
                              "' replay --trace t.jsonl --html r.html >/dev/null 2>err.txt";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(content("err.txt"), "loratory: r.html: cannot be written to its end: File too large\n");
  EXPECT_EQ(content("r.html"), "old");
}

TEST_F(Outputs, OnStdoutTheJsonIsAlone) {
  for (const char* name : {"-", "/dev/stdout", "/dev/fd/1"}) {
    const Outcome run = loratory(std::string("replay --trace t.jsonl --json ") + name);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(nlohmann::json::parse(run.out)["configs"][0]["completed"], 2) << name;
    EXPECT_NE(run.err.find("Successful requests"), std::string::npos) << run.err;
  }
  const Outcome info = loratory("trace info t.jsonl --json -");
  EXPECT_EQ(nlohmann::json::parse(info.out)["num_requests"], 2);
  expect_error("replay --trace t.jsonl --json - --csv /dev/stdout",
               "--csv: stdout has another output already; write one of them to a file");
}

TEST_F(Outputs, ExitCodesSayWhatWasFound) {
  const std::string size = "size --trace t.jsonl --json r.json --max-loras 2 ";
  EXPECT_EQ(loratory(size).exit_code, 0);
  const Outcome slow = loratory(size + "--slo-tpot-ms 0.001");
  EXPECT_EQ(slow.exit_code, 3) << slow.err;
  EXPECT_NE(slow.out, "");
  const Outcome small = loratory(size + "--gpu H100-80,mem=1GiB");
  EXPECT_EQ(small.exit_code, 4) << small.err;
  EXPECT_EQ(nlohmann::json::parse(content("r.json"))["configs"][0]["feasible"], false);
  EXPECT_EQ(loratory("replay --trace t.jsonl --gpu H100-80,mem=1GiB").exit_code, 4);
  EXPECT_EQ(loratory("replay --trace t.jsonl --slo-tpot-ms 0.001").exit_code, 0);
  EXPECT_EQ(loratory("trace info t.jsonl >/dev/full 2>/dev/null; exit $? #").exit_code, 1);
  for (const char* says : {"--version", "--help", "size --help"}) {
    const Outcome full = loratory(std::string(says) + " 2>err.txt >/dev/full; exit $? #");
    EXPECT_EQ(full.exit_code, 1) << says;
    EXPECT_EQ(full.err, "loratory: stdout: cannot be written to its end\n") << says;
  }
  EXPECT_EQ(loratory("size --trace none").exit_code, 2);
  for (const char* command : {"replay --trace t.jsonl ", "size --trace t.jsonl "}) {
    const Outcome both = loratory(std::string(command) + "--profile p --step-times measured");
    EXPECT_EQ(both.exit_code, 2);
    EXPECT_EQ(both.err,
              "loratory: --step-times: changes nothing: the step times are those of --profile; "
              "leave it out\n");
  }
}

TEST_F(Outputs, SettingsAreThereFromWhereverTheyCame) {
  using nlohmann::json;
  write("run.toml", "max-num-seqs = 64\npack = true\n");
  const Outcome run = loratory(
      "replay --trace t.jsonl --config run.toml --tp 2 --json r.json --html r.html --prom r.prom");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = json::parse(content("r.json"));
  const auto setting = [&](const std::string& name) {
    for (const json& one : result["settings"]) {
      if (one["name"] == name)
        return one["value"].get<std::string>() + (one["given"].get<bool>() ? " given" : "");
    }
    return "no " + name;
  };
  EXPECT_EQ(setting("max-num-seqs"), "64 given");
  EXPECT_EQ(setting("pack"), "true given");
  EXPECT_EQ(setting("tp"), "2 given");
  EXPECT_EQ(setting("no-prefetch"), "false");
  EXPECT_EQ(setting("load-mode"), "overlap");
  EXPECT_EQ(setting("max-lora-rank"), "8");  // the trace's
  EXPECT_EQ(setting("block-size"), "16");
  EXPECT_EQ(setting("json"), "no json");
  ASSERT_EQ(result["inputs"].size(), 2U);
  EXPECT_EQ(result["inputs"][1]["path"], "run.toml");
  EXPECT_EQ(result["inputs"][1]["format"], "config file");
  EXPECT_EQ(result["inputs"][1]["checksum"].get<std::string>().size(), 21U);
  EXPECT_NE(run.out.find("--max-num-seqs:                          64\n"), std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("--load-mode (default):                   overlap\n"), std::string::npos);
  EXPECT_NE(run.out.find("config file:                             xxh3:"), std::string::npos);
  EXPECT_EQ(run.out.find("--pack (default)"), std::string::npos);
  EXPECT_NE(content("r.html").find("<td>--load-mode</td><td><bdi>overlap</bdi></td>"),
            std::string::npos);
  EXPECT_NE(content("r.prom").find("name=\"pack\",value=\"true\",given=\"true\""),
            std::string::npos);
}

TEST_F(Outputs, SettingsAreThoseOfTheEngine) {
  ASSERT_EQ(loratory("replay --trace t.jsonl --engine vllm --json r.json").exit_code, 0);
  const std::string json = nlohmann::json::parse(content("r.json"))["settings"].dump();
  for (const char* setting : {R"({"given":false,"name":"cpu-eviction","value":"lru"})",
                              R"({"given":false,"name":"policy","value":"fcfs"})",
                              R"({"given":false,"name":"t-starve-ms","value":"inf"})"}) {
    EXPECT_NE(json.find(setting), std::string::npos) << setting << json;
  }
}

TEST_F(Outputs, CompareEndsAsItsConditionsSay) {
  ASSERT_EQ(loratory("replay --trace t.jsonl --json a.json").exit_code, 0);
  ASSERT_EQ(loratory("replay --trace t.jsonl --json b.json --gpu L40S").exit_code, 0);
  const Outcome same = loratory("compare a.json a.json --fail-if 'ttft_p99>+0%'");
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_NE(same.out.find("no difference\n"), std::string::npos) << same.out;
  const Outcome slower = loratory(
      "compare --fail-if 'ttft_p99>+10%' --fail-if 'tpot_p50>1ms' "
      "--fail-if 'failed>0' a.json b.json");
  EXPECT_EQ(slower.exit_code, 1) << slower.err;
  EXPECT_EQ(slower.err, "");
  EXPECT_NE(slower.out.find("\nfail-if ttft_p99>+10%: 8/32, "), std::string::npos) << slower.out;
  EXPECT_NE(slower.out.find("\nfail-if tpot_p50>1ms: 8/32, "), std::string::npos) << slower.out;
  EXPECT_EQ(slower.out.find("fail-if failed"), std::string::npos) << slower.out;
  EXPECT_NE(slower.out.find("H100-80"), std::string::npos) << slower.out;
  expect_error("compare a.json b.json --fail-if 'ttft_p9>1'",
               "--fail-if: 'ttft_p9>1': 'ttft_p9' is no measure; did you mean 'ttft_p90'?");
  expect_error("compare a.json t.jsonl", "t.jsonl: is not JSON (byte 77)");
}

// Starts `size` on a terminal, presses Ctrl-C once the bar is drawn, and reads on to the end.
TEST_F(Outputs, CtrlCLeavesACleanLineAndNoFile) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child < 0) GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
  if (child == 0) {
    const std::string trace = std::string(LORATORY_SOURCE_DIR) + "/traces/sample.jsonl.gz";
    if (::chdir(folder_.c_str()) != 0) std::_Exit(1);
    ::execl(LORATORY_CLI, "loratory", "size", "--trace", trace.c_str(), "--max-loras", "1:4000",
            "--json", "r.json", nullptr);
    std::_Exit(1);
  }
  const size_t before = num_files();
  std::string screen;
  std::array<char, 4096> bytes;
  bool is_pressed = false;
  for (ssize_t count; (count = ::read(terminal, bytes.data(), bytes.size())) > 0;) {
    screen.append(bytes.data(), size_t(count));
    if (is_pressed || screen.find("replaying  [") == std::string::npos) continue;
    ASSERT_EQ(::write(terminal, "\x03", 1), 1);
    is_pressed = true;
  }
  ::close(terminal);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(is_pressed) << screen;
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_TRUE(screen.ends_with("\r\x1b[K")) << screen;
  EXPECT_EQ(num_files(), before);
}

}  // namespace
}  // namespace loratory
