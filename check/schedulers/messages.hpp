#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

/// What the harness and a scheduler under test say to each other; docs/check_scheduler.md has the
/// meaning of every message and field, and json_lines.hpp their form as text.
namespace loratory::check {

/// Of the protocol; `hello` carries it.
inline constexpr int32_t kSchedulerProtocol = 1;

/// Identity of one registration, from 1; never used again in a session. 0 is the base model.
using Uid = uint64_t;
inline constexpr Uid kBaseUid = 0;
inline constexpr int32_t kNoSlot = -1;
inline constexpr int32_t kNoToken = -1;

/// What the engine has room for, and the most that the harness will ask for.
struct Limits {
  int32_t max_loras = 2;      ///< GPU slots, 0 .. max_loras-1
  int32_t max_cpu_loras = 4;  ///< adapters in host memory, those on the GPU included
  int32_t num_load_workers = 1;
  uint32_t block_size = 4;   ///< tokens per KV block
  uint32_t num_blocks = 16;  ///< ids 1 .. num_blocks-1; 0 is the null block, which nobody uses
  uint32_t max_num_batched_tokens = 16;  ///< tokens per step
  uint32_t max_num_seqs = 4;             ///< rows per step
  uint32_t max_model_len = 24;           ///< prompt and output of one request, in tokens
  int32_t max_adapters = 8;              ///< names that are registered at one time
  int32_t max_requests = 64;             ///< requests that are live at one time
};

namespace message {

/// A session begins: whatever the scheduler knew is void.
struct Hello {
  Limits limits{};
};
struct Register {
  std::string name{};
  bool replace = false;  ///< a name that is taken gets a new uid; the old one retires
};
struct Unload {
  std::string name{};
  bool abort_requests = false;
};
struct Pin {
  std::string name{};
};
struct Unpin {
  std::string name{};
};
struct Submit {
  uint64_t id = 0;        ///< unique among live requests
  std::string adapter{};  ///< a name; empty = base model
  int32_t priority = 0;   ///< lower runs first
  std::vector<int32_t> prompt{};
  uint32_t max_new_tokens = 1;
  std::vector<int32_t> stop_tokens{};
  bool prefix_cache = true;  ///< false: neither takes KV of others nor leaves its own to them
};
struct Abort {
  uint64_t id = 0;
};
struct LoadDone {
  Uid uid = kBaseUid;
  bool ok = true;
};
struct CopyDone {
  Uid uid = kBaseUid;
  int32_t slot = kNoSlot;
};
struct Plan {
  int64_t step = 1;  ///< the number that the step gets if the plan has rows
};
struct Sampled {
  uint64_t id = 0;
  int32_t token = kNoToken;  ///< kNoToken: the row was left out, because its adapter failed to load
};
struct Commit {
  int64_t step = 1;
  std::vector<Sampled> sampled{};  ///< one for each row with `samples`, in the order of the rows
};

using Any = std::variant<Hello, Register, Unload, Pin, Unpin, Submit, Abort, LoadDone, CopyDone,
                         Plan, Commit>;

}  // namespace message

struct Message {
  int64_t time_ns = 0;  ///< never falls within a session
  message::Any what{};

  template <typename Kind>
  const Kind* get_if() const {
    return std::get_if<Kind>(&what);
  }
};

/// What a scheduler says of itself. What it does not claim is neither asked of it nor judged.
struct Claims {
  bool loads = false;            ///< adapters come from disk: `load` events before copies
  bool prefix_cache = false;     ///< a first row may begin behind KV that is there already
  bool chunked_prefill = false;  ///< a prompt may take several steps
  bool preemption = false;       ///< `preempt` events
  bool pins = false;
  bool unloads = false;        ///< `unload`, and `register` with `replace`
  bool generations = false;    ///< copies and rows carry the slot's generation
  bool waits = false;          ///< a plan may name adapters that its step waits for
  bool plan_ahead = false;     ///< `plan` while a step is in flight
  bool deterministic = false;  ///< equal messages give equal replies
  /// Most plans with rows in which later requests of the same priority run for the first time while
  /// a request waits and no adapter moves; -1 = no bound.
  int64_t max_overtakes = -1;
};

enum class Status : uint8_t {
  ok,
  exists,   ///< register: the name is taken
  unknown,  ///< nobody has the name or the id
  busy,     ///< pin: would leave no slot to move
  refused,  ///< submit: never fits, a live id, or bad content
};

enum class FinishReason : uint8_t { stop, length, abort, error };

/// What a scheduler decided within an exchange. Fields that a kind does not name stay as they are.
struct Event {
  enum class Kind : uint8_t {
    load,      ///< uid: disk to CPU begins
    copy,      ///< uid, slot, generation: CPU to slot begins
    evict,     ///< uid, slot (the one it had, or kNoSlot), from_cpu
    give_up,   ///< uid: it will not be loaded again; its requests end with `error`
    preempt,   ///< id: its KV is given up and computed again later
    finish,    ///< id, reason, num_generated
    unloaded,  ///< uid: nothing of it is left anywhere
  };
  Kind kind = Kind::load;
  Uid uid = kBaseUid;
  int32_t slot = kNoSlot;
  uint64_t generation = 0;
  bool from_cpu = false;
  uint64_t id = 0;
  FinishReason reason = FinishReason::length;
  uint32_t num_generated = 0;

  bool operator==(const Event&) const = default;
};

/// One request in one step.
struct Row {
  uint64_t id = 0;
  Uid uid = kBaseUid;
  int32_t slot = kNoSlot;  ///< kNoSlot: base model, or the slot of the copy that the step waits for
  uint64_t generation = 0;
  uint32_t start = 0;              ///< tokens with KV before the step
  uint32_t num_tokens = 0;         ///< computed in it
  bool samples = false;            ///< reaches the request's last token: yields one token
  std::vector<uint32_t> blocks{};  ///< position p lies in blocks[p / block_size]

  bool operator==(const Row&) const = default;
};

struct Reply {
  Status status = Status::ok;
  Uid uid = kBaseUid;           ///< of `register`
  std::string name{};           ///< of `hello`: of the scheduler
  Claims claims{};              ///< of `hello`
  std::vector<Event> events{};  ///< in the order in which they were decided
  std::vector<Row> rows{};      ///< of `plan`; empty = no step
  std::vector<Uid> wait_for{};  ///< of `plan`: the step begins when these are on the GPU
};

}  // namespace loratory::check
