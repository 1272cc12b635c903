// What each medium makes of text that would do harm in it.
#include "reference/base/escape.hpp"

#include <gtest/gtest.h>

#include <string>

namespace loratory {
namespace {

using namespace std::string_literals;

TEST(Printable, SpellsOutWhatATerminalWouldObey) {
  EXPECT_EQ(printable("sql-7 \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x90\xa6 \\ '\""),
            "sql-7 \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x90\xa6 \\ '\"");
  EXPECT_EQ(printable("a\0b\x1b[31m\x7f\n\r\t"s), "a\\x00b\\x1b[31m\\x7f\\n\\r\\t");
  EXPECT_EQ(printable("\xe2\x80\xaetxt.exe"), "\\u202etxt.exe");  // RLO
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J");  // CSI in one character
  EXPECT_EQ(printable("a\xe2\x80\x8b"
                      "b\xef\xbb\xbf"),
            "a\\u200bb\\ufeff");                            // zero width
  EXPECT_EQ(printable("\xf3\xa0\x81\x81"), "\\U000e0041");  // a tag
}

TEST(Printable, SpellsOutBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("a\xff\xc3"), "a\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
}

TEST(Cut, KeepsCharactersWhole) {
  EXPECT_EQ(cut("abc", 5), "abc");
  EXPECT_EQ(cut("abc", 2), "ab");
  EXPECT_EQ(cut("a\xc3\xa9z", 2), "a");
  EXPECT_EQ(cut("a\xc3\xa9z", 3), "a\xc3\xa9");
}

TEST(JsonString, IsJsonAndUtf8) {
  EXPECT_EQ(json_string("a\"\\\n\x01\xc3\xa9"), "\"a\\\"\\\\\\u000a\\u0001\xc3\xa9\"");
  EXPECT_EQ(json_string("\xff"), "\"\xef\xbf\xbd\"");
}

TEST(CsvField, QuotesAndDisarmsFormulas) {
  EXPECT_EQ(csv_field("plain"), "plain");
  EXPECT_EQ(csv_field("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_field("a\"b"), "\"a\"\"b\"");
  EXPECT_EQ(csv_field("two\nlines"), "two\\nlines");
  EXPECT_EQ(csv_field("=1+1"), "'=1+1");
  EXPECT_EQ(csv_field("@SUM(A1,2)"), "\"'@SUM(A1,2)\"");
  EXPECT_EQ(csv_field("-x"), "'-x");
  EXPECT_EQ(csv_field("+x"), "'+x");
  EXPECT_EQ(csv_field("\t=1"), "\\t=1");
}

TEST(HtmlText, NeitherMarkupNorControls) {
  EXPECT_EQ(html_text("<b a='1' b=\"2\">&\n\x1b"),
            "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;&#10;\\x1b");
  EXPECT_EQ(html_name("<\xe2\x80\xae"), "<bdi>&lt;\\u202e</bdi>");
}

TEST(PrometheusLabel, EscapesBackslashAndQuote) {
  EXPECT_EQ(prometheus_label("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
}

}  // namespace
}  // namespace loratory
