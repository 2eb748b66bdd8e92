#include "server/gateway/openai/tools/tool_dialect.h"

#include "absl/strings/match.h"

namespace aludel {

ToolDialect DetectToolDialect(absl::string_view chat_template) {
  if (!absl::StrContains(chat_template, "tools")) return ToolDialect::kNone;
  if (absl::StrContains(chat_template, "[TOOL_CALLS]")) return ToolDialect::kMistral;
  if (absl::StrContains(chat_template, "<tool_call>")) return ToolDialect::kHermes;
  if (absl::StrContains(chat_template, "\"parameters\"")) return ToolDialect::kLlama;
  return ToolDialect::kNone;
}

}  // namespace aludel
