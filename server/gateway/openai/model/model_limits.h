#pragma once

#include <optional>

#include "server/gateway/access/api_keys.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"

namespace aludel {

// Whether the model's decode servers can do what `request` asks of them, as far as they have told us (while
// none is ready, everything passes). They would refuse it themselves, but do not know what a client calls
// the parameter.
std::optional<ApiError> CheckModelLimits(const ServedModel& model, const Router& router,
                                         const CompletionRequest& request);
// Whether the client's key allows what `request` asks for.
std::optional<ApiError> CheckKeyLimits(const KeyLimits& limits, const CompletionRequest& request);

}  // namespace aludel
