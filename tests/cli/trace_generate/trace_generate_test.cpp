// `loratory trace generate` from outside: what it prints, and one line with exit code 2 on bad
// input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int exit_code = -1;
  std::string text;
};

class TraceGenerate : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string(LORATORY_CLI).empty()) GTEST_SKIP() << "built without the program";
  }

  static Outcome run(const std::string& flags, const std::string& redirect = "2>/dev/null") {
    const std::string command =
        std::string("'") + LORATORY_CLI + "' trace generate " + flags + " " + redirect;
    std::FILE* pipe = popen(command.c_str(), "r");
    Outcome outcome;
    std::array<char, 4096> buffer;
    while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
      outcome.text.append(buffer.data(), count);
    }
    const int status = pclose(pipe);
    outcome.exit_code = WEXITSTATUS(status);
    return outcome;
  }

  static void expect_error(const std::string& flags, const std::string& line) {
    const Outcome outcome = run(flags, "2>&1 >/dev/null");
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_EQ(outcome.text, "loratory: " + line + "\n") << flags;
  }
};

TEST_F(TraceGenerate, WritesNativeRows) {
  const Outcome outcome = run(
      "--requests 1 --arrivals poisson:2 --prompt-tokens constant:40 --output-tokens constant:3 "
      "--block-tokens 16");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, StartsWith("{\"arrival_ms\":"));
  EXPECT_THAT(outcome.text, HasSubstr("\"prompt_tokens\":40,\"output_tokens\":3,\"session\":1,"
                                      "\"block_tokens\":16,\"block_ids\":[0,1,2]}\n"));
}

TEST_F(TraceGenerate, RefusesWhatWouldNotBeSo) {
  expect_error("--requests 10 --arrivals poisson:5 --max-prompt-tokens 100",
               "--max-prompt-tokens: changes nothing: prompts are as long as their law says; add "
               "--turns N, --system-prompts N or --block-tokens N");
  expect_error("--requests 10 --arrivals poisson:1e-9 --seed 1",
               "--requests: so many do not arrive within 100 years; raise the rates, or give "
               "--duration");
}

TEST_F(TraceGenerate, DealsRanksAndRepeatsItself) {
  const std::string flags =
      "--ranks 8,64 --requests 50 --arrivals gamma:5:3 --adapters 4 --popularity zipf:1 --seed 3";
  const Outcome outcome = run(flags);
  EXPECT_THAT(outcome.text, HasSubstr("\"adapter\":\"adapter-002\",\"rank\":8"));
  EXPECT_THAT(outcome.text, HasSubstr("\"adapter\":\"adapter-003\",\"rank\":64"));
  EXPECT_EQ(run(flags).text, outcome.text);
  EXPECT_NE(run(flags + "1").text, outcome.text);
}

TEST_F(TraceGenerate, BadInputIsOneLine) {
  expect_error("--requests 5",
               "--arrivals: the law of arrivals is missing; "
               "give poisson:RATE, gamma:RATE:CV or trace:FILE");
  expect_error("--arrivals poisson:1",
               "--requests: the workload has no end; give --requests N or --duration S");
  expect_error("--requests 5 --arrivals poisson:1 --popularity zipf:1",
               "--popularity: the number of adapters is missing; "
               "add --adapters N");
  expect_error("--requests 5 --arrivals poisson:1 --duration -1",
               "--duration: '-1' is not a number from 0 to 3000000000; give one, such as 2 or 0.5");
  expect_error("--requests 5 --arrivals poisson:1 --rate-scale 0",
               "--rate-scale: 0 is not a factor; give one > 0");
  expect_error("--requests 5 --adapter-rates 0.1:2 --adapters 3",
               "--adapter-rates: it names the adapters and their rates itself; "
               "leave out --arrivals, --adapters and --popularity");
  expect_error("--requests 5 --arrivals poisson:1 --lengths-in-order",
               "--lengths-in-order: the trace to take lengths from is missing; "
               "add --lengths-from FILE");
}

}  // namespace
