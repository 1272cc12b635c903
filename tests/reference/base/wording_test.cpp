#include "reference/base/wording.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace loratory {
namespace {

TEST(Wording, LongTextIsCut) {
  EXPECT_EQ(shown(""), "''");
  EXPECT_EQ(shown(std::string(60, 'x')), "'" + std::string(60, 'x') + "'");
  EXPECT_EQ(shown(std::string(309, '1')), "'" + std::string(40, '1') + "...' (309 bytes)");
}

TEST(Wording, NoCharacterIsCutInTwo) {
  const std::string euro = "\xe2\x82\xac";  // 3 bytes: byte 40 is the second of the 14th
  std::string text;
  for (int i = 0; i < 30; ++i) text += euro;
  EXPECT_EQ(shown(text), "'" + text.substr(0, 39) + "...' (90 bytes)");
}

TEST(Wording, NearestIsTheFewestEdits) {
  const std::vector<std::string> flags = {"--max-loras", "--max-lora-rank", "--max-cpu-loras",
                                          "--pin"};
  EXPECT_EQ(nearest("--max-lora", flags), "--max-loras");
  EXPECT_EQ(nearest("--max-lora-rnak", flags), "--max-lora-rank");  // a swap is one edit
  const std::vector<std::string> pin = {"pin"};
  EXPECT_EQ(nearest("pni", pin), "pin");  // two edits would be too many for three letters
  EXPECT_EQ(nearest("--MAX_LORAS", flags), "--max-loras");
  EXPECT_EQ(nearest("--nip", flags), "--pin");
  EXPECT_EQ(nearest("--colour", flags), "");
  EXPECT_EQ(nearest("", flags), "");
  EXPECT_EQ(nearest(std::string(200, 'x'), flags), "");
}

TEST(Wording, ABeginningIsEnoughWhereNoNameIsNear) {
  const std::vector<std::string> gpus = {"A100-80", "H100-PCIe", "H100-80", "L4", "--max-loras"};
  EXPECT_EQ(nearest("h10", gpus), "H100-80");
  EXPECT_EQ(nearest("H100-p", gpus), "H100-80");  // 2 edits, and 3 are missing from H100-PCIe
  EXPECT_EQ(nearest("00-80", gpus), "A100-80");
  EXPECT_EQ(nearest("h", gpus), "");
  EXPECT_EQ(nearest("--m", gpus), "");
  EXPECT_EQ(nearest("--", gpus), "");
}

TEST(Wording, TheFirstOfEqualsIsNamed) {
  const std::array<std::string, 2> names = {"size", "side"};
  EXPECT_EQ(nearest("sixe", names), "size");
  EXPECT_EQ(did_you_mean("sixe", names, "no"), "did you mean 'size'?");
  EXPECT_EQ(did_you_mean("generate", names, "give size or side"), "give size or side");
}

}  // namespace
}  // namespace loratory
