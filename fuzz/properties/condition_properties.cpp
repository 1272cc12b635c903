// --fail-if of `loratory compare`: what is written reads back, what is read is judged as a plain
// formula says, and no text does anything but parse or throw one line.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <initializer_list>
#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/metrics/measures.hpp"

namespace loratory::sim {
namespace {

// Numbers with few digits, so that a change often lands on the limit itself.
double small_number(int from, int to) { return double(*rc::gen::inRange(from, to)) / 4; }

Condition any_condition() {
  Condition condition;
  condition.measure = &measures()[*rc::gen::inRange<size_t>(0, measures().size())];
  condition.is_above = *rc::gen::arbitrary<bool>();
  condition.is_change = *rc::gen::arbitrary<bool>();
  condition.limit = condition.is_change ? small_number(-400, 400) : small_number(0, 4000);
  return condition;
}

bool are_equal(const Condition& a, const Condition& b) {
  return a.measure == b.measure && a.is_above == b.is_above && a.is_change == b.is_change &&
         a.limit == b.limit;
}

std::string with_blanks(const std::string& text) {
  std::string blank;
  for (const char c : text) {
    const bool is_sign = c == '<' || c == '>';
    blank += is_sign ? std::string(" ") + c + "  " : std::string(1, c);
  }
  return " " + blank + " ";
}

RC_GTEST_PROP(Conditions, ReadBackAndJudgeByTheFormula, ()) {
  const Condition condition = any_condition();
  const std::string text = to_text(condition);
  const double a = small_number(-10, 10);
  // Every other time on the limit, as far as a quarter can be.
  const double on_limit =
      condition.is_change ? a + condition.limit * std::fabs(a) / 100 : condition.limit;
  const double b = *rc::gen::arbitrary<bool>() ? on_limit : small_number(-400, 400);
  RC_LOG() << "REPRO: " << text << " a " << a << " b " << b << "\n";
  RC_ASSERT(are_equal(parse_condition(text), condition));
  RC_ASSERT(are_equal(parse_condition(with_blanks(text)), condition));
  // Quarters below 2^12: but for an on_limit that is none, everything is exact.
  const double left = condition.is_change ? 100 * (b - a) : b;
  const double right = condition.is_change ? condition.limit * std::fabs(a) : condition.limit;
  RC_CLASSIFY(left == right, "on the limit");
  RC_CLASSIFY(condition.is_change, "a change");
  RC_CLASSIFY(a == 0, "from zero");
  RC_ASSERT(condition.holds(a, b) == (condition.is_above ? left > right : left < right));
}

std::string any_of(std::initializer_list<const char*> pieces) {
  return pieces.begin()[*rc::gen::inRange<size_t>(0, pieces.size())];
}

// Nearly a condition, with a byte changed every other time.
std::string random_text() {
  std::string text = any_of({"ttft_p99", "p99_ttft_ms", " goodput", "slo_attainment", "tpot", ""});
  text += any_of({">", "<", " > ", "", "=", "<>"});
  text += any_of({"+", "-", "", "", "+-"});
  text += any_of({"10", "0.5", "1e9", "1e400", "nan", "inf", "", "1,5"});
  text += any_of({"%", "%", "ms", "s", "", " ", "%%"});
  if (!text.empty() && *rc::gen::arbitrary<bool>()) {
    text[*rc::gen::inRange<size_t>(0, text.size())] = *rc::gen::arbitrary<char>();
  }
  return text;
}

RC_GTEST_PROP(Conditions, AnyTextIsAConditionOrOneLine, ()) {
  const std::string text = random_text();
  RC_LOG() << "REPRO: " << text << "\n";
  try {
    const Condition condition = parse_condition(text);
    RC_CLASSIFY(true, "a condition");
    RC_ASSERT(condition.measure != nullptr);
    RC_ASSERT(std::isfinite(condition.limit));
    RC_ASSERT(are_equal(parse_condition(to_text(condition)), condition));
  } catch (const InputError& error) {
    RC_CLASSIFY(true, "an error");
    RC_ASSERT(std::string(error.what()).rfind("--fail-if: ", 0) == 0);
  }
}

}  // namespace
}  // namespace loratory::sim
