#include "scheduler_sim/trace/client_windows.hpp"

#include <gtest/gtest.h>

#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

const std::string kHeader =
    "category,model,client_id,window_start_s,rate_rps,cv,pattern,shape,scale\n";

std::string windows_error(const std::string& bytes) {
  try {
    read_client_windows_from(bytes, "w");
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(ClientWindows, AreReadInFileOrder) {
  const auto windows =
      read_client_windows_from(kHeader +
                                   "language,m-large,0,0,1.33,8.5,Weibull,0.375,0.397\r\n"
                                   "reason,deepseek-r1,7,1200,5e-05,,,,\n",
                               "w");
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0],
            (ClientWindow{"language", "m-large", 0, 0, 1.33, 8.5, GapLaw::weibull, 0.375, 0.397}));
  EXPECT_EQ(windows[1],
            (ClientWindow{"reason", "deepseek-r1", 7, 1200, 5e-05, 0, GapLaw::none, 0, 0}));
}

TEST(ClientWindows, BadRowsAreErrors) {
  const auto row = [](const std::string& cells) { return kHeader + cells; };
  EXPECT_EQ(windows_error("a,b\n"),
            "w:1:1: not a table of client windows; its header is category,model,client_id,"
            "window_start_s,rate_rps,cv,pattern,shape,scale");
  EXPECT_EQ(windows_error(row("l,m,0,0,1,1,Gamma,1\n")),
            "w:2:20: 8 cells; a window has 9, without quotes");
  EXPECT_EQ(windows_error(row("l,m,x,0,1,1,Gamma,1,1\n")),
            "w:2:5: not a whole number: 'x'; it must be in 0..4294967295");
  EXPECT_EQ(windows_error(row("l,m,0,0,nan,1,Gamma,1,1\n")),
            "w:2:9: not a positive number: 'nan'; write a decimal number");
  EXPECT_EQ(windows_error(row("l,m,0,0,1,1,Pareto,1,1\n")),
            "w:2:13: unknown pattern 'Pareto'; use Gamma, Weibull or nothing");
  EXPECT_EQ(windows_error(row("l,m,0,0,1,1,Gamma,0,1\n")),
            "w:2:19: not a positive number: '0'; write a decimal number");
  EXPECT_EQ(windows_error(row("l,m,0,0,1,1,,2,\n")),
            "w:2:14: a parameter without a pattern; leave it empty");
  EXPECT_EQ(windows_error(row(",m,0,0,1,1,,,\n")), "w:2:1: an empty name; give one");
  EXPECT_EQ(windows_error(row("l,m,0,0,1,1,Gamma,1,12")),
            "w:2:23: the last row has no newline and may be cut off; append a newline if the file "
            "is whole");
}

}  // namespace
}  // namespace loratory::sim
