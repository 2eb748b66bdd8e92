#include "server/gateway/openai/model/model_limits.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/gateway/openai/fields/token_ids.h"

namespace aludel {

std::optional<ApiError> CheckModelLimits(const ServedModel& model, const Router& router,
                                         const CompletionRequest& request) {
  const v1::SamplingParams& sampling = request.sampling;
  for (const v1::LogitBias& bias : sampling.logit_bias()) {
    const int32_t token = bias.token();
    if (auto error = CheckTokenIds(model, "logit_bias", {&token, 1})) return error;
  }
  if (auto error = CheckTokenIds(model, "stop_token_ids", sampling.stop_token_ids())) return error;
  if (auto error = CheckTokenIds(model, "allowed_token_ids", sampling.allowed_token_ids())) return error;
  const uint32_t max_choices = router.State(model.name).max_choices;
  if (max_choices > 0 && sampling.choices() > max_choices) {
    return Unprocessable("n", absl::StrCat("'n' is ", sampling.choices(), "; no server of model '",
                                           model.name, "' runs more than ", max_choices, " choices at once"));
  }
  if (request.format.empty()) return std::nullopt;
  const std::vector<std::string> formats = router.Formats(model.name);
  if (formats.empty() || absl::c_linear_search(formats, request.format)) return std::nullopt;
  return InvalidParameter("aludel.format", absl::StrCat("'aludel.format' is '", request.format,
                                                        "', want one of ", absl::StrJoin(formats, ", ")));
}

std::optional<ApiError> CheckKeyLimits(const KeyLimits& limits, const CompletionRequest& request) {
  if (limits.max_n > 0 && request.sampling.choices() > static_cast<uint32_t>(limits.max_n)) {
    return InvalidParameter("n", absl::StrCat("'n' is ", request.sampling.choices(),
                                              "; this API key may ask for at most ", limits.max_n));
  }
  if (limits.max_concurrent > 0 &&
      request.sampling.choices() > static_cast<uint32_t>(limits.max_concurrent)) {
    return InvalidParameter(
        "n", absl::StrCat("'n' is ", request.sampling.choices(), "; this API key may have at most ",
                          limits.max_concurrent, " answers made at once"));
  }
  if (!limits.may_set_priority && request.priority != 0) {
    return InvalidParameter(
        "priority", absl::StrCat("'priority' is ", request.priority, "; this API key may not set it"));
  }
  return std::nullopt;
}

}  // namespace aludel
