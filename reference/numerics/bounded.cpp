#include "reference/numerics/bounded.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <limits>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::reference {
namespace {

thread_local Tape* current_tape = nullptr;

constexpr int kAtOnce = 16;
using Derivatives = Eigen::Array<double, kAtOnce, 1>;

}  // namespace

/// The derivatives of some numbers with respect to those that a walk has yet to visit. It leaves
/// them 0 for the next one: so much memory takes long to get and to fill.
struct Tape::Walk {
  explicit Walk(int32_t num_numbers)
      : by(size_t(num_numbers), Derivatives::Zero()), is_reached(size_t(num_numbers)) {}

  std::vector<Derivatives> by;
  std::vector<uint8_t> is_reached;  // the others are 0, which would take long to see

  Derivatives& reach(int32_t number) {
    is_reached[size_t(number)] = 1;
    return by[size_t(number)];
  }
};

Tape::Scope::Scope(Tape& tape) : before_(current_tape) { current_tape = &tape; }
Tape::Scope::~Scope() { current_tape = before_; }

Tape& Tape::current() {
  LORATORY_ASSERT(current_tape != nullptr, "traced numbers need a Tape::Scope");
  return *current_tape;
}

int32_t Tape::add(double local_error) {
  LORATORY_ASSERT(ends_.size() < size_t{1} << 31, "a tape numbers its entries with 32 bits");
  ends_.push_back(edges_.size());
  local_errors_.push_back(local_error);
  return int32_t(ends_.size() - 1);
}

std::vector<double> Tape::errors(std::span<const int32_t> numbers) const {
  std::vector<double> out(numbers.size());
  if (numbers.empty()) return out;
  Walk walk(std::ranges::max(numbers) + 1);
  for (size_t i = 0; i < numbers.size(); i += kAtOnce) {
    const size_t count = std::min<size_t>(kAtOnce, numbers.size() - i);
    errors_of_some(numbers.subspan(i, count), walk, std::span(out).subspan(i, count));
  }
  return out;
}

void Tape::add_norm(std::span<const Traced> numbers, const Traced& mean, const Traced& root) {
  Norm norm{{}, mean.node, mean.value, root.node};
  for (const Traced& x : numbers) norm.numbers.push_back(x.node);
  norms_.push_back(std::move(norm));
}

// From the `first` on, while no norm's numbers can follow from the first one's mean.
std::span<const Tape::Norm> Tape::independent_norms(size_t first) const {
  size_t end = first;
  for (; end < norms_.size(); ++end) {
    for (const int32_t x : norms_[end].numbers) {
      if (x > norms_[first].mean) return std::span(norms_).subspan(first, end - first);
    }
  }
  return std::span(norms_).subspan(first);
}

void Tape::finish_norms(double share) {
  for (size_t first = 0; first < norms_.size();) {
    const auto norms = independent_norms(first);
    std::vector<int32_t> wanted;
    for (const Norm& norm : norms) {
      wanted.insert(wanted.end(), norm.numbers.begin(), norm.numbers.end());
      wanted.push_back(norm.mean);
    }
    const std::vector<double> found = errors(wanted);
    auto rest = std::span(found);
    for (const Norm& norm : norms) {
      finish(norm, rest.first(norm.numbers.size() + 1), share);
      rest = rest.subspan(norm.numbers.size() + 1);
    }
    first += norms.size();
  }
}

// `errors` of its numbers, and of their mean to first order.
void Tape::finish(const Norm& norm, std::span<const double> errors, double share) {
  double left_out = 0;
  for (const double e : errors.first(norm.numbers.size())) left_out += e * e;
  left_out /= double(norm.numbers.size());
  local_errors_[size_t(norm.mean)] += left_out;
  const bool is_sure = errors.back() + left_out <= share * norm.mean_value;
  if (!is_sure) local_errors_[size_t(norm.root)] = std::numeric_limits<double>::infinity();
}

void Tape::errors_of_some(std::span<const int32_t> numbers, Walk& walk,
                          std::span<double> out) const {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= 0) walk.reach(numbers[i])(Eigen::Index(i)) += 1;
  }
  Derivatives sum = Derivatives::Zero();
  for (size_t n = size_t(std::ranges::max(numbers) + 1); n-- > 0;) {
    if (std::exchange(walk.is_reached[n], 0) == 0) continue;
    const Derivatives by = std::exchange(walk.by[n], Derivatives::Zero());
    // An unknown error does not concern what does not depend on it.
    sum += (by == 0).select(0, by.abs() * local_errors_[n]);
    for (size_t e = n == 0 ? 0 : ends_[n - 1]; e < ends_[n]; ++e) {
      walk.reach(edges_[e].from) += by * edges_[e].derivative;
    }
  }
  for (size_t i = 0; i < numbers.size(); ++i) out[i] = sum(Eigen::Index(i));
}

}  // namespace loratory::reference
