// The program from outside: exit codes, what stdout and stderr hold, whole files or none.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.hpp"

namespace loratory {
namespace {

class TraceCommands : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (IsSkipped()) return;
    write("t.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.5,30,4\n");
  }
};

TEST_F(TraceCommands, InfoPrintsATable) {
  const Outcome run = loratory("trace info t.csv");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("requests        2\n"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("format          vidur\n"), std::string::npos) << run.out;
}

TEST_F(TraceCommands, InfoReadsStdinAndWritesJson) {
  const Outcome run = loratory("trace info - --json info.json < t.csv");
  EXPECT_EQ(run.exit_code, 0);
  const nlohmann::json json = nlohmann::json::parse(content("info.json"));
  EXPECT_EQ(json["num_requests"], 2);
  EXPECT_EQ(json["trace"], "-");
  EXPECT_EQ(json["prompt_tokens"]["mean"], 20);
}

TEST_F(TraceCommands, ConvertIsLossless) {
  for (const char* name : {"n.jsonl", "n.jsonl.gz", "n.jsonl.zst"}) {
    EXPECT_EQ(loratory(std::string("trace convert t.csv ") + name).exit_code, 0);
    EXPECT_EQ(loratory(std::string("trace convert ") + name + " -").out,
              "{\"arrival_ms\":500,\"prompt_tokens\":10,\"output_tokens\":2}\n"
              "{\"arrival_ms\":1500,\"prompt_tokens\":30,\"output_tokens\":4}\n");
  }
}

TEST_F(TraceCommands, BadInputIsOneLineAndExit2AndNoFile) {
  write("bad.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.5,-30,4\n");
  const Outcome run = loratory("trace convert bad.csv out.jsonl");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err,
            "loratory: bad.csv:3:5: num_prefill_tokens is out of range: '-30'; it must be in "
            "0..2147483647\n");
  EXPECT_FALSE(fs::exists(path("out.jsonl")));
}

TEST_F(TraceCommands, SkippedRowsAreSaid) {
  write("bad.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.5,-30,4\n");
  const Outcome run = loratory("trace info bad.csv --skip-bad-rows");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_NE(run.out.find("rows skipped    1\n"), std::string::npos) << run.out;
}

TEST_F(TraceCommands, ConvertAnonymises) {
  write("n.jsonl",
        "{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"id\":\"x\",\"adapter\":"
        "\"acme\"}\n");
  EXPECT_EQ(loratory("trace convert --anonymise n.jsonl -").out,
            "{\"arrival_ms\":0,\"prompt_tokens\":3,\"output_tokens\":1,\"id\":\"request-1\","
            "\"adapter\":\"adapter-1\"}\n");
}

TEST_F(TraceCommands, LogsNeedTheFlagsTheyName) {
  write("server.log",
        "INFO 06-15 12:34:56 [logger.py:42] Received request r: params: SamplingParams(n=1), "
        "lora_request: None.\n");
  const Outcome run = loratory("trace info server.log --default-prompt 7 --default-output 5");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("note            1 of 1 output lengths are --default-output 5\n"),
            std::string::npos)
      << run.out;
  EXPECT_EQ(loratory("trace info server.log --adapter-from moon").err,
            "loratory: --adapter-from: 'moon' is unknown; use model\n");
}

TEST_F(TraceCommands, HostileNamesReachTheTerminalSpelledOut) {
  write(
      "n.jsonl",
      "{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"adapter\":\"\\u001b[2J\\n\"}\n");
  const Outcome run = loratory("trace info n.jsonl");
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
  EXPECT_NE(run.out.find("\n\\x1b[2J\\n "), std::string::npos) << run.out;
  EXPECT_EQ(loratory("trace info 'no\x1b[2J\nfile'").err,
            "loratory: no\\x1b[2J\\nfile: cannot be opened: No such file or directory; name a "
            "readable file, or - for stdin\n");
}

TEST_F(TraceCommands, WhatNeverEndsIsOneLine) {
  for (const char* arguments :
       {"trace info /dev/zero", "trace info .", "replay --trace t.csv --model /dev/zero",
        "replay --trace t.csv --profile /dev/zero"}) {
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.err.find('\n'), run.err.size() - 1) << arguments << ": " << run.err;
  }
}

TEST_F(TraceCommands, WrongFlagsAreOneLineAndExit2) {
  for (const char* arguments :
       {"", "--no-such-flag", "trace", "trace info", "trace info t.csv --format moon",
        "trace info t.csv --reuse 1,x", "trace info t.csv --reuse 5", "trace info none.csv",
        "trace info t.csv --json none/x.json", "trace info t.csv --block-tokens -1"}) {
    const Outcome run = loratory(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.err.substr(0, 10), "loratory: ") << arguments;
    EXPECT_EQ(run.err.find('\n'), run.err.size() - 1) << arguments << ": " << run.err;
  }
}

TEST_F(TraceCommands, VersionNamesTheCommit) {
  const Outcome run = loratory("--version");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_NE(run.out.find(" (commit "), std::string::npos) << run.out;
}

}  // namespace
}  // namespace loratory
