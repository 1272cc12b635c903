#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// One row as it is being read: values, and the column in which each stands.
struct Row {
  std::array<uint32_t, kNumFields> columns{};  ///< 1-based byte; 0 = the row does not have it
  int64_t arrival_ns = 0;
  int64_t cancel_ns = kNever;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t block_tokens = 0;
  uint32_t rank = 0;
  int32_t priority = 0;
  uint32_t session = 0;
  int64_t chat = 0;
  int64_t parent_chat = 0;
  std::string_view adapter;
  std::string_view id;
  std::string_view model;
  std::string_view session_name;  ///< when the session is not a number

  bool has(Field field) const { return column(field) != 0; }
  uint32_t column(Field field) const { return columns[size_t(field)]; }
};

/// Checks rows against each other and appends them to a Trace. A row's block or token ids go
/// straight into the trace; a row that is given up takes them back.
class TraceBuilder {
 public:
  /// Lifetime: that of all three. Throws InputError when the format lacks what an option needs.
  TraceBuilder(const Schema& schema, const ReadOptions& options, Trace& trace);

  std::vector<uint64_t>& block_ids() { return trace_.block_ids; }
  std::vector<int32_t>& token_ids() { return trace_.token_ids; }

  /// Appends the row, or throws BadRow and leaves the trace as it was before the row.
  void add(const Row& row);
  /// Takes back what a row that could not be read has appended.
  void give_up();

 private:
  void add_named(const Row& row);
  TraceRequest checked(const Row& row) const;
  void check_content(const Row& row, TraceRequest& request) const;
  void check_block_ids(const Row& row, uint32_t prompt_tokens) const;
  void check_adapter(const Row& row) const;
  AdapterIndex adapter_of(const Row& row);
  uint32_t session_of(const Row& row);
  void add_id(const Row& row);

  const Schema& schema_;
  const ReadOptions& options_;
  uint32_t block_tokens_;  // 0 until a row says it
  Trace& trace_;
  size_t num_block_ids_ = 0;  // of the rows added
  size_t num_token_ids_ = 0;
  int64_t origin_ns_ = 0;
  std::unordered_map<std::string, AdapterIndex> adapters_;
  std::unordered_map<int64_t, uint32_t> chat_sessions_;
  std::unordered_map<std::string, uint32_t> named_sessions_;
  uint32_t num_sessions_ = 0;
};

}  // namespace loratory::sim
