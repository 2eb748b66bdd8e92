#include "server/rpc/workflow_fields.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::Status CheckName(absl::string_view field, const std::string& name) {
  if (!name.empty() && name.size() <= kMaxWorkflowNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("workflow.", field, ": found ", name.size(), " bytes, want 1 to ", kMaxWorkflowNameBytes));
}

}  // namespace

absl::Status CheckWorkflow(const v1::Workflow& workflow) {
  ALUDEL_RETURN_IF_ERROR(CheckName("id", workflow.id()));
  ALUDEL_RETURN_IF_ERROR(CheckName("agent", workflow.agent()));
  if (workflow.next_size() > kMaxNextAgents) {
    return absl::InvalidArgumentError(absl::StrCat("workflow.next: found ", workflow.next_size(),
                                                   " agents, want at most ", kMaxNextAgents));
  }
  for (const std::string& agent : workflow.next()) ALUDEL_RETURN_IF_ERROR(CheckName("next", agent));
  return absl::OkStatus();
}

}  // namespace aludel
