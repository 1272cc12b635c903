// `loratory run` as a user runs it: on the models and adapters that transformers and PEFT wrote.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cli/tokenizer.hpp"
#include "tests/cli/program.hpp"
#include "tests/golden/fixture.hpp"

namespace loratory {
namespace {

using nlohmann::json;
using reference::Fixture;
using reference::kFixtures;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kModel = kFixtures + "llama_gqa";

class RunTest : public ProgramTest {
 protected:
  Outcome run(const std::string& more) const {
    return loratory("run --model " + kModel + " --requests r.jsonl --out out.jsonl " + more);
  }
  static std::string adapter(const std::string& name) {
    return fmt::format("--adapter {}={}/adapters/{} ", name, kModel, name);
  }
  std::vector<json> results() const {
    std::vector<json> lines;
    std::istringstream in(content("out.jsonl"));
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  void expect_bad_input(const Outcome& outcome, const std::string& message) const {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(fs::exists(path("out.jsonl")));
  }
};

// --- golden -----------------------------------------------------------------------------------

class GoldenRunTest : public RunTest, public testing::WithParamInterface<std::string> {};

// [1.30] [2.10]: greedy tokens of a base model and all its adapters, in mixed batches with half as
// many slots as adapters, are those of transformers and PEFT.
TEST_P(GoldenRunTest, GreedyTokensAreThoseOfTransformers) {
  const Fixture fixture(GetParam());
  const auto num_prompt = size_t(fixture.integers("num_prompt").at(0));
  std::vector<std::string> names = fixture.adapters();
  std::string flags = fmt::format(
      "run --model {} --requests r.jsonl --out out.jsonl --async-scheduling on "
      "--max-loras {}",
      fixture.directory(), 1 + names.size() / 2);
  for (const std::string& name : names) {
    flags += fmt::format(" --adapter {}={}", name, fixture.adapter_directory(name));
  }
  names.emplace_back("base");
  std::string requests;
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& name : names) {
    const std::vector<int32_t> all = fixture.integers(name + ".tokens");
    expected.emplace_back(all.begin() + std::ptrdiff_t(num_prompt), all.end());
    requests += fmt::format(
        R"({{"prompt": [{}], "max_tokens": {}, "temperature": 0, "ignore_eos": true{}}})"
        "\n",
        fmt::join(std::span(all).first(num_prompt), ", "), expected.back().size(),
        name == "base" ? "" : fmt::format(R"(, "model": "{}")", name));
  }
  write("r.jsonl", requests);
  const Outcome outcome = loratory(flags);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = results();
  ASSERT_EQ(lines.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(lines[i]["token_ids"].get<std::vector<int32_t>>(), expected[i]) << names[i];
    EXPECT_EQ(lines[i]["finish_reason"], "length");
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenRunTest, testing::ValuesIn(reference::kModels));

// --- what comes out ---------------------------------------------------------------------------

// A copy of the model in the test's folder, because a failure would write to it.
TEST_F(RunTest, FilesOfTheModelAndItsAdaptersAreNeverOverwritten) {
  fs::copy(kModel, path("m"), fs::copy_options::recursive);
  fs::create_symlink("m", path("link"));
  write("r.jsonl",
        "{\"operation\": \"load_lora_adapter\", \"lora_name\": \"b\", \"lora_path\": "
        "\"m/adapters/qv_r4\"}\n{\"prompt\": [1], \"max_tokens\": 1}\n");
  const std::string config = content("m/config.json");
  for (const std::string out : {"m/config.json", "./m/config.json", "link/config.json"}) {
    const Outcome outcome = loratory("run --model m --requests r.jsonl --out " + out);
    expect_bad_input(outcome,
                     "--out: '" + out + "' is a file of the model; it would be overwritten");
  }
  EXPECT_EQ(content("m/config.json"), config);
  fs::rename(path("m/adapters"), path("a"));
  write("r.jsonl",
        "{\"operation\": \"load_lora_adapter\", \"lora_name\": \"b\", \"lora_path\": "
        "\"a/qv_r4\"}\n{\"prompt\": [1], \"max_tokens\": 1}\n");
  expect_bad_input(loratory("run --model m --requests r.jsonl --out a/qv_r4/adapter_config.json"),
                   "is a file of an adapter of the request file; it would be overwritten");
}

// As of `replay`, the null block is not counted.
TEST_F(RunTest, OneKvBlockHoldsTheTokensOfABlock) {
  write("r.jsonl", R"({"prompt": [1, 2, 3], "max_tokens": 13, "ignore_eos": true})"
                   "\n");
  const Outcome outcome = run("--kv-blocks 1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("; 1 KV blocks of 16 tokens"));
}

TEST_F(RunTest, NamesTheFlagsThatDoNotFitEachOther) {
  write("r.jsonl", R"({"prompt": [1], "max_tokens": 1})"
                   "\n");
  expect_bad_input(run("--max-loras 3 --max-cpu-loras 2"),
                   "--max-cpu-loras: 2 is below --max-loras 3; an adapter in a slot is in host");
  expect_bad_input(run("--max-num-seqs 10 --max-num-batched-tokens 3"),
                   "--max-num-batched-tokens: must be at least --max-num-seqs = 10");
}

TEST_F(RunTest, WritesALineForEachRequestInTheOrderOfTheFile) {
  write("r.jsonl", R"({"request_id": "late", "prompt": [1, 2, 3], "max_tokens": 9, "priority": 1})"
                   "\n"
                   R"({"request_id": "soon", "model": "qv_r4", "prompt": [4], "max_tokens": 2, )"
                   R"("logprobs": 2})"
                   "\n"
                   R"({"request_id": "none", "prompt": [5], "max_tokens": 1, "logprobs": 0})"
                   "\n");
  const Outcome outcome = run(adapter("qv_r4"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const std::vector<json> lines = results();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["request_id"], "late");
  EXPECT_EQ(lines[0]["model"], kModel);
  EXPECT_EQ(lines[0]["prompt_tokens"], 3);
  EXPECT_EQ(lines[0]["token_ids"].size(), 9u);
  EXPECT_FALSE(lines[0].contains("logprobs"));
  EXPECT_FALSE(lines[0].contains("text")) << "the model has no tokenizer";
  EXPECT_EQ(lines[0]["timings"]["itl_ms"].size(), 8u);
  EXPECT_GE(lines[0]["timings"]["ttft_ms"], lines[0]["timings"]["queue_ms"]);
  EXPECT_EQ(lines[1]["model"], "qv_r4");
  ASSERT_EQ(lines[1]["logprobs"]["token_logprobs"].size(), 2u);
  EXPECT_LE(lines[1]["logprobs"]["token_logprobs"][0], 0);
  EXPECT_EQ(lines[1]["logprobs"]["top_logprobs"][1].size(), 2u);
  EXPECT_EQ(lines[2]["logprobs"]["token_logprobs"].size(), 1u);
  EXPECT_FALSE(lines[2]["logprobs"].contains("top_logprobs"));
  EXPECT_THAT(outcome.out, HasSubstr("(base model)"));
  EXPECT_THAT(outcome.out, HasSubstr("qv_r4"));
}

TEST_F(RunTest, ASlotForEachAdapterIsTheDefault) {
  write("r.jsonl", "{\"prompt\": [1], \"max_tokens\": 1}\n");
  const std::string folder = kModel + "/adapters/qv_r4";
  const std::string two_names = fmt::format("--adapter a={0} --adapter b={0}", folder);
  EXPECT_THAT(run(two_names).out, HasSubstr("; max_loras 2 of rank 4"));
  write("r.jsonl", fmt::format(R"({{"operation": "load_lora_adapter", "lora_name": "c", )"
                               R"("lora_path": "{}"}})"
                               "\n"
                               R"({{"prompt": [1], "max_tokens": 1}})"
                               "\n",
                               folder));
  EXPECT_THAT(run(two_names).out, HasSubstr("; max_loras 3 of rank 4"));
}

// The request file would be stdin, and the results stdout.
TEST_F(RunTest, ResultsAreThereThoughStdoutIsClosed) {
  write("r.jsonl", "{\"prompt\": [1], \"max_tokens\": 1}\n");
  const Outcome outcome = run("2>err.txt <&- >&-; exit $? #");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "loratory: stdout: cannot be written to its end\n");
  EXPECT_EQ(results().size(), 1u);
  fs::remove(path("out.jsonl"));
  EXPECT_EQ(run(">out.txt <&- 2>&-; exit $? #").exit_code, 0);
  EXPECT_EQ(results().size(), 1u);
  fs::remove(path("out.jsonl"));
  expect_bad_input(
      loratory("run --model " + kModel + " --requests - --out out.jsonl <&-"),
      "loratory: -: cannot be read: Bad file descriptor; name a readable file, or - for stdin");
}

// The table is longer than what a stream holds back.
TEST_F(RunTest, ResultsAreThereThoughNobodyReadsTheTable) {
  constexpr int kNumAdapters = 60, kStdout = 9;
  std::string requests, flags;
  for (int i = 0; i < kNumAdapters; ++i) {
    requests += fmt::format("{{\"model\": \"a{}\", \"prompt\": [1], \"max_tokens\": 1}}\n", i);
    flags += fmt::format("--adapter a{}={}/adapters/qv_r4 ", i, kModel);
  }
  write("r.jsonl", requests);
  EXPECT_GT(run(flags).out.size(), 4096u);
  fs::remove(path("out.jsonl"));
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  ::dup2(pipe[1], kStdout);
  for (const int end : pipe) ::close(end);
  EXPECT_NE(run(flags + fmt::format(">&{} 2>err.txt; exit $? #", kStdout)).exit_code, 0);
  ::close(kStdout);
  EXPECT_EQ(results().size(), size_t{kNumAdapters});
}

TEST_F(RunTest, AStopTokenEndsARequest) {
  write("r.jsonl", R"({"prompt": [1, 2, 3], "max_tokens": 9, "temperature": 0})"
                   "\n");
  ASSERT_EQ(run("").exit_code, 0);
  const auto tokens = results()[0]["token_ids"].get<std::vector<int32_t>>();
  write("r.jsonl", fmt::format(R"({{"prompt": [1, 2, 3], "max_tokens": 9, "temperature": 0, )"
                               R"("stop_token_ids": [{}]}})",
                               tokens[2]));
  ASSERT_EQ(run("").exit_code, 0);
  const json line = results()[0];
  EXPECT_EQ(line["finish_reason"], "stop");
  EXPECT_EQ(line["stop_reason"], tokens[2]);
  EXPECT_LE(line["token_ids"].size(), 3u);
}

TEST_F(RunTest, OperationsChangeWhatANameMeans) {
  const std::string request = R"({"model": "a", "prompt": [7, 3, 5], "temperature": 0})"
                              "\n";
  const auto load = [](const std::string& folder, const char* more) {
    return fmt::format(R"({{"operation": "load_lora_adapter", "lora_name": "a", )"
                       R"("lora_path": "{}/adapters/{}"{}}})"
                       "\n",
                       kModel, folder, more);
  };
  write("r.jsonl", load("qv_r4", "") + request +
                       load("everything_r7", R"(, "load_inplace": true)") + request +
                       R"({"operation": "unload_lora_adapter", "lora_name": "a"})"
                       "\n");
  ASSERT_EQ(run("").exit_code, 0);
  const std::vector<json> by_operations = results();
  const auto alone = [&](const std::string& folder) {
    write("r.jsonl", request);
    EXPECT_EQ(run(fmt::format("--adapter a={}/adapters/{}", kModel, folder)).exit_code, 0);
    return results().at(0)["token_ids"];
  };
  EXPECT_EQ(by_operations.at(0)["token_ids"], alone("qv_r4"));
  EXPECT_EQ(by_operations.at(1)["token_ids"], alone("everything_r7"));
}

// [1.50a]
TEST_F(RunTest, AdaptersInFp8AreRounded) {
  write("r.jsonl", R"({"model": "qv_r4", "prompt": [7, 3, 5], "max_tokens": 1, "logprobs": 0})"
                   "\n");
  const auto first_logprob = [&](const std::string& flags) {
    const Outcome outcome = run(adapter("qv_r4") + flags);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.out.find("in fp8") != std::string::npos, !flags.empty()) << outcome.out;
    return results().at(0)["logprobs"]["token_logprobs"].at(0).get<double>();
  };
  EXPECT_NE(first_logprob(""), first_logprob("--lora-dtype fp8"));
}

// --- failures ---------------------------------------------------------------------------------

// The numbers of an adapter are read when it is loaded.
TEST_F(RunTest, AnAdapterThatFailsEndsItsOwnRequestsAlone) {
  const fs::path copy = folder_ / "bad";
  fs::copy(kModel + "/adapters/qv_r4", copy);
  std::string weights = content("bad/adapter_model.safetensors");
  weights.replace(weights.size() - 4, 4, "\xff\xff\xff\xff");  // NaN in every format
  write("bad/adapter_model.safetensors", weights);
  write("r.jsonl",
        "{\"model\": \"bad\", \"prompt\": [1]}\n{\"prompt\": [1]}\n"
        "{\"model\": \"qv_r4\", \"prompt\": [1]}\n");
  const Outcome outcome = run(adapter("qv_r4") + "--adapter bad=bad");
  EXPECT_EQ(outcome.exit_code, 1);
  const std::vector<json> lines = results();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["finish_reason"], "error");
  EXPECT_THAT(lines[0]["error"].get<std::string>(), HasSubstr("E_NONFINITE"));
  EXPECT_EQ(lines[1]["finish_reason"], "length");
  EXPECT_EQ(lines[2]["finish_reason"], "length");
  EXPECT_THAT(outcome.out, HasSubstr("r.jsonl:1: request line-1: E_NONFINITE"));
}

TEST_F(RunTest, ARequestThatIsTooLongFailsAlone) {
  write("r.jsonl", "{\"prompt\": [1], \"max_tokens\": 500}\n{\"prompt\": [1]}\n");
  EXPECT_EQ(run("").exit_code, 1);
  EXPECT_EQ(results()[0]["error"], "prompt + output exceed max_model_len");
  EXPECT_EQ(results()[1]["finish_reason"], "length");
}

TEST_F(RunTest, APinThatLeavesNoSlotIsRefused) {
  write("r.jsonl", "{\"operation\": \"pin_lora\", \"lora_name\": \"qv_r4\"}\n{\"prompt\": [1]}\n");
  const Outcome outcome = run(adapter("qv_r4") + "--max-loras 1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("r.jsonl:1: refused: it would leave no slot"));
  EXPECT_EQ(results()[0]["finish_reason"], "length");
}

TEST_F(RunTest, BadInputIsOneLineBeforeAnythingRuns) {
  write("r.jsonl", "{\"prompt\": [1]}\n{\"prompt\": [1], \"modell\": \"x\"}\n");
  expect_bad_input(run(""), "r.jsonl:2: 'modell': is no key of a request; did you mean 'model'?");
  write("r.jsonl", "{\"prompt\": [1], \"model\": \"x\"}\n");
  expect_bad_input(run(""), "r.jsonl:1: model: 'x' is no adapter at this line");
  write("r.jsonl", "{\"prompt\": [96]}\n");
  expect_bad_input(run(""), "r.jsonl:1: prompt[0]: token 96 is outside the vocabulary of 96");
  write("r.jsonl", "{\"prompt\": \"text\"}\n");
  expect_bad_input(run(""), "r.jsonl:1: prompt: is text, and the model has no ");
  write("r.jsonl", "{\"prompt\": [1]}\n");
  ::setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
  expect_bad_input(run("--executor gpu"), "--executor: this ");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  expect_bad_input(run("--dtype float16"), "--dtype: the reference computes in float32");
  expect_bad_input(run("--executor cpu"), "--executor: 'cpu' is not one of reference, gpu");
  expect_bad_input(run("--adapter qv_r4"), "--adapter: 'qv_r4' is not NAME=DIR");
  expect_bad_input(run("--adapter a=nowhere"), "--adapter a: E_IO");
  expect_bad_input(run(adapter("qv_r4") + adapter("qv_r4")), "--adapter: 'qv_r4' is given twice");
  expect_bad_input(run(adapter("qv_r4") + "--max-lora-rank 2"), "--max-lora-rank: 2 is below");
  expect_bad_input(run("--max-num-seqs 4 --max-num-batched-tokens 2"),
                   "--max-num-batched-tokens: must be at least --max-num-seqs = 4");
  expect_bad_input(run("--max-model-len 129"), "--max-model-len: the model has 128 positions");
  write("r.jsonl",
        "{\"operation\": \"load_lora_adapter\", \"lora_name\": \"a\", \"lora_path\": \"nowhere\"}\n"
        "{\"prompt\": [1]}\n");
  expect_bad_input(run(""), "r.jsonl:1: lora_path: E_IO");
}

// --- text -------------------------------------------------------------------------------------

// A package `tokenizers` for python3, in the folder of the test.
class TextRunTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    if (std::system("python3 -c 'import json' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
    ::setenv("PYTHONPATH", path("packages").c_str(), /*overwrite=*/1);
    fs::create_directories(folder_ / "packages");
  }
  void TearDown() override {
    ::unsetenv("PYTHONPATH");
    RunTest::TearDown();
  }
  Outcome run(const std::string& more = "") const {
    return loratory("run --model " + kFixtures + "qwen3_yarn --requests r.jsonl --out out.jsonl " +
                    more);
  }
};

// It spells: a token is a character.
constexpr const char* kSpeller = R"py(
class Encoding:
    def __init__(self, text):
        self.ids = [ord(c) % 80 for c in text]
class Tokenizer:
    @staticmethod
    def from_file(path):
        open(path).read()
        return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def encode(self, text): return Encoding(text)
    def decode(self, ids): return "".join(chr(0x1F600 + i) for i in ids)
)py";

TEST_F(TextRunTest, TextsGoThroughTheLibraryAndBack) {
  write("packages/tokenizers.py", kSpeller);
  write("tokenizers.py", "raise ImportError('the current folder is no place for packages')");
  write("r.jsonl",
        "{\"prompt\": \"a\\\"b\\n\\u00e9\\ud83d\\ude00\", \"max_tokens\": 2}\n"
        "{\"prompt\": [17, 34, 18, 10, 73, 32], \"max_tokens\": 2}\n");
  const Outcome outcome = run();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = results();
  EXPECT_EQ(lines.at(0)["prompt_tokens"], 6);
  EXPECT_EQ(lines.at(0)["token_ids"], lines.at(1)["token_ids"]) << "U+1F600 % 80 is 32, e9 is 73";
  std::string expected;  // U+1F600 and what follows it, in UTF-8
  for (const json& id : lines[0]["token_ids"]) {
    const int token = id.get<int>();
    expected += "\xf0\x9f";
    expected += char(0x98 + token / 64);
    expected += char(0x80 + token % 64);
  }
  EXPECT_EQ(lines[0]["text"], expected);
}

TEST_F(TextRunTest, WithoutTheLibraryTextIsOneLine) {
  write("packages/tokenizers.py", "raise ImportError('No module named tokenizers')");
  write("r.jsonl", "{\"prompt\": \"text\"}\n");
  expect_bad_input(run(), "--python: 'python3' cannot import tokenizers (No module named");
  expect_bad_input(run("--python nowhere"), "--python: 'nowhere' cannot be started: No such file");
  write("r.jsonl", "{\"prompt\": [1]}\n");
  const Outcome outcome = run();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("loratory: without texts: --python: 'python3' cannot import"));
  EXPECT_FALSE(results().at(0).contains("text"));
}

TEST_F(TextRunTest, AnotherProgramThanAPythonIsOneLine) {
  for (const char* other : {"true", "echo"}) {
    const std::string python = fmt::format("--python {}", other);
    const std::string line = fmt::format(
        "--python: '{}' does not answer as Python 3 does; name a Python 3 with the "
        "package tokenizers, or give prompts as token ids\n",
        other);
    write("r.jsonl", "{\"prompt\": \"text\"}\n");
    expect_bad_input(run(python), line);
    write("r.jsonl", "{\"prompt\": [1]}\n");
    const Outcome outcome = run(python);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "loratory: without texts: " + line);
    EXPECT_EQ(run(python + " >out.txt 2>/dev/full #").exit_code, 0);
    fs::remove(path("out.jsonl"));
  }
}

TEST_F(TextRunTest, APythonThatDiesTakesNoTokensWithIt) {
  write("packages/tokenizers.py", std::string(kSpeller) +
                                      "import os\n"
                                      "Tokenizer.decode = lambda self, ids: os._exit(0)\n");
  write("r.jsonl", "{\"prompt\": \"text\"}\n{\"prompt\": [1]}\n");
  const Outcome outcome = run();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "loratory: without texts: tokenizer: the Python that runs it has ended\n");
  EXPECT_THAT(outcome.out, HasSubstr("(base model)"));
  ASSERT_EQ(results().size(), 2u);
  EXPECT_EQ(results()[1]["finish_reason"], "length");
  EXPECT_FALSE(results()[0].contains("text"));
}

// Whether it is silent from the start or at a question, nobody waits for it for ever.
TEST_F(RunTest, APythonThatNeverAnswersIsGivenUp) {
  const auto error_of = [&](const std::string& script) -> std::string {
    write("python", "#!/bin/sh\n" + script + "exec sleep 600\n");
    fs::permissions(path("python"), fs::perms::owner_all);
    try {
      cli::Tokenizer tokenizer(path("python"), "tokenizer.json", std::chrono::milliseconds(20));
      tokenizer.encode("text");
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(""), "--python: '" + path("python") +
                              "' has not answered for 0.02 s; name a Python 3 with the package "
                              "tokenizers, or give prompts as token ids");
  EXPECT_THAT(error_of("echo '{\"ready\": true}'\n"), HasSubstr(" has not answered for 0.02 s"));
}

TEST_F(TextRunTest, AnotherFileThanATokenizerIsNamed) {
  write("packages/tokenizers.py",
        std::string(kSpeller) + "Tokenizer.from_file = lambda path: 1 / 0\n");
  write("r.jsonl", "{\"prompt\": \"text\"}\n");
  expect_bad_input(run(), "qwen3_yarn/tokenizer.json: is no tokenizer that the library reads (div");
}

// The library itself: ids and texts are those of transformers (tests/golden/make_tokenizer.py).
TEST_F(RunTest, TokensOfTextsAreThoseOfTransformers) {
  const char* const named = std::getenv("LORATORY_TEST_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  if (std::system((python + " -c 'import tokenizers' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << python << " has no package tokenizers";
  }
  cli::Tokenizer tokenizer(python, kFixtures + "qwen3_yarn/tokenizer.json");
  for (const json& expected : reference::read_json(kFixtures + "qwen3_yarn/expected_text.json")) {
    const auto ids = expected["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(expected["text"].get<std::string>()), ids) << expected["text"];
    EXPECT_EQ(tokenizer.decode(ids), expected["decoded"].get<std::string>()) << expected["text"];
  }
}

}  // namespace
}  // namespace loratory
