#pragma once

#include "absl/strings/string_view.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_message.h"

namespace aludel {

// /v1/models and /v1/models/{id}: the models of a gateway, and the LoRA adapters over them.
HttpResponse ListModels(const ServedModels& models, const Router& router);
HttpResponse DescribeModel(const ServedModels& models, const Router& router, absl::string_view id);

}  // namespace aludel
