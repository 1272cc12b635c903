#include "reference/numerics/bounded.hpp"

#include <Eigen/Core>
#include <limits>

#include "reference/base/check.hpp"

namespace loratory::reference {
namespace {

thread_local Tape* current_tape = nullptr;

constexpr int kAtOnce = 16;
using Derivatives = Eigen::Array<double, kAtOnce, 1>;

}  // namespace

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
  for (size_t i = 0; i < numbers.size(); i += kAtOnce) {
    const size_t count = std::min<size_t>(kAtOnce, numbers.size() - i);
    errors_of_some(numbers.subspan(i, count), std::span(out).subspan(i, count));
  }
  return out;
}

void Tape::open_roots(double share) {
  std::vector<int32_t> numbers;
  for (const Root& r : roots_) numbers.push_back(r.number);
  const std::vector<double> found = errors(numbers);
  for (size_t i = 0; i < roots_.size(); ++i) {
    const bool is_sure = found[i] <= share * roots_[i].value;
    if (!is_sure) local_errors_[size_t(roots_[i].root)] = std::numeric_limits<double>::infinity();
  }
}

void Tape::errors_of_some(std::span<const int32_t> numbers, std::span<double> out) const {
  std::vector<Derivatives> by(ends_.size(), Derivatives::Zero());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= 0) by[size_t(numbers[i])](Eigen::Index(i)) += 1;
  }
  Derivatives sum = Derivatives::Zero();
  for (size_t n = ends_.size(); n-- > 0;) {
    if ((by[n] == 0).all()) continue;
    // An unknown error does not concern what does not depend on it.
    sum += (by[n] == 0).select(0, by[n].abs() * local_errors_[n]);
    for (size_t e = n == 0 ? 0 : ends_[n - 1]; e < ends_[n]; ++e) {
      by[size_t(edges_[e].from)] += by[n] * edges_[e].derivative;
    }
  }
  for (size_t i = 0; i < numbers.size(); ++i) out[i] = sum(Eigen::Index(i));
}

}  // namespace loratory::reference
