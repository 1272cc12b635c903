// Level and power of the statistical lane, on emulated implementations: how many right ones it
// flags of a million, and how many cases it needs to notice each fault. JSON on stdout.
//   statistical_lane level CASES [FIRST_SEED]    right implementations of every kind
//   statistical_lane power CASES                 each fault at several K, by numeric form
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "fuzz/support/judged_emulation.hpp"

namespace {

using namespace loratory::reference;
using loratory::check::judged;
using loratory::check::models_of;
using loratory::check::StatisticalTest;
using loratory::check::StatisticalVerdict;

constexpr int64_t kProducts = 1 << 16;

struct Seen {
  int64_t num_cases = 0, num_flagged = 0, num_elements = 0;
  std::map<std::string, double> closest;  // statistic over threshold

  void add(const StatisticalVerdict& v) {
    ++num_cases, num_elements += v.num_elements;
    if (!v.ok) ++num_flagged;
    for (const StatisticalTest& t : v.tests) {
      closest[t.name] = std::max(closest[t.name], t.statistic / t.threshold);
    }
  }
};

std::string json(const std::string& name, const Seen& s) {
  std::string out = fmt::format(R"(  "{}": {{"cases": {}, "flagged": {}, "elements": {})", name,
                                s.num_cases, s.num_flagged, s.num_elements);
  for (const auto& [test, share] : s.closest) out += fmt::format(R"(, "{}": {:.3f})", test, share);
  return out + "}";
}

// Every fifth case is large, so that K of 28,672 meets ranks above 2.
int64_t products_of(uint64_t seed) {
  return seed % 50 == 0 ? kProducts << 4 : kProducts >> (seed % 4);
}

int level(uint64_t num_cases, uint64_t first) {
  std::map<std::string, Seen> seen;
  for (uint64_t seed = first; seed < first + num_cases; ++seed) {
    const EmulatedCase c = emulated_case(seed, products_of(seed));
    const SliceNumbers drawn = c.draw();
    const StatisticalVerdict v = judged(c, drawn, models_of(c, drawn), Fault::none);
    if (!v.ok) fmt::print(stderr, "{}\n  {}\n", describe(c), v.in_words());
    const std::string cut = c.recipe.terms_per_step > 0 ? "tensor core, " : "fp32, ";
    seen["all"].add(v);
    seen[fmt::format("numbers: {}", name(c.numbers))].add(v);
    seen[fmt::format("order: {}{}", cut, name(c.recipe.order))].add(v);
    seen[fmt::format("dtypes: {} to {}", name(c.arithmetic.weight), name(c.arithmetic.out))].add(v);
    seen[fmt::format("h mode {}", int(c.arithmetic.mode.h))].add(v);
    seen[fmt::format("K {:05}", 1 << int(std::log2(double(c.num_in))))].add(v);
  }
  std::string rows;
  for (const auto& [name, s] : seen) rows += (rows.empty() ? "" : ",\n") + json(name, s);
  fmt::print("{{\n{}\n}}\n", rows);
  return seen["all"].num_flagged == 0 ? 0 : 1;
}

// The numeric forms whose power is measured.
struct Form {
  std::string name;
  Arithmetic arithmetic;
  int64_t terms_per_step;
};

std::vector<Form> forms() {
  constexpr Dtype kF32 = Dtype::f32, kF16 = Dtype::f16, kBf16 = Dtype::bf16;
  const auto of = [](NumericMode mode, Dtype weight, Dtype out, double unit) {
    return Arithmetic{.mode = mode, .h = weight, .weight = weight, .out = out, .unit = unit};
  };
  const NumericMode split{.h = IntermediateMode::split2};
  return {{"f32", of(kDefaultMode, kF32, kF32, 0x1p-24), 0},
          {"bf16, fp32 sums", of(kDefaultMode, kBf16, kBf16, 0x1p-24), 0},
          {"bf16, tensor core, h in two parts", of(split, kBf16, kBf16, 0x1p-22), 16},
          {"bf16 to f32, tensor core, h in two parts", of(split, kBf16, kF32, 0x1p-22), 16},
          {"f16, tensor core, h in two parts", of(split, kF16, kF16, 0x1p-22), 16},
          {"bf16, tensor core, vLLM's mode", of(kVllmMode, kBf16, kBf16, 0x1p-22), 16},
          {"bf16, tensor core, SGLang's mode", of(kSglangMode, kBf16, kBf16, 0x1p-22), 16}};
}

// A case of 32 tokens and 64 columns.
EmulatedCase real_case(const Form& form, Numbers numbers, int64_t num_in, int64_t rank,
                       uint64_t seed) {
  EmulatedCase c{.seed = seed,
                 .num_tokens = 32,
                 .num_in = num_in,
                 .rank = rank,
                 .num_out = 64,
                 .numbers = numbers,
                 .arithmetic = form.arithmetic,
                 .recipe = {.size = 4, .terms_per_step = form.terms_per_step}};
  c.recipe.order = seed / 2 % 2 == 0 ? SumOrder::sequential : SumOrder::split;
  return c;
}

// How many of `num_cases` a fault is seen in: those of a form at one K, r 8 and 32.
int power(uint64_t num_cases) {
  std::string rows;
  for (const Form& form : forms()) {
    for (const Numbers numbers : {Numbers::normal, Numbers::heavy_tailed, Numbers::positive}) {
      for (const int64_t num_in : {int64_t(1024), int64_t(4097), int64_t(28672)}) {
        std::map<Fault, int64_t> seen;
        for (uint64_t seed = 0; seed < num_cases; ++seed) {
          const EmulatedCase c = real_case(form, numbers, num_in, seed % 2 == 0 ? 32 : 8, seed);
          const SliceNumbers drawn = c.draw();
          const auto models = models_of(c, drawn);
          for (int f = 0; f < kNumFaults; ++f) {
            if (!judged(c, drawn, models, Fault(f)).ok) ++seen[Fault(f)];
          }
        }
        fmt::print(stderr, "{}, {}, K {}\n", form.name, name(numbers), num_in);
        std::string counts;
        for (int f = 0; f < kNumFaults; ++f) {
          counts += fmt::format("{}\"{}\": {}", f == 0 ? "" : ", ", name(Fault(f)), seen[Fault(f)]);
        }
        rows += fmt::format(
            "{}\n {{\"form\": \"{}\", \"numbers\": \"{}\", \"K\": {}, \"cases\": {},\n  "
            "\"flagged\": {{{}}}}}",
            rows.empty() ? "" : ",", form.name, name(numbers), num_in, num_cases, counts);
      }
    }
  }
  fmt::print("[{}\n]\n", rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  const auto number = [&](int i) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : 0; };
  if (what == "level") return level(number(2), number(3));
  if (what == "power") return power(number(2));
  fmt::print(stderr, "usage: statistical_lane level CASES [FIRST_SEED] | power CASES\n");
  return 2;
}
