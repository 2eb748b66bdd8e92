#include "server/gateway/openai/reasoning/reasoning_splitter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <utility>

namespace aludel {
namespace {

using Mode = ReasoningSplitter::Mode;
using Parts = std::pair<std::string, std::string>;

// In pieces of so many bytes.
Parts Split(Mode mode, const std::string& text, size_t piece) {
  ReasoningSplitter splitter(mode);
  Parts parts;
  const auto add = [&](const ReasoningSplitter::Output& output) {
    parts.first += output.reasoning;
    parts.second += output.text;
  };
  for (size_t at = 0; at < text.size(); at += piece) add(splitter.Push(text.substr(at, piece)));
  add(splitter.Finish());
  return parts;
}

TEST(ReasoningSplitter, TellsThoughtFromAnswerWhereverPiecesBreak) {
  for (size_t piece = 1; piece < 40; ++piece) {
    EXPECT_EQ(Split(Mode::kMayBegin, "<think>\nHm, a < b.\n\nSo.\n</think>\n\nYes.\n", piece),
              Parts("Hm, a < b.\n\nSo.", "Yes.\n"));
    EXPECT_EQ(Split(Mode::kInside, "Hm </thin> \n</think> Yes.", piece), Parts("Hm </thin>", "Yes."));
    EXPECT_EQ(Split(Mode::kMayBegin, "<thinner> is no marker", piece), Parts("", "<thinner> is no marker"));
    EXPECT_EQ(Split(Mode::kMayBegin, "a <think>b</think>", piece), Parts("", "a <think>b</think>"));
    EXPECT_EQ(Split(Mode::kMayBegin, "<think>\n\n</think>\n\nYes.", piece), Parts("", "Yes."));
    EXPECT_EQ(Split(Mode::kMayBegin, "<think>cut off </th", piece), Parts("cut off </th", ""));
    EXPECT_EQ(Split(Mode::kMayBegin, " <thi", piece), Parts("", " <thi"));
    EXPECT_EQ(Split(Mode::kOff, "<think>a</think>b", piece), Parts("", "<think>a</think>b"));
  }
}

TEST(ReasoningSplitter, ShowsWhatIsNoMarkerAtOnce) {
  ReasoningSplitter splitter(Mode::kInside);
  EXPECT_EQ(splitter.Push("thought").reasoning, "thought");
  EXPECT_TRUE(splitter.inside());
  EXPECT_EQ(splitter.Push("</think>answer").text, "answer");
  EXPECT_FALSE(splitter.inside());
}

TEST(ReasoningSplitter, HoldsNoWhiteSpaceWithoutEnd) {
  ReasoningSplitter begin(Mode::kMayBegin);
  EXPECT_EQ(begin.Push(std::string(100, ' ')).text.size(), 100);
  ReasoningSplitter inside(Mode::kInside);
  inside.Push("a");
  EXPECT_EQ(inside.Push(std::string(100, ' ')).reasoning.size(), 100 - ReasoningSplitter::kMaxSpace);
}

// What comes out of any text does not depend on how it was cut, nothing but markers and white space is lost, and what
// waits is bounded.
TEST(ReasoningSplitter, CutsChangeNothing) {
  std::mt19937 random(std::random_device{}());
  const auto below = [&random](size_t end) { return random() % end; };
  const std::string parts[] = {
      "<think>", "</think>",           "<",       "</", "think>", "/think>", " ", "\n\n", "a",
      "b c",     std::string(50, ' '), "\xc3\xa9"};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (size_t i = below(12); i > 0; --i) text += parts[below(std::size(parts))];
    for (const Mode mode : {Mode::kOff, Mode::kMayBegin, Mode::kInside}) {
      const Parts whole = Split(mode, text, text.size() + 1);
      ReasoningSplitter splitter(mode);
      Parts cut;
      const auto add = [&](const ReasoningSplitter::Output& output) {
        cut.first += output.reasoning;
        cut.second += output.text;
      };
      size_t pushed = 0;
      while (pushed < text.size()) {
        const size_t piece = std::min(1 + below(9), text.size() - pushed);
        add(splitter.Push(text.substr(pushed, piece)));
        pushed += piece;
        if (mode == Mode::kOff) {
          ASSERT_EQ(cut.second.size(), pushed);
        }
      }
      add(splitter.Finish());
      ASSERT_EQ(cut, whole) << testing::PrintToString(text) << " mode " << static_cast<int>(mode);
      ASSERT_LE(whole.first.size() + whole.second.size(), text.size());
      if (mode == Mode::kInside && text.find("</think>") == std::string::npos) {
        ASSERT_EQ(whole.second, "") << text;
      }
    }
  }
}

}  // namespace
}  // namespace aludel
