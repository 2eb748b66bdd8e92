#pragma once

#include <optional>

#include "server/gateway/api_error.h"
#include "server/gateway/completion_request.h"
#include "server/gateway/router.h"
#include "server/gateway/served_models.h"

namespace aludel {

// Whether the model's decode servers can do what `request` asks of them, as far as they have told us (while
// none is ready, everything passes). They would refuse it themselves, but do not know what a client calls
// the parameter.
std::optional<ApiError> CheckModelLimits(const ServedModel& model, const Router& router,
                                         const CompletionRequest& request);

}  // namespace aludel
