#include "reference/adapter/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "reference/adapter/adapter_error.hpp"
#include "reference/adapter/safetensors.hpp"

namespace loratory::reference {
namespace {

using nlohmann::json;
using Code = AdapterErrorCode;

constexpr size_t kLongestToken = size_t{1} << 20;
constexpr size_t kMostTensors = size_t{1} << 18;
constexpr size_t kMostEmptyTensors = 1024;
constexpr size_t kMostDimensions = 32;

// The header as the JSON lexer sees it: it seems to end when no token ended for kLongestToken
// bytes, so that a string of 100 MB is never collected. The lexer copies iterators, hence the
// shared limit.
class HeaderIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  // `position`, if any, follows the iterator.
  HeaderIterator(const char* at, const char* const* limit, const char** position = nullptr)
      : at_(at), limit_(limit), position_(position) {}
  reference operator*() const { return *at_; }
  HeaderIterator& operator++() {
    ++at_;
    if (position_ != nullptr) *position_ = at_;
    return *this;
  }
  HeaderIterator operator++(int) {
    HeaderIterator before = *this;
    ++*this;
    return before;
  }
  // The other side is always the end.
  bool operator==(const HeaderIterator&) const { return at_ >= *limit_; }

 private:
  const char* at_;
  const char* const* limit_;
  const char** position_;
};

// Receives the tokens of a header and refuses at the first that breaks the format.
class HeaderHandler {
 public:
  HeaderHandler(std::string_view header, uint64_t num_data_bytes, std::string_view place)
      : end_(header.data() + header.size()),
        position_(header.data()),
        num_data_bytes_(num_data_bytes),
        place_(place) {
    extend_limit();
  }

  HeaderIterator first() { return {position_, &limit_, &position_}; }
  HeaderIterator last() { return {end_, &limit_}; }
  bool was_cut() const { return position_ >= limit_ && limit_ != end_; }
  std::vector<HeaderEntry> take_entries() { return std::move(entries_); }

  bool null() { return refuse("null"); }
  bool boolean(bool) { return refuse("a boolean"); }
  bool number_integer(int64_t) { return refuse("a negative number"); }
  bool number_float(double, const std::string&) {
    return refuse("a number that is not an integer");
  }
  bool binary(json::binary_t&) { return refuse("binary data"); }

  bool number_unsigned(uint64_t value) {
    extend_limit();
    if (state_ == State::shape) return add_dimension(value);
    if (state_ != State::offsets) return refuse("a number");
    if (num_offsets_ == 2) fail(Code::io, "data_offsets has more than two numbers");
    (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }

  bool string(std::string& text) {
    extend_limit();
    if (state_ == State::metadata) return true;
    if (state_ != State::entry || field_ != Field::dtype) return refuse("a string");
    const auto dtype = find_dtype(text);
    if (!dtype) fail(Code::dtype, fmt::format("unknown dtype '{}'", printable_key(text)));
    entry_.dtype = *dtype;
    field_ = Field::none;
    return true;
  }

  bool start_object(size_t) {
    extend_limit();
    if (state_ == State::start) return enter(State::root);
    if (state_ == State::root && entry_.name == "__metadata__") return enter(State::metadata);
    if (state_ == State::root) return enter(State::entry);
    return refuse("an object");
  }

  bool key(std::string& text) {
    extend_limit();
    if (state_ == State::root) return begin_entry(std::move(text));
    if (state_ == State::entry) begin_field(text);
    return true;
  }

  bool end_object() {
    extend_limit();
    if (state_ == State::entry) finish_entry();
    return enter(state_ == State::root ? State::done : State::root);
  }

  bool start_array(size_t) {
    extend_limit();
    if (state_ == State::entry && field_ == Field::shape) return enter(State::shape);
    if (state_ == State::entry && field_ == Field::offsets) return enter(State::offsets);
    return refuse("an array");
  }

  bool end_array() {
    extend_limit();
    if (state_ == State::offsets && num_offsets_ != 2) {
      fail(Code::io, "data_offsets must have two numbers");
    }
    field_ = Field::none;
    return enter(State::entry);
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) {
    if (was_cut()) {
      throw AdapterError(Code::io, place_, "a name or value in the header is longer than 1 MiB");
    }
    throw AdapterError(Code::io, place_, fmt::format("the header is not JSON (byte {})", position),
                       "the file is damaged or not a safetensors file");
  }

 private:
  enum class State { start, root, metadata, entry, shape, offsets, done };
  enum class Field { none, dtype, shape, offsets };

  bool enter(State state) {
    state_ = state;
    return true;
  }

  void extend_limit() {
    const auto left = size_t(end_ - position_);
    limit_ = position_ + std::min(left, kLongestToken);
  }

  [[noreturn]] void fail(Code code, std::string_view rule) const {
    throw AdapterError(code, entry_.name.empty() ? place_ : entry_.name, rule);
  }

  bool refuse(std::string_view what) const {
    fail(Code::io, fmt::format("{} where the header of safetensors has none", what));
  }

  bool add_dimension(uint64_t value) {
    if (entry_.shape.size() == kMostDimensions) fail(Code::shape, "more than 32 dimensions");
    if (value > uint64_t(INT64_MAX)) fail(Code::shape, "a dimension above 2^63");
    entry_.shape.push_back(int64_t(value));
    return true;
  }

  bool begin_entry(std::string&& name) {
    entry_ = HeaderEntry{};
    entry_.name = std::move(name);
    seen_ = {};
    num_offsets_ = 0;
    if (!names_.insert(entry_.name).second) fail(Code::key, "is in the header twice");
    if (names_.size() > kMostTensors) fail(Code::io, "more than 2^18 tensors");
    return true;
  }

  void begin_field(std::string_view name) {
    if (name == "dtype")
      field_ = Field::dtype;
    else if (name == "shape")
      field_ = Field::shape;
    else if (name == "data_offsets")
      field_ = Field::offsets;
    else
      fail(Code::io, fmt::format("unknown field '{}'", printable_key(name)));
    bool& seen = seen_[size_t(field_)];
    if (seen) fail(Code::key, fmt::format("has '{}' twice", name));
    seen = true;
  }

  void finish_entry() {
    if (!seen_[1] || !seen_[2] || !seen_[3]) {
      fail(Code::io, "needs dtype, shape and data_offsets");
    }
    if (entry_.begin > entry_.end || entry_.end > num_data_bytes_) {
      fail(Code::io, fmt::format("data_offsets [{}, {}] outside of the {} bytes of data",
                                 entry_.begin, entry_.end, num_data_bytes_));
    }
    const uint64_t size = entry_.end - entry_.begin;
    const auto needed = uint64_t(tensor_bytes(entry_.dtype, entry_.shape, entry_.name));
    if (size != needed) {
      fail(Code::shape,
           fmt::format("{} {} needs {} bytes, data_offsets give {}", dtype_name(entry_.dtype),
                       shape_text(entry_.shape), needed, size));
    }
    if (size == 0 && ++num_empty_ > kMostEmptyTensors) {
      fail(Code::io, "more than 1024 tensors without data");
    }
    num_claimed_bytes_ += size;  // each at most the data: no overflow before the next line
    if (num_claimed_bytes_ > num_data_bytes_) fail(Code::io, "overlaps another tensor");
    entries_.push_back(std::move(entry_));
    entry_ = HeaderEntry{};
  }

  const char* end_;
  const char* position_;
  const char* limit_ = nullptr;
  uint64_t num_data_bytes_;
  std::string_view place_;

  State state_ = State::start;
  Field field_ = Field::none;
  std::array<bool, 4> seen_{};
  int num_offsets_ = 0;
  HeaderEntry entry_;
  size_t num_empty_ = 0;
  uint64_t num_claimed_bytes_ = 0;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
};

// Sorted by offset, each begins where the one before ended.
void require_cover(const std::vector<HeaderEntry>& entries, uint64_t num_data_bytes,
                   std::string_view place) {
  uint64_t covered = 0;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin != covered) {
      throw AdapterError(
          Code::io, entry.name,
          fmt::format("begins at byte {} of the data, {} was expected: {}", entry.begin, covered,
                      entry.begin < covered ? "an overlap" : "a hole"));
    }
    covered = entry.end;
  }
  if (covered != num_data_bytes) {
    throw AdapterError(
        Code::io, place,
        fmt::format("{} bytes of data belong to no tensor", num_data_bytes - covered));
  }
}

}  // namespace

std::vector<HeaderEntry> parse_safetensors_header(std::string_view text, uint64_t num_data_bytes,
                                                  std::string_view place) {
  if (text.empty() || text.front() != '{') {
    throw AdapterError(Code::io, place, "the header must begin with '{'");
  }
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  HeaderHandler handler(text, num_data_bytes, place);
  json::sax_parse(handler.first(), handler.last(), &handler);
  auto entries = handler.take_entries();
  std::ranges::sort(entries, [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  require_cover(entries, num_data_bytes, place);
  return entries;
}

}  // namespace loratory::reference
