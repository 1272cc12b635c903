// Logs of other software, line for line as it writes them; sources are named in each reader.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "scheduler_sim/trace/anonymise.hpp"
#include "scheduler_sim/trace/logs/python_text.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/writer.hpp"
#include "tests/scheduler_sim/trace/error_of.hpp"

namespace loratory::sim {
namespace {

ReadOptions from_model(const std::string& base) {
  ReadOptions options;
  options.adapter_from_model = true;
  options.base_models = {base};
  return options;
}

ReadOptions skipping() {
  ReadOptions options;
  options.skip_bad_rows = true;
  return options;
}

std::string native(const Trace& trace) {
  std::ostringstream out;
  write_native(out, trace);
  return out.str();
}

// --- OpenTelemetry

std::string attribute(const std::string& key, const std::string& value) {
  return R"({"key":")" + key + R"(","value":{)" + value + "}}";
}

std::string span(const std::string& id, const std::string& start, const std::string& attributes) {
  return R"({"traceId":"5b8efff798038103d269b633813fc60c","spanId":")" + id +
         R"(","name":"chat sql","kind":3,"startTimeUnixNano":)" + start +
         R"(,"endTimeUnixNano":"1740830405000000000","attributes":[)" + attributes + "]}";
}

std::string batch(const std::string& spans) {
  return R"({"resourceSpans":[{"resource":{},"scopeSpans":[{"scope":{},"spans":[)" + spans +
         "]}]}]}";
}

const std::string kChat = attribute("gen_ai.operation.name", R"("stringValue":"chat")") + "," +
                          attribute("gen_ai.request.model", R"("stringValue":"sql")") + ",";
const std::string kUsage = attribute("gen_ai.usage.input_tokens", R"("intValue":"120")") + "," +
                           attribute("gen_ai.usage.output_tokens", R"("intValue":7)");

TEST(OtelLog, ReadsJsonLinesInOrderOfStart) {
  const std::string vllm_span =
      span("b2", "\"1740830400250000001\"",
           attribute("gen_ai.usage.prompt_tokens", R"("intValue":"30")") + "," +
               attribute("gen_ai.usage.completion_tokens", R"("doubleValue":4)") + "," +
               attribute("gen_ai.request.id", R"("stringValue":"cmpl-1")") + "," +
               attribute("gen_ai.response.model", R"("stringValue":"base")"));
  const std::string log = batch(span("a1", "1740830401000000000", kChat + kUsage)) + "\n" +
                          batch(vllm_span + "," + span("c3", "\"1\"", "")) + "\n";  // c3: no LLM
  const Trace trace = read_trace_from(log, "t", from_model("base"));
  EXPECT_EQ(trace.format, "otel");
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":30,\"output_tokens\":4,\"id\":\"cmpl-1\"}\n"
            "{\"arrival_ms\":749.999999,\"prompt_tokens\":120,\"output_tokens\":7,\"id\":\"a1\","
            "\"adapter\":\"sql\"}\n");
}

TEST(OtelLog, ReadsOneDocumentAndOldNames) {
  std::string log =
      "{\n \"resourceSpans\": [{\n  \"instrumentationLibrarySpans\": [{\"spans\": [\n" +
      span("a1", "\"5\"", kChat + kUsage) + "\n]}]}]\n}\n";
  EXPECT_EQ(read_trace_from(log, "t").requests.size(), 1u);
  log.insert(log.find("\"traceId\""), "oops");
  EXPECT_EQ(error_of(log).substr(0, 25), "t:4:2: invalid JSON; give");
  const size_t name =
      log.insert(log.find("oops"), "\n").erase(log.find("oops"), 4).find("chat sql");
  log.replace(name, 4, "\\udc00");
  EXPECT_EQ(error_of(log),
            "t:5:68: invalid JSON (half of a surrogate pair: '\\udc00'); write both halves, or "
            "leave it out");
}

TEST(OtelLog, NamesTheSpanThatCannotBeRead) {
  const std::string good = batch(span("a1", "\"1\"", kChat + kUsage)) + "\n";
  EXPECT_EQ(error_of(good + batch(span("b2", "\"-4\"", kChat + kUsage)) + "\n").substr(0, 72),
            "t:2:1: span b2: startTimeUnixNano is no whole number in 0..9223372036854");
  EXPECT_EQ(
      error_of(good + batch(span("b2", "\"4\"", kChat + R"({"key":"x"})")) + "\n"),
      "t:2:1: the prompt length of a request is missing; record gen_ai.usage.* on the spans, or "
      "give --default-prompt and --default-output");
  EXPECT_EQ(error_of(good + "{\"resourceSpans\":[\n"),
            "t:2:19: invalid JSON; give JSON lines, or one document");
  EXPECT_EQ(
      read_trace_from(good + "{\"resourceSpans\":[\n" + good, "t", skipping()).num_rows_skipped,
      1u);
}

// --- LiteLLM

const std::string kSpendHeader =
    "request_id,call_type,api_key,spend,total_tokens,prompt_tokens,completion_tokens,startTime,"
    "endTime,completionStartTime,model,cache_hit,session_id,status,messages\n";

std::string spend(const std::string& id, const std::string& start, const std::string& model,
                  const std::string& rest = "None,s1,success,{}") {
  return id + ",acompletion,88dc,0.1,130,120,10," + start +
         ",2025-03-01 12:00:09.5,2025-03-01 12:00:01," + model + "," + rest + "\n";
}

TEST(LitellmLog, ReadsCsvWithQuotesAndLineBreaks) {
  const std::string log =
      kSpendHeader +
      spend("chat-2", "2025-03-01 12:00:02.500", "sql",
            "None,s1,success,\"{\"\"a\"\":\n\"\"b,c\"\"}\"") +
      spend("\"chat,1\"", "2025-03-01 12:00:00+00", "base") +
      spend("chat-3", "2025-03-01 12:00:03", "sql", "True,s1,success,{}");  // out of a cache
  const Trace trace = read_trace_from(log, "t", from_model("base"));
  EXPECT_EQ(trace.format, "litellm");
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":120,\"output_tokens\":10,\"id\":\"chat,1\","
            "\"session\":1}\n"
            "{\"arrival_ms\":2500,\"prompt_tokens\":120,\"output_tokens\":10,\"id\":\"chat-2\","
            "\"adapter\":\"sql\",\"session\":1}\n");
  ASSERT_EQ(trace.notes.size(), 1u);
  EXPECT_EQ(trace.notes[0], "rows that LiteLLM's own cache answered (cache_hit) are left out");
}

TEST(LitellmLog, ReadsJsonArraysAndLines) {
  const std::string row = R"({"request_id":"r1","call_type":"acompletion","model":"sql",)"
                          R"("startTime":"2025-03-01T12:00:00.123000Z","prompt_tokens":12,)"
                          R"("completion_tokens":3,"metadata":{"x":[1]},"end_user":null})";
  for (const std::string& log :
       {"[" + row + "]", "[\n " + row + ",\n " + row + "\n]\n", row + "\n"}) {
    const Trace trace = read_trace_from(log, "t");
    EXPECT_EQ(trace.requests.back().prompt_tokens, 12u) << log;
    EXPECT_EQ(trace.ids.back(), "r1");
    EXPECT_TRUE(trace.adapters.empty());
  }
  std::string torn = "[" + row + "," + row + "]";
  torn.replace(torn.rfind("12"), 2, "-1");
  EXPECT_EQ(error_of(torn),
            "t:1:1: [1]: prompt_tokens is no whole number in 0..2147483647: '-1'; "
            "write decimal digits");
}

// pandas writes times as numbers, and counts with a gap in their column as fractions.
TEST(LitellmLog, SaysWhatIsInAJsonValueOfAnotherType) {
  const auto error_with = [](const std::string& start, const std::string& prompt) {
    return error_of(R"({"request_id":"r1","model":"sql","startTime":)" + start +
                    R"(,"prompt_tokens":)" + prompt + R"(,"completion_tokens":3})" + "\n");
  };
  const std::string remedy =
      "; write YYYY-MM-DD HH:MM:SS.fff, with a zone or without (pandas: date_format='iso')";
  for (const char* number : {"1740830400123", "1740830400.5", "0", "-1.5"}) {
    EXPECT_EQ(error_with(number, "12"),
              std::string("t:1:1: startTime is a number, not a time: '") + number + "'" + remedy);
  }
  EXPECT_EQ(error_with("\"1740830400\"", "12"),
            "t:1:1: startTime is a number, not a time: '1740830400'" + remedy);
  EXPECT_EQ(
      error_with("{\"$date\":1}", "12"),
      "t:1:1: startTime is not a time: '{\"$date\":1}'; write YYYY-MM-DD HH:MM:SS.fff, with a "
      "zone or without");
  EXPECT_EQ(error_with("true", "12").substr(0, 38), "t:1:1: startTime is not a time: 'true'");
  const std::string time = "\"2025-03-01T12:00:00\"";
  EXPECT_EQ(error_with(time, "12.5"),
            "t:1:1: prompt_tokens is no whole number in 0..2147483647: '12.5'; write decimal "
            "digits");
  EXPECT_EQ(
      error_with("\"2025-02-29T12:00:00\"", "12"),
      "t:1:1: startTime is out of range: '2025-02-29T12:00:00'; days of 2025-02 go from 01 to "
      "28");
}

TEST(LitellmLog, KnowsACacheHitThatIsABoolean) {
  const std::string row = R"({"request_id":"r1","model":"sql","startTime":"2025-03-01T12:00:00",)"
                          R"("prompt_tokens":12,"completion_tokens":3,"cache_hit":)";
  const Trace trace = read_trace_from(row + "true}\n" + row + "false}\n", "t");
  EXPECT_EQ(trace.requests.size(), 1u);
  EXPECT_EQ(trace.notes.size(), 1u);
}

TEST(LitellmLog, NamesBadRows) {
  const std::string good = kSpendHeader + spend("a", "2025-03-01 12:00:00", "m");
  EXPECT_EQ(
      error_of(good + spend("b", "yesterday", "m")),
      "t:3:35: startTime is not a time: 'yesterday'; write YYYY-MM-DD HH:MM:SS.fff, with a zone "
      "or without");
  EXPECT_EQ(
      error_of(good + spend("b", "1740830400", "m")),
      "t:3:35: startTime is a number, not a time: '1740830400'; write YYYY-MM-DD HH:MM:SS.fff, "
      "with a zone or without (pandas: date_format='iso')");
  EXPECT_EQ(error_of(good + spend("b", "2025-03-01 25:00:00", "m")),
            "t:3:35: startTime is out of range: '2025-03-01 25:00:00'; hours go from 00 to 23");
  EXPECT_EQ(error_of(good + spend("b", "2025-03-01 12:00:00", "m", "None,s1,failure,{}")),
            "t:3:107: a failed request (status failure); leave failures out with --skip-bad-rows");
  EXPECT_EQ(error_of(good + "x,\"y\n"), "t:3:5: the last row is cut off; export it again");
  EXPECT_EQ(error_of(good + "x,y\n"),
            "t:3:4: 2 cells, but the header has 15; one cell for every column");
  EXPECT_EQ(error_of("request_id,startTime,completion_tokens,model\n1,2,3,4\n"),
            "t:1:45: column 'prompt_tokens' of a litellm trace is missing; export whole rows of "
            "LiteLLM_SpendLogs");
  EXPECT_EQ(error_of(good.substr(0, good.size() - 1)).substr(0, 50),
            "t:2:117: the last row has no newline and may be cu");
}

// --- vLLM

const std::string kParams =
    "params: SamplingParams(n=1, stop=['}, prompt_token_ids: [9]'], temperature=0.7, "
    "max_tokens=16), ";

TEST(VllmLog, ReadsVersionsWithThePromptInTheLine) {
  const std::string log =
      "INFO 12-31 23:59:58 api_server.py:530] vLLM API server version 0.6.3\n"
      "INFO 12-31 23:59:59 logger.py:39] Received request cmpl-1-0: prompt: \"it's (\", " +
      kParams +
      "prompt_token_ids: [1, 2, 3], lora_request: None, prompt_adapter_request: None.\n"
      "INFO 01-01 00:00:01 [logger.py:42] Received request chatcmpl-2: prompt: '\\'a\\', "
      "lora_request: "
      "None', " +
      kParams +
      "prompt_token_ids: [5, 6], prompt_embeds shape: None, lora_request: "
      "LoRARequest(lora_name='sql-lora', lora_int_id=1, lora_path='/x', lora_local_path=None, "
      "long_lora_max_len=None, base_model_name=None), prompt_adapter_request: None.\n"
      "INFO:     127.0.0.1:51234 - \"POST /v1/completions HTTP/1.1\" 200 OK\n";
  EXPECT_EQ(
      error_of(log),
      "t:2:1: the output length of a request is missing; log them (VLLM_LOGGING_LEVEL=DEBUG for "
      "prompts, --enable-log-outputs for outputs), or give --default-prompt and "
      "--default-output");
  ReadOptions options;
  options.default_output_tokens = 50;
  const Trace trace = read_trace_from(log, "t", options);
  EXPECT_EQ(trace.format, "vllm-log");
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":3,\"output_tokens\":50,\"id\":\"cmpl-1-0\"}\n"
            "{\"arrival_ms\":2000,\"prompt_tokens\":2,\"output_tokens\":50,\"id\":\"chatcmpl-2\","
            "\"adapter\":\"sql-lora\"}\n");
  EXPECT_EQ(trace.notes,
            (std::vector<std::string>{"2 of 2 output lengths are --default-output 50"}));
  EXPECT_EQ(
      error_of(log, from_model("m")),
      "--adapter-from: requests of a vllm-log trace name no model; leave it out: the log names "
      "the adapters itself");
}

TEST(VllmLog, ReadsVersionsWithDetailsAndOutputs) {
  const std::string at = "(APIServer pid=7) INFO 02-28 10:00:0";
  const std::string log =
      "(APIServer pid=7) DEBUG 02-28 10:00:00 [logger.py:49] Request r1 details: prompt: 'x', "
      "prompt_token_ids: [1, 2, 3, 4], prompt_embeds shape: None.\n" +
      at + "0 [logger.py:59] Received request r1: " + kParams + "lora_request: None.\n" + at +
      "1 [logger.py:59] Received request r2: " + kParams + "lora_request: None.\n" + at +
      "2 [logger.py:87] Generated response r1 (streaming delta): output: 'a', output_token_ids: "
      "[4, 5], "
      "finish_reason: None\n" +
      at +
      "2 [logger.py:87] Generated response r1 (streaming delta): output: 'b', output_token_ids: "
      "[6], "
      "finish_reason: stop\n" +
      at +
      "3 [logger.py:87] Generated response r1 (streaming complete): output: 'ab', "
      "output_token_ids: "
      "None, finish_reason: streaming_complete\n" +
      at +
      "4 [logger.py:87] Generated response r2: output: 'c', output_token_ids: (7,), finish_reason: "
      "length\n"
      "2025-03-01T00:00:00Z INFO 03-01 00:00:00 [x.py:1] nothing\n";
  ReadOptions options;
  options.default_prompt_tokens = 9;
  EXPECT_EQ(native(read_trace_from(log, "t", options)),
            "{\"arrival_ms\":0,\"prompt_tokens\":4,\"output_tokens\":3,\"id\":\"r1\"}\n"
            "{\"arrival_ms\":1000,\"prompt_tokens\":9,\"output_tokens\":1,\"id\":\"r2\"}\n");
}

TEST(VllmLog, TakesTheFinerTimeOfKubectlAndKnowsLeapDays) {
  const std::string tail = " [l.py:1] Received request r: " + kParams + "lora_request: None.\n";
  ReadOptions options;
  options.default_prompt_tokens = options.default_output_tokens = 1;
  const auto second_ms = [&](const std::string& a, const std::string& b) {
    const Trace trace = read_trace_from(a + tail + b + tail, "t", options);
    return double(trace.requests[1].arrival_ns) / 1e6;
  };
  EXPECT_EQ(second_ms("2025-06-15T12:34:56.5Z INFO 06-15 12:34:56",
                      "2025-06-15T12:34:56.75Z INFO 06-15 12:34:56"),
            250);
  EXPECT_EQ(second_ms("2025-06-15 12:34:56,500 INFO", "2025-06-15 12:34:57,750 INFO"), 1250);
  EXPECT_EQ(second_ms("INFO 02-28 00:00:00", "INFO 03-01 00:00:00"), 86'400e3);
  EXPECT_EQ(second_ms("INFO 02-29 00:00:00", "INFO 03-01 00:00:01"), 86'401e3);
}

TEST(VllmLog, NamesTornLines) {
  EXPECT_EQ(
      error_of("INFO 06-15 12:34:56 [l.py:1] Received request r: params: SamplingParams(n=1, "
               "lora_request: None.\n"),
      "t:1:50: a request that is cut off or has quotes and brackets that do not match; check the "
      "log");
  EXPECT_EQ(error_of("Received request r: " + kParams + "lora_request: None.\n"),
            "t:1:1: a line without its time; give the log as vLLM writes it");
}

// --- SGLang

std::string sglang_obj(const std::string& rid, const std::string& lora) {
  return "GenerateReqInput(text='Finish: obj=x, out={', input_ids=[1, 2] ... [8, 9], "
         "sampling_params={'max_new_tokens': 16, 'stop': None}, rid=" +
         rid + ", stream=True, lora_path=" + lora + ", session_params=None)";
}

const std::string kSglangOut =
    "out={'text': \"it's 'prompt_tokens': 1\", 'output_ids': [1], 'meta_info': {'id': 'r', "
    "'finish_reason': {'type': 'stop'}, 'prompt_tokens': 64, 'completion_tokens': 12, "
    "'cached_tokens': "
    "1, 'e2e_latency': 1.5}}\n";

TEST(SglangLog, ReadsText) {
  const std::string log =
      "[2025-03-03 17:53:03] Receive: obj=EmbeddingReqInput(rid='e', text='x')\n"
      "[2025-03-03 17:53:04] Receive: obj=" +
      sglang_obj("'a'", "'/adapters/sql'") +
      "\n"
      "[2025-03-03 17:53:04 TP0] Prefill batch. #new-seq: 1, #new-token: 63\n"
      "[2025-03-03 17:53:06] Finish: obj=" +
      sglang_obj("'b'", "None") + ", " + kSglangOut +
      "[2025-03-03 17:53:07] Finish: obj=" + sglang_obj("'a'", "'/adapters/sql'") + ", " +
      kSglangOut;
  const Trace trace = read_trace_from(log, "t");
  EXPECT_EQ(trace.format, "sglang-log");
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":64,\"output_tokens\":12,\"id\":\"a\",\"adapter\":"
            "\"/adapters/sql\"}\n"
            "{\"arrival_ms\":500,\"prompt_tokens\":64,\"output_tokens\":12,\"id\":\"b\"}\n");
  EXPECT_TRUE(trace.notes.empty());
}

TEST(SglangLog, ReadsJsonAndBatches) {
  const auto event = [](const std::string& time, const std::string& kind, const std::string& rid,
                        const std::string& rest) {
    return R"({"timestamp": "2025-12-24T10:00:0)" + time + R"(", "event": "request.)" + kind +
           R"(", "rid": )" + rid + R"(, "obj": {"rid": "x"}, "out": )" + rest + "}\n";
  };
  const std::string out = R"({"meta_info": {"prompt_tokens": 5, "completion_tokens": 6}})";
  const std::string log = event("0.25", "received", R"(["a", "b"])", "null") + "INFO: text\n" +
                          event("1", "finished", "\"b\"", out) +
                          event("2", "finished", "\"a\"", out);
  const Trace trace = read_trace_from(log, "t");
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":5,\"output_tokens\":6,\"id\":\"a\"}\n"
            "{\"arrival_ms\":0,\"prompt_tokens\":5,\"output_tokens\":6,\"id\":\"b\"}\n");
  ASSERT_EQ(trace.notes.size(), 1u);
  EXPECT_EQ(trace.notes[0], "no adapters: SGLang logs lora_path from --log-requests-level 2 on");
  EXPECT_EQ(error_of(event("0", "received", "\"a\"", "null")),
            "t:1:1: the prompt length of a request is missing; they come with the Finish line of a "
            "request; give --default-prompt and --default-output for those without one");
}

TEST(SglangLog, NamesTornLines) {
  EXPECT_EQ(error_of("[2025-03-03 17:53:04] Receive: obj=GenerateReqInput(rid=None)\n"),
            "t:1:1: a request without its rid; give the log as SGLang writes it");
  EXPECT_EQ(
      error_of("[2025-03-03 17:53:04] Receive: obj=GenerateReqInput(rid='a\n"),
      "t:1:1: a request that is cut off or has quotes and brackets that do not match; check the "
      "log");
}

// --- vllm bench serve

std::string bench(const std::string& rest) {
  return R"({"date": "20250601-120000", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", )"
         R"("num_prompts": 2, "input_lens": [10, 20], "output_lens": [3, 4], )" +
         rest + "}\n";
}

TEST(VllmBench, ReadsStartTimes) {
  const Trace trace = read_trace_from(
      bench(R"("request_rate": 2.0, "errors": ["", ""], "start_times": [71.75, 71.5])"), "t");
  EXPECT_EQ(trace.format, "vllm-bench");
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":20,\"output_tokens\":4}\n"
            "{\"arrival_ms\":250,\"prompt_tokens\":10,\"output_tokens\":3}\n");
}

TEST(VllmBench, SpacesByTheRateWithoutThem) {
  const Trace trace = read_trace_from(bench(R"("request_rate": 4)"), "t");
  EXPECT_EQ(trace.requests[1].arrival_ns, 250'000'000);
  EXPECT_EQ(trace.notes[0], "no start_times: arrivals are spaced evenly at request_rate");
  EXPECT_EQ(read_trace_from(bench(R"("request_rate": "inf")"), "t").requests[1].arrival_ns, 0);
}

TEST(VllmBench, NamesWhatIsMissing) {
  EXPECT_EQ(
      error_of(bench(R"("x": 1)")),
      "t:1:1: start_times and request_rate are both missing; save the result with a newer vLLM");
  EXPECT_EQ(error_of(bench(R"("request_rate": 0)")),
            "t:1:1: request_rate is neither a number above 0 nor inf; check the result");
  EXPECT_EQ(error_of(R"({"tokenizer_id": "m", "num_prompts": 2})"),
            "t:1:1: input_lens is missing; save it with --save-result --save-detailed");
  EXPECT_EQ(error_of(bench(R"("request_rate": "inf", "errors": ["", "timeout"])")),
            "t:1:1: request 1: a failed request; leave failures out with --skip-bad-rows");
  EXPECT_EQ(error_of(bench(R"("start_times": [1])")),
            "t:1:1: 2 input_lens, 2 output_lens and 1 start_times; save the result again");
  EXPECT_EQ(error_of(bench(R"("start_times": [1, -2])")),
            "t:1:1: start_times holds a time out of range; save the result again");
}

// --- what they share

// A name may be any text.
TEST(Detection, ARowOfATraceIsNoLogWhateverItsNames) {
  for (const std::string name :
       {"Receive: obj=", "Received request cmpl-1: prompt: 'a'", "resourceSpans"}) {
    const std::string row =
        R"({"arrival_ms":0,"prompt_tokens":3,"output_tokens":2,"id":")" + name + "\"}\n";
    const Trace trace = read_trace_from(row, "t", {});
    EXPECT_EQ(trace.format, "native") << name;
    EXPECT_EQ(trace.requests.size(), 1u) << name;
  }
}

TEST(AdapterFrom, NeedsModelNamesAndTheBase) {
  ReadOptions options;
  options.adapter_from_model = true;
  EXPECT_EQ(error_of("", options),
            "--adapter-from: the name of the base model is missing; add --base-model NAME");
  options.adapter_from_model = false;
  options.base_models = {"m"};
  EXPECT_EQ(error_of("", options),
            "--base-model: adapters do not come from model names; add --adapter-from model");
  EXPECT_EQ(error_of("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n", from_model("m")),
            "--adapter-from: requests of a vidur trace name no model; leave it out");
  const Trace burst = read_trace_from(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,Conversation log\n",
      "t", from_model("ChatGPT"));
  EXPECT_EQ(burst.requests[0].adapter, kBaseModel);
  EXPECT_EQ(burst.adapters.at(burst.requests[1].adapter).name, "GPT-4");
}

TEST(PythonText, KeepsToStringsAndBrackets) {
  EXPECT_EQ(python_field("a=1, b=[2, (3, ']')], c='x, d=4', d=5", "d"), "5");
  EXPECT_EQ(python_field("{'a': 1", "a"), std::nullopt);
  EXPECT_EQ(python_inside("Name(a=1)"), "a=1");
  EXPECT_EQ(python_inside("'(a)'"), std::nullopt);
  EXPECT_EQ(python_string("'it\\'s \\\\'"), "it's \\");
  EXPECT_EQ(python_string("None"), std::nullopt);
  EXPECT_EQ(python_string("'a' ... 'b'"), std::nullopt);
  EXPECT_EQ(python_length("[]"), 0u);
  EXPECT_EQ(python_length("(7,)"), 1u);
  EXPECT_EQ(python_length("[1, [2, 3], 'a,b']"), 3u);
  EXPECT_EQ(python_length("None"), std::nullopt);
}

TEST(Anonymise, KeepsLengthsGapsAndWhatIsShared) {
  Trace trace = read_trace_from(
      "{\"arrival_ms\":5,\"prompt_tokens\":33,\"output_tokens\":4,\"id\":\"x\",\"adapter\":\"acme-"
      "sql\","
      "\"rank\":16,\"priority\":-2,\"session\":90,\"cancel_ms\":9,\"block_tokens\":16,\"block_"
      "ids\":[70,71,"
      "72]}\n"
      "{\"arrival_ms\":8,\"prompt_tokens\":32,\"output_tokens\":4,\"id\":\"x\",\"session\":9,"
      "\"block_tokens\":16,\"block_ids\":[70,99]}\n",
      "n");
  anonymise(trace);
  EXPECT_EQ(
      native(trace),
      "{\"arrival_ms\":0,\"prompt_tokens\":33,\"output_tokens\":4,\"id\":\"request-1\",\"adapter\":"
      "\"adapter-1\",\"rank\":16,\"priority\":-2,\"session\":1,\"cancel_ms\":4,\"block_tokens\":16,"
      "\"block_ids\":[0,1,2]}\n"
      "{\"arrival_ms\":3,\"prompt_tokens\":32,\"output_tokens\":4,\"id\":\"request-1\",\"session\":"
      "2,"
      "\"block_tokens\":16,\"block_ids\":[0,3]}\n");
}

TEST(Anonymise, LeavesNoTokenIds) {
  std::string same = "7";
  for (int i = 0; i < 15; ++i) same += ",7";
  Trace trace =
      read_trace_from("{\"arrival_ms\":0,\"output_tokens\":4,\"token_ids\":[" + same + ",8]}\n" +
                          "{\"arrival_ms\":1,\"prompt_tokens\":5,\"output_tokens\":4}\n" +
                          "{\"arrival_ms\":2,\"output_tokens\":4,\"token_ids\":[" + same + ",9]}\n",
                      "n");
  anonymise(trace);
  EXPECT_EQ(native(trace),
            "{\"arrival_ms\":0,\"prompt_tokens\":17,\"output_tokens\":4,\"block_tokens\":16,"
            "\"block_ids\":"
            "[0,1]}\n"
            "{\"arrival_ms\":1,\"prompt_tokens\":5,\"output_tokens\":4}\n"
            "{\"arrival_ms\":2,\"prompt_tokens\":17,\"output_tokens\":4,\"block_tokens\":16,"
            "\"block_ids\":"
            "[0,2]}\n");
}

}  // namespace
}  // namespace loratory::sim
