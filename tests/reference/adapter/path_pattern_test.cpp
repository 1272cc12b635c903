// Patterns of adapter_config.json against paths: what Python's `re` (3.11) says of each row, what
// is refused, and how much work a pattern may be.
#include "reference/adapter/path_pattern.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

using Fit = PathPattern::Fit;
using testing::HasSubstr;

constexpr const char* kQPath = "model.layers.1.self_attn.q_proj";

bool matches(std::string_view text, std::string_view path, Fit fit = Fit::whole_path) {
  StepBudget budget{1 << 20};
  return PathPattern(text, "target_modules", fit).matches(path, budget);
}

// The line of the refusal, of the pattern itself or of a match.
std::string pattern_refusal(const std::string& text, std::string_view path = kQPath,
                            Fit fit = Fit::whole_path) {
  try {
    matches(text, path, fit);
  } catch (const AdapterError& error) {
    return error.what();
  }
  return "accepted";
}

struct PatternRow {
  const char* pattern;
  bool matches;
};

// [4.7] re.fullmatch(pattern, "model.layers.1.self_attn.q_proj")
TEST(PathPattern, WholePathsAsInPython) {
  for (const auto& [pattern, expected] : std::initializer_list<PatternRow>{
           {".*q_proj$", true},
           {R"(.*q_proj\Z)", true},
           {R"(\Amodel.*)", true},
           {"(?P<layer>model).*", true},
           {"(?i).*Q_PROJ", true},
           {".*(?i:Q)_proj", true},
           {".*Q_proj", false},
           {R"(.*(?<=self_attn\.)q_proj)", true},
           {R"(.*(?<!self_attn\.)q_proj)", false},
           {".*(?=q_)q_proj", true},
           {".*(?!q_)q_proj", false},
           {"(?>.*)q_proj", false},
           {".*+q_proj", false},
           {"[^]q]*[]q]_proj", true},
           {R"(.*\.[\d]{1,}\..*)", true},
           {"model.*?", true},
           {"model.*?x", false},
           {"model", false},
           {"", false},
           {R"(.*\bq_proj\b)", true},
           {R"(.*\Bproj)", true},
           {".*q{1}_proj", true},
           {".*q{_proj", false},
           {"model.layers.1.self_attn.q_proj", true},
           {"layers.1.self_attn.q_proj", false},
       }) {
    EXPECT_EQ(matches(pattern, kQPath), expected) << pattern;
  }
}

// [4.7] re.match(rf"(.*\.)?({pattern})$", "model.layers.1.self_attn.q_proj")
TEST(PathPattern, EndsOfPathsAsInPython) {
  for (const auto& [pattern, expected] : std::initializer_list<PatternRow>{
           {"q_proj|k_proj", true},
           {"^model.layers.1.self_attn.q_proj", true},
           {"^layers.1.*", false},
           {"(?=q_)q_proj", true},
           {"(?<=self_attn.)q_proj", true},
           {"(?<!self_attn.)q_proj", false},
           {"q_proj$", true},
           {"(?!q).*proj", true},
           {"x|", false},
           {"(?P<n>q)_proj", true},
           {"roj", false},
           {"[p]roj", false},
       }) {
    EXPECT_EQ(matches(pattern, kQPath, Fit::end), expected) << pattern;
  }
}

// [4.7] What trainers write for target_modules, and what PEFT 0.21.2 makes of it
// (check_target_module_exists): Unsloth's get_peft_regex of two years, ms-swift 2 and 3,
// LLaMA-Factory with and without the vision tower.
TEST(PathPattern, PatternsOfTrainers) {
  constexpr std::array<const char*, 7> kPaths{kQPath,
                                              "model.layers.1.mlp.down_proj",
                                              "model.layers.0.mlp.experts.5.up_proj",
                                              "model.language_model.layers.3.self_attn.k_proj",
                                              "model.visual.blocks.0.attn.q_proj",
                                              "lm_head",
                                              "model.embed_tokens"};
  const std::string names = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj";
  const std::string parts = "self_attn|attention|attn|mlp|feed_forward|ffn|dense";
  const std::string more = "self_attn|attention|attn|mixer|mlp|feed_forward|ffn|dense|mixer";
  for (const auto& [pattern, expected] : std::initializer_list<std::pair<std::string, std::string>>{
           {"(?:.*?(?:vision|image|visual|patch|language|text).*?(?:" + parts + ").*?(?:" + names +
                R"().*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:)" + parts + R"()\.(?:(?:)" + names +
                ")))",
            "1101100"},
           {"(?:.*?(?:language|text).*?(?:" + more +
                R"().*?\.(?:q_proj|v_proj|o_proj))|(?:\bmodel\.layers\.[\d]{1,})" +
                R"((?!.*\.experts\.\d)\..*?(?:)" + more + R"().*?\.(?:(?:q_proj|v_proj|o_proj))))",
            "1000000"},
           {"^(model)(?!.*(lm_head|output|emb|wte|shared)).*", "1111100"},
           {R"(^(model(?=\.).*\.(k_proj|up_proj|v_proj|down_proj|gate_proj|o_proj|q_proj))$)",
            "1111100"},
           {R"(^(model\.language_model(?=\.).*\.(k_proj|q_proj))$)", "0001000"},
           {"^(?!.*visual).*(?:" + names + ").*", "1111000"},
           {"^(?!.*patch_embed).*(?:" + names + ").*", "1111100"},
       }) {
    std::string got;
    for (const char* path : kPaths) got += matches(pattern, path) ? '1' : '0';
    EXPECT_EQ(got, expected) << pattern;
  }
}

// [4.7] What PCRE2 would read otherwise than Python, and what neither compiles.
TEST(PathPattern, RefusedOnes) {
  struct Refused {
    const char* pattern;
    const char* reason;
  };
  for (const auto& [pattern, reason] : std::initializer_list<Refused>{
           {R"((q)\1)", "a back reference is not supported"},
           {"(?P<n>q)(?P=n)", "'(?P='"},
           {"(q)?(?(1)a|b)", "'(?(1'"},
           {"(?<n>q)", "'(?<n'"},
           {"(?R)", "'(?R)'"},
           {"(?x)q", "'(?x)'"},
           {"q(?i)", "'(?i)'"},
           {"(*ACCEPT)q", "'(*AC'"},
           {R"(\Qq\E)", R"('\Q')"},
           {R"(\p{L})", R"('\p')"},
           {"q{,2}", "'{,n}' (for '{0,n}')"},
           {"[[:alpha:]]+", "a POSIX class"},
           {"(", "missing closing parenthesis"},
           {"a)(b", "unmatched closing parenthesis (byte 1)"},
           {"*a", "quantifier does not follow"},
           {"q\\", "\\ at end of pattern"},
           {"[q\\", "\\ at end of pattern"},
           {"[q", "missing terminating ]"},
           {"((a{100}){100}){100}", "too large"},
       }) {
    const std::string line = pattern_refusal(pattern);
    EXPECT_THAT(line, HasSubstr("E_CONFIG(target_modules): ")) << pattern;
    EXPECT_THAT(line, HasSubstr(reason)) << pattern;
  }
}

// [4.19] Backtracking needs 2^40 steps for these; the budget ends it.
TEST(PathPattern, NoPatternTakesExponentialTime) {
  const std::string path = "model." + std::string(60, 'a') + "!";
  for (const char* pattern : {"(a+)+b", "(a*)*b", "(a|aa)+b", "(.*)*(.*)*x", "(a|a)*(a|a)*b"}) {
    for (const Fit fit : {Fit::whole_path, Fit::end}) {
      const std::string text = fit == Fit::whole_path ? fmt::format("model.{}", pattern) : pattern;
      EXPECT_THAT(pattern_refusal(text, path, fit), HasSubstr("takes too many steps")) << pattern;
    }
  }
}

// [4.19] The budget is one for all matches, and a match costs one step at least.
TEST(PathPattern, TheBudgetIsShared) {
  const PathPattern plain("q_proj", "rank_pattern", Fit::end);
  const PathPattern pattern("(q|k)_proj", "rank_pattern", Fit::end);
  StepBudget budget{1000};
  EXPECT_TRUE(plain.matches(kQPath, budget));
  EXPECT_EQ(budget.steps_left, 999);
  EXPECT_TRUE(pattern.matches(kQPath, budget));
  const int64_t cost = 999 - budget.steps_left;
  EXPECT_GT(cost, 1);
  EXPECT_TRUE(pattern.matches(kQPath, budget));
  EXPECT_EQ(budget.steps_left, 999 - 2 * cost);
  budget.steps_left = cost;
  EXPECT_TRUE(pattern.matches(kQPath, budget));
  EXPECT_THROW(plain.matches(kQPath, budget), AdapterError);
  budget.steps_left = cost - 1;
  EXPECT_THROW(pattern.matches(kQPath, budget), AdapterError);
}

// Deeper than the stack of the machine code: the interpreter answers, after as many steps.
TEST(PathPattern, DeepMatches) {
  const std::string path(1000, 'a');
  const auto steps = [&](Fit fit) {
    StepBudget budget{1 << 20};
    EXPECT_TRUE(PathPattern("(a|aa)+", "target_modules", fit).matches(path, budget));
    return (1 << 20) - budget.steps_left;
  };
  EXPECT_EQ(steps(Fit::whole_path), steps(Fit::end));
}

TEST(PathPattern, PlainOnesNeedNoRegularExpression) {
  for (const char* plain : {"q_proj", "self_attn.q_proj", "layers-1", ""}) {
    EXPECT_TRUE(is_plain_pattern(plain)) << plain;
  }
  for (const char* pattern : {"q*", "q|k", "^q", "q$", "\\.", "é"}) {
    EXPECT_FALSE(is_plain_pattern(pattern)) << pattern;
  }
}

}  // namespace
}  // namespace loratory::reference
