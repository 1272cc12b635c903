#include "scheduler_sim/trace/writer.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "scheduler_sim/trace/reader.hpp"

namespace loratory::sim {
namespace {

std::string written(const Trace& trace) {
  std::ostringstream out;
  write_native(out, trace);
  return out.str();
}

TEST(WriteNative, WritesWhatIsSet) {
  const std::string rows =
      "{\"arrival_ms\":0.25,\"prompt_tokens\":33,\"output_tokens\":4,\"adapter\":\"a\\\"\\u000a\","
      "\"rank\":16,\"priority\":-2,\"session\":9,\"cancel_ms\":2.000001,\"block_tokens\":16,"
      "\"block_ids\":[1,2,3]}\n"
      "{\"arrival_ms\":1,\"prompt_tokens\":1,\"output_tokens\":0}\n";
  EXPECT_EQ(written(read_trace_from(rows, "n")), rows);
}

TEST(WriteNative, KeepsIds) {
  const std::string rows =
      "{\"arrival_ms\":0,\"prompt_tokens\":2,\"output_tokens\":4}\n"
      "{\"arrival_ms\":1,\"prompt_tokens\":2,\"output_tokens\":4,\"id\":\"a\\\"7\"}\n"
      "{\"arrival_ms\":2,\"prompt_tokens\":2,\"output_tokens\":4}\n";
  const Trace trace = read_trace_from(rows, "n");
  EXPECT_EQ(trace.ids, (std::vector<std::string>{"", "a\"7", ""}));
  EXPECT_EQ(trace.id_of(1), "a\"7");
  EXPECT_EQ(written(trace), rows);
}

TEST(WriteNative, WritesTokenIds) {
  const std::string rows =
      "{\"arrival_ms\":0,\"prompt_tokens\":2,\"output_tokens\":4,\"token_ids\":[5,6]}\n"
      "{\"arrival_ms\":10,\"prompt_tokens\":9,\"output_tokens\":4}\n";
  EXPECT_EQ(written(read_trace_from(rows, "n")), rows);
}

TEST(WriteNative, ConvertsOtherFormats) {
  EXPECT_EQ(written(read_trace_from("{\"timestamp\":27,\"input_length\":513,\"output_length\":5,"
                                    "\"hash_ids\":[18446744073709551615,8]}\n",
                                    "m")),
            "{\"arrival_ms\":27,\"prompt_tokens\":513,\"output_tokens\":5,\"block_tokens\":512,"
            "\"block_ids\":[18446744073709551615,8]}\n");
}

}  // namespace
}  // namespace loratory::sim
