#include "scheduler_sim/serving/request_file.hpp"

#include <gmock/gmock.h>

#include <ostream>
#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RequestFile parse(const std::string& text) { return parse_request_file(text, "r.jsonl"); }

const ServingRequest& request(const RequestFile& file, size_t index) {
  return std::get<ServingRequest>(file.lines.at(index).what);
}
const AdapterOperation& operation(const RequestFile& file, size_t index) {
  return std::get<AdapterOperation>(file.lines.at(index).what);
}

// What the reader says of `text`; empty if it takes it.
std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(RequestFile, ReadsEveryKeyOfARequest) {
  const RequestFile file =
      parse(R"({"request_id": "a", "model": "sql", "prompt": [5, 0, 7], "max_tokens": 3, )"
            R"("temperature": 0.5, "top_k": 4, "top_p": 0.25, "seed": 11, "logprobs": 2, )"
            R"("stop_token_ids": [9], "ignore_eos": true, "priority": -2, "arrival_s": 1.5})");
  ASSERT_EQ(file.lines.size(), 1u);
  EXPECT_EQ(file.lines[0].number, 1u);
  EXPECT_EQ(file.lines[0].arrival_ns, 1'500'000'000);
  const ServingRequest& r = request(file, 0);
  EXPECT_EQ(r.id, "a");
  EXPECT_EQ(r.adapter, "sql");
  EXPECT_FALSE(r.text.has_value());
  EXPECT_THAT(r.prompt, ElementsAre(5, 0, 7));
  EXPECT_EQ(r.max_tokens, 3u);
  EXPECT_EQ(r.params.sampling.temperature, 0.5);
  EXPECT_EQ(r.params.sampling.top_k, 4);
  EXPECT_EQ(r.params.sampling.top_p, 0.25);
  EXPECT_EQ(r.params.sampling.seed, 11u);
  EXPECT_EQ(r.params.num_logprobs, 2);
  EXPECT_THAT(r.stop_token_ids, ElementsAre(9));
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.priority, -2);
}

TEST(RequestFile, DefaultsAreThoseOfTheApi) {
  const RequestFile file = parse("{\"prompt\": \"hello\"}\n{\"prompt\": [1], \"seed\": null}\n");
  const ServingRequest& r = request(file, 0);
  EXPECT_EQ(r.id, "line-1");
  EXPECT_EQ(request(file, 1).id, "line-2");
  EXPECT_EQ(r.adapter, "");
  EXPECT_EQ(r.text, "hello");
  EXPECT_EQ(r.max_tokens, 16u);
  EXPECT_EQ(r.params.sampling.temperature, 1);
  EXPECT_EQ(r.params.sampling.top_k, 0);
  EXPECT_EQ(r.params.sampling.top_p, 1);
  EXPECT_EQ(r.params.num_logprobs, -1);
  EXPECT_FALSE(r.ignore_eos);
}

TEST(RequestFile, ReadsOperations) {
  const RequestFile file = parse(
      "{\"operation\": \"load_lora_adapter\", \"lora_name\": \"a\", \"lora_path\": \"dir\", "
      "\"load_inplace\": true}\n"
      "{\"prompt\": [1], \"arrival_s\": 2}\n"
      "{\"operation\": \"unload_lora_adapter\", \"lora_name\": \"a\", \"abort_requests\": true}\n"
      "{\"operation\": \"pin_lora\", \"lora_name\": \"b\"}\n"
      "{\"operation\": \"unpin_lora\", \"lora_name\": \"b\"}\n");
  EXPECT_EQ(operation(file, 0).kind, OperationKind::load);
  EXPECT_EQ(operation(file, 0).name, "a");
  EXPECT_EQ(operation(file, 0).path, "dir");
  EXPECT_TRUE(operation(file, 0).load_inplace);
  EXPECT_EQ(operation(file, 2).kind, OperationKind::unload);
  EXPECT_TRUE(operation(file, 2).abort_requests);
  EXPECT_EQ(operation(file, 3).kind, OperationKind::pin);
  EXPECT_EQ(operation(file, 4).kind, OperationKind::unpin);
  EXPECT_EQ(file.lines[4].arrival_ns, 2'000'000'000) << "a line comes with the one above it";
}

struct BadFile {
  const char* text;
  const char* message;

  friend void PrintTo(const BadFile& file, std::ostream* out) { *out << file.text; }
};

class BadRequestFile : public testing::TestWithParam<BadFile> {};

TEST_P(BadRequestFile, IsOneLineWithItsPlace) {
  const std::string error = error_of(GetParam().text);
  EXPECT_THAT(error, HasSubstr(GetParam().message));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

const BadFile kBadFiles[] = {
    {"", "r.jsonl: has no request"},
    {R"({"operation": "pin_lora", "lora_name": "a"})", "r.jsonl: has no request"},
    {"{\"prompt\": [1]}\n\n", "r.jsonl:2:1: is not JSON"},
    {R"({"prompt": [1],})", "r.jsonl:1:16: is not JSON; one JSON object per line"},
    {R"({"prompt": "a\ud800"})",
     "r.jsonl:1:14: invalid JSON (half of a surrogate pair: '\\ud800'); "
     "write both halves, or leave it out"},
    {R"([1])", "r.jsonl:1:1: is no JSON object"},
    {R"({"prompt": {"a": 1}})", "r.jsonl:1: nests too deep"},
    {R"({"prompt": [[1]]})", "r.jsonl:1: nests too deep; values are plain, or a list"},
    {R"({"prompt": [1], "prompt": [2]})", "r.jsonl:1: the key 'prompt' stands twice; remove one"},
    {R"({"prompt": [1], "seed": 1e999})", "r.jsonl:1: a number is outside the range of a double"},
    {R"({"promt": [1]})", "r.jsonl:1: 'promt': is no key of a request; did you mean 'prompt'?"},
    {R"({"max_tokens": 1})", "r.jsonl:1: prompt: is missing; give a text or a list of token ids"},
    {R"({"prompt": []})", "r.jsonl:1: prompt: is empty"},
    {R"({"prompt": ""})", "r.jsonl:1: prompt: is empty"},
    {R"({"prompt": 7})", "r.jsonl:1: prompt: must be a text or a list of token ids"},
    {R"({"prompt": [1, -1]})", "r.jsonl:1: prompt[1]: must be an integer from 0 to 2147483647"},
    {R"({"prompt": [1.5]})", "r.jsonl:1: prompt[0]: must be an integer"},
    {R"({"prompt": [1, 2, 3, "4"]})", "r.jsonl:1: prompt[3]: must be an integer"},
    {R"({"prompt": [4294967296]})", "r.jsonl:1: prompt[0]: must be an integer"},
    {R"({"prompt": [1], "max_tokens": 0})", "r.jsonl:1: max_tokens: must be an integer from 1"},
    {R"({"prompt": [1], "temperature": -1})", "r.jsonl:1: temperature: must be a number from 0"},
    {R"({"prompt": [1], "top_p": 0})", "r.jsonl:1: top_p: must be above 0"},
    {R"({"prompt": [1], "top_p": 1.5})", "r.jsonl:1: top_p: must be a number from 0 to 1"},
    {R"({"prompt": [1], "top_k": -2})", "r.jsonl:1: top_k: must be an integer from -1"},
    {R"({"prompt": [1], "seed": 9007199254740994})", "r.jsonl:1: seed: must be an integer from 0"},
    {R"({"prompt": [1], "logprobs": 21})", "r.jsonl:1: logprobs: must be an integer from 0 to 20"},
    {R"({"prompt": [1], "stop_token_ids": 3})", "r.jsonl:1: stop_token_ids: must be a list"},
    {R"({"prompt": [1], "stop_token_ids": [3, null]})", "r.jsonl:1: stop_token_ids[1]: must be an"},
    {R"({"prompt": [1], "ignore_eos": 1})", "r.jsonl:1: ignore_eos: must be true or false"},
    {R"({"prompt": [1], "model": ""})", "r.jsonl:1: model: is empty"},
    {"{\"prompt\": [1], \"arrival_s\": 2}\n{\"prompt\": [1], \"arrival_s\": 1}",
     "r.jsonl:2: arrival_s: 1 s is before the line above; sort the lines by arrival_s"},
    {"{\"prompt\": [1], \"request_id\": \"a\"}\n{\"prompt\": [1], \"request_id\": \"a\"}",
     "r.jsonl:2: request_id: 'a' is that of a request above; give each its own"},
    {R"({"operation": "load_lora", "lora_name": "a"})", "r.jsonl:1: operation: 'load_lora' is unk"},
    {R"({"operation": "pin_lora"})", "r.jsonl:1: lora_name: is missing"},
    {R"({"operation": "load_lora_adapter", "lora_name": "a"})", "r.jsonl:1: lora_path: is missing"},
    {R"({"operation": "pin_lora", "lora_name": "a", "lora_path": "b"})",
     "r.jsonl:1: 'lora_path': is no key of pin_lora"},
};

INSTANTIATE_TEST_SUITE_P(All, BadRequestFile, testing::ValuesIn(kBadFiles));

// --- names ------------------------------------------------------------------------------------

std::string name_error_of(const std::string& text) {
  RequestFile file = parse(text);
  try {
    resolve_names(file, "base", {"sql"});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(RequestFile, NamesAreFollowedFromLineToLine) {
  const std::string load =
      R"({"operation": "load_lora_adapter", "lora_name": "new", "lora_path": "d"})";
  const std::string of_new = R"({"prompt": [1], "model": "new"})";
  const std::string unload = R"({"operation": "unload_lora_adapter", "lora_name": "new"})";
  EXPECT_EQ(name_error_of(R"({"prompt": [1], "model": "sql"})"), "");
  EXPECT_EQ(name_error_of(load + "\n" + of_new + "\n" + unload), "");
  EXPECT_EQ(
      name_error_of(of_new + "\n" + load),
      "r.jsonl:1: model: 'new' is no adapter at this line; give it with --adapter, or load it "
      "above");
  EXPECT_THAT(name_error_of(load + "\n" + unload + "\n" + of_new), HasSubstr("r.jsonl:3: model"));
  EXPECT_THAT(name_error_of(load + "\n" + load + "\n" + of_new),
              HasSubstr("r.jsonl:2: lora_name: 'new' is an adapter already"));
  EXPECT_THAT(name_error_of(of_new + "\n" + unload), HasSubstr("r.jsonl:1: model"));
  EXPECT_THAT(name_error_of(R"({"prompt": [1], "model": "sq"})"), HasSubstr("did you mean 'sql'?"));
}

TEST(RequestFile, TheBaseModelHasAName) {
  RequestFile file = parse("{\"prompt\": [1], \"model\": \"base\"}");
  resolve_names(file, "base", {});
  EXPECT_EQ(request(file, 0).adapter, "");
}

TEST(RequestFile, TokensAreInTheVocabulary) {
  const RequestFile file = parse("{\"prompt\": [1, 96]}");
  EXPECT_NO_THROW(check_vocabulary(file, 97));
  try {
    check_vocabulary(file, 96);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("r.jsonl:1: prompt[1]: token 96 is outside the vocabulary"));
  }
  EXPECT_THROW(check_vocabulary(parse(R"({"prompt": [1], "stop_token_ids": [9]})"), 9), InputError);
}

}  // namespace
}  // namespace loratory::sim
