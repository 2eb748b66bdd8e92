#include "server/observe/logging.h"

#include <gtest/gtest.h>

#include <sstream>

#include "nlohmann/json.hpp"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// What a logger of ours writes for one message.
std::string Line(bool json, const std::string& message) {
  std::ostringstream out;
  spdlog::logger logger("test", std::make_shared<spdlog::sinks::ostream_sink_st>(out));
  logger.set_formatter(MakeLogFormatter(json));
  logger.warn("request={} ended", message);
  return out.str();
}

TEST(Logging, KeepsWhatAPeerSaysOnItsLineAndOffTheTerminal) {
  const std::string hostile =
      "a\nforged info line\r\t\x1b[2J\x7f\x07\xc2\x9b"
      "31m\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6\x9b\xe0\x82\x9b\xff";
  const std::string text = Line(false, hostile);
  EXPECT_NE(text.find("request=a\\nforged info line\\r\\t\\x1b[2J\\x7f\\x07\\u009b31m\\u2028\\u202e\\u2066"
                      "\\x9b\\xe0\\x82\\x9b\\xff ended\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const std::string json = Line(true, hostile);
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  for (const char c : json.substr(0, json.size() - 1)) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << int{c};
  EXPECT_EQ(nlohmann::json::parse(json)["message"].get<std::string>().find("request=a\nforged"), 0u);
}

TEST(Logging, LeavesOrdinaryTextAlone) {
  const std::string text =
      "C:\\path na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x99\x82 50% {} \"quoted\"";
  EXPECT_EQ(EscapeControls(text), text);
  EXPECT_NE(Line(false, text).find("request=" + text + " ended\n"), std::string::npos);
  EXPECT_EQ(EscapeControls(""), "");
  EXPECT_EQ(EscapeControls(std::string("\0x", 2)), "\\x00x");
}

}  // namespace
}  // namespace aludel
