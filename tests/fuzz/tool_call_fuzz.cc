// A model's answer in some dialect of tool calls: cutting it differently must not change what is read, and
// what is read as a call must be one.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/tools/tool_call_parser.h"

namespace aludel {
namespace {

struct Parsed {
  std::string text;
  std::vector<std::string> calls;
  bool operator==(const Parsed&) const = default;
};

Parsed Parse(const ToolCallParser::Options& options, absl::string_view answer, size_t piece) {
  ToolCallParser parser(options);
  Parsed parsed;
  const auto add = [&](const ToolCallParser::Output& output) {
    parsed.text += output.text;
    for (const ToolCall& call : output.calls) {
      if (call.name != "clock" && call.name != "weather") std::abort();
      if (!nlohmann::json::parse(call.arguments).is_object()) std::abort();
      parsed.calls.push_back(call.name + call.arguments);
    }
  };
  for (; !answer.empty(); answer.remove_prefix(std::min(piece, answer.size()))) {
    add(parser.Push(answer.substr(0, piece)));
  }
  add(parser.Finish());
  if (parser.calls() != parsed.calls.size() || parsed.calls.size() > options.max_calls) std::abort();
  return parsed;
}

}  // namespace
}  // namespace aludel

// Byte 0 picks dialect and whether a call is required, byte 1 the pieces; the answer follows.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  if (size < 2) return 0;
  const ToolCallParser::Options options = {.dialect = static_cast<ToolDialect>(bytes[0] % 4),
                                           .names = {"clock", "weather"},
                                           .required = (bytes[0] & 4) != 0,
                                           .max_calls = (bytes[0] & 8) != 0 ? size_t{1} : size_t{128}};
  const absl::string_view answer(reinterpret_cast<const char*>(bytes) + 2, size - 2);
  if (Parse(options, answer, std::max<size_t>(1, answer.size())) != Parse(options, answer, 1 + bytes[1])) {
    std::abort();
  }
  return 0;
}
