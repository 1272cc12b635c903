// One small literal per format, by hand: what each column means and how each format is told apart.
#include "scheduler_sim/trace/reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;

constexpr int64_t kMs = 1'000'000, kSecond = 1'000'000'000;

std::vector<int64_t> arrivals(const Trace& trace) {
  std::vector<int64_t> times;
  for (const TraceRequest& request : trace.requests) times.push_back(request.arrival_ns);
  return times;
}

std::vector<uint32_t> prompts(const Trace& trace) {
  std::vector<uint32_t> tokens;
  for (const TraceRequest& request : trace.requests) tokens.push_back(request.prompt_tokens);
  return tokens;
}

std::vector<uint32_t> outputs(const Trace& trace) {
  std::vector<uint32_t> tokens;
  for (const TraceRequest& request : trace.requests) tokens.push_back(request.output_tokens);
  return tokens;
}

std::vector<uint32_t> sessions(const Trace& trace) {
  std::vector<uint32_t> numbers;
  for (const TraceRequest& request : trace.requests) numbers.push_back(request.session);
  return numbers;
}

TEST(ReadTrace, Mooncake) {
  const Trace trace = read_trace_from(
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 8]}\n"
      "{\"timestamp\": 27, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [7]}\n",
      "m.jsonl");
  EXPECT_EQ(trace.format, "mooncake");
  EXPECT_EQ(trace.source, "m.jsonl");
  EXPECT_EQ(trace.block_tokens, 512u);
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 27 * kMs));
  EXPECT_THAT(prompts(trace), ElementsAre(600, 512));
  EXPECT_THAT(outputs(trace), ElementsAre(5, 0));
  EXPECT_THAT(trace.blocks_of(trace.requests[0]), ElementsAre(7, 8));
  EXPECT_THAT(trace.blocks_of(trace.requests[1]), ElementsAre(7));
  EXPECT_TRUE(trace.adapters.empty());
  EXPECT_EQ(trace.requests[0].adapter, kBaseModel);
}

TEST(ReadTrace, VllmTimedTraceIsMooncakeInSecondsAndBlocksOf16) {
  const Trace trace = read_trace_from(
      "{\"timestamp\": 0.25, \"input_length\": 17, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
      "{\"timestamp\": 1.5, \"input_length\": 16, \"output_length\": 5, \"hash_ids\": [1]}\n",
      "v.jsonl");
  EXPECT_EQ(trace.format, "vllm");
  EXPECT_EQ(trace.block_tokens, 16u);
  EXPECT_THAT(arrivals(trace), ElementsAre(kSecond / 4, 3 * kSecond / 2));
}

TEST(ReadTrace, VllmTimedTraceWithAnotherChunkSize) {
  ReadOptions options;
  options.format = TraceFormat::vllm;
  options.block_tokens = 100;
  const Trace trace = read_trace_from(
      "{\"timestamp\":1,\"input_length\":201,\"output_length\":5,\"hash_ids\":[1,2,3]}", "v",
      options);
  EXPECT_EQ(trace.block_tokens, 100u);
  EXPECT_THAT(arrivals(trace), ElementsAre(kSecond));
}

TEST(ReadTrace, QwenBailianChatsBecomeSessions) {
  const auto row = [](int chat, int parent, const char* time) {
    return "{\"chat_id\": " + std::to_string(chat) +
           ", \"parent_chat_id\": " + std::to_string(parent) + ", \"timestamp\": " + time +
           ", \"input_length\": 20, \"output_length\": 3, \"type\": \"text\", \"turn\": 1, "
           "\"hash_ids\": [4, 5]}\n";
  };
  const Trace trace = read_trace_from(
      row(10, -1, "0.0") + row(11, -1, "1.114") + row(12, 10, "2") + row(13, 12, "3"), "q");
  EXPECT_EQ(trace.format, "qwen-bailian");
  EXPECT_EQ(trace.block_tokens, 16u);
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 1114 * kMs, 2 * kSecond, 3 * kSecond));
  EXPECT_THAT(sessions(trace), ElementsAre(1, 2, 1, 1));
}

TEST(ReadTrace, Azure2023WithCrLfAndSevenFractionalDigits) {
  const Trace trace = read_trace_from(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 18:15:46.6805900,374,44\r\n"
      "2023-11-16 18:15:50.9951690,396,109\r\n",
      "a.csv");
  EXPECT_EQ(trace.format, "azure");
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 4'314'579'000));
  EXPECT_THAT(prompts(trace), ElementsAre(374, 396));
  EXPECT_THAT(outputs(trace), ElementsAre(44, 109));
}

TEST(ReadTrace, Azure2024WithZones) {
  const Trace trace = read_trace_from(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-05-10 00:00:00.009930+00:00,10,1\n"
      "2024-05-10 02:00:01+02:00,20,2\n"
      "2024-05-10T00:00:02Z,30,3\n",
      "a.csv");
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 990'070'000, 1'990'070'000));
}

TEST(ReadTrace, BurstGpt) {
  const Trace trace = read_trace_from(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45.5,GPT-4,1087,230,1317,API log\n",
      "b.csv");
  EXPECT_EQ(trace.format, "burstgpt");
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 40'500 * kMs));
  EXPECT_THAT(prompts(trace), ElementsAre(472, 1087));
  EXPECT_THAT(outputs(trace), ElementsAre(18, 230));
  EXPECT_THAT(sessions(trace), ElementsAre(0, 0));
}

TEST(ReadTrace, BurstGptWithSessions) {
  const Trace trace = read_trace_from(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n"
      "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
      "19440161.0,d5983bf9,2,ChatGPT,36,29,65,Conversation log\n"
      "19440192.0,1722ac82,8,GPT-4,1779,123,1902,Conversation log\n",
      "b.csv");
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 51 * kSecond, 82 * kSecond));
  EXPECT_THAT(sessions(trace), ElementsAre(1, 2, 1));
}

TEST(ReadTrace, VidurKeepsTheExactTime) {
  const Trace trace = read_trace_from(
      "arrived_at,num_prefill_tokens,num_decode_tokens\n"
      "0.0,374,44\n5.8926549999999995,91,16\n1e1,2,1\n",
      "v.csv");
  EXPECT_EQ(trace.format, "vidur");
  EXPECT_THAT(arrivals(trace), ElementsAre(0, 5'892'655'000, 10 * kSecond));
}

TEST(ReadTrace, Splitwise) {
  const Trace trace = read_trace_from(
      "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
      "0,2,0,0.5,1,374,44\n1,2,0,0.75,1,396,109\n",
      "s.csv");
  EXPECT_EQ(trace.format, "splitwise");
  EXPECT_THAT(arrivals(trace), ElementsAre(kSecond / 2, 3 * kSecond / 4));
}

TEST(ReadTrace, NativeWithEverything) {
  const Trace trace = read_trace_from(
      "{\"arrival_ms\":0.25,\"prompt_tokens\":33,\"output_tokens\":4,\"adapter\":\"a\","
      "\"rank\":16,\"priority\":-2,\"session\":9,\"block_tokens\":16,\"block_ids\":[1,2,3],"
      "\"cancel_ms\":2.5}\n"
      "{\"arrival_ms\":1,\"prompt_tokens\":1,\"output_tokens\":0,\"adapter\":\"b\\n\\u00e9\"}\n"
      "{\"output_tokens\":1,\"prompt_tokens\":2,\"adapter\":\"a\",\"arrival_ms\":1}\n",
      "n.jsonl");
  EXPECT_EQ(trace.format, "native");
  const TraceRequest& first = trace.requests[0];
  EXPECT_EQ(first.arrival_ns, 250'000);
  EXPECT_EQ(first.cancel_ns, 2'500'000);
  EXPECT_EQ(first.priority, -2);
  EXPECT_EQ(first.session, 9u);
  EXPECT_THAT(trace.blocks_of(first), ElementsAre(1, 2, 3));
  ASSERT_EQ(trace.adapters.size(), 2u);
  EXPECT_EQ(trace.adapters[0].name, "a");
  EXPECT_EQ(trace.adapters[0].rank, 16u);
  EXPECT_EQ(trace.adapters[1].name, "b\n\xc3\xa9");
  EXPECT_EQ(trace.adapters[1].rank, 0u);
  EXPECT_EQ(trace.requests[2].adapter, 0u);
  EXPECT_EQ(trace.requests[1].cancel_ns, kNever);
  EXPECT_EQ(trace.requests[1].content_count, 0u);
}

TEST(ReadTrace, NativeWithTokens) {
  const Trace trace = read_trace_from(
      "{\"arrival_ms\":0,\"token_ids\":[5,6,7],\"output_tokens\":4}\n"
      "{\"arrival_ms\":0,\"token_ids\":[5],\"output_tokens\":4,\"prompt_tokens\":1}\n",
      "n");
  EXPECT_THAT(prompts(trace), ElementsAre(3, 1));
  EXPECT_THAT(trace.tokens_of(trace.requests[0]), ElementsAre(5, 6, 7));
  EXPECT_THAT(trace.tokens_of(trace.requests[1]), ElementsAre(5));
}

TEST(ReadTrace, TiesKeepFileOrder) {
  std::string csv = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  std::vector<uint32_t> expected;
  for (uint32_t i = 1; i <= 100; ++i) {
    csv += "7.5," + std::to_string(i) + ",1\n";
    expected.push_back(i);
  }
  EXPECT_EQ(prompts(read_trace_from(csv, "t")), expected);
}

TEST(ReadTrace, AFormatCanBeForced) {
  ReadOptions options;
  options.format = trace_format("mooncake");
  const std::string row =
      "{\"timestamp\":4,\"input_length\":16,\"output_length\":5,\"hash_ids\":[1]}\n";
  EXPECT_EQ(read_trace_from(row, "m", options).format, "mooncake");
  options.format = trace_format("vllm");
  EXPECT_EQ(read_trace_from(row, "m", options).requests[0].arrival_ns, 4 * kSecond);
  EXPECT_EQ(trace_format("auto"), TraceFormat::detect);
  EXPECT_THROW(trace_format("moon"), InputError);
}

TEST(ReadTrace, ALogIsLookedForUntilTheColumnsAreClear) {
  constexpr size_t kFarBytes = 200'000;
  const std::string row = "{\"arrival_ms\":0,\"prompt_tokens\":4,\"output_tokens\":2}\n";
  std::string rows;
  while (rows.size() < kFarBytes) rows += row;
  const std::string odd =
      "{\"arrival_ms\":0,\"prompt_tokens\":4,\"output_tokens\":2,\"id\":\"Receive: obj=\"}\n";
  EXPECT_EQ(read_trace_from(rows + odd, "t").format, "native");
  std::string start;
  while (start.size() < kFarBytes) start += "[2025-03-03 17:53:01] loading weights\n";
  const std::string finish =
      "[2025-03-03 17:53:04] Finish: obj=GenerateReqInput(rid='a'), out={'meta_info': "
      "{'prompt_tokens': 4, 'completion_tokens': 2}}\n";
  EXPECT_EQ(read_trace_from(start + finish, "t").format, "sglang-log");
}

TEST(ReadTrace, MemoryOfARequestIsItsOwnData) {
  std::string csv = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < 50'000; ++i) csv += "0.5,100,10\n";
  const Trace trace = read_trace_from(csv, "t");
  ASSERT_EQ(trace.requests.size(), 50'000u);
  EXPECT_EQ(sizeof(TraceRequest), 48u);
  EXPECT_LE(trace.requests.capacity(), 62'500u);  // at most a quarter more than is used
  EXPECT_EQ(trace.block_ids.capacity(), 0u);
}

}  // namespace
}  // namespace loratory::sim
