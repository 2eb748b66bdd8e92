#pragma once

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_message.h"

namespace aludel {

// POST /v1/load_lora_adapter {"lora_name", "lora_path"[, "base_model_name"][, "cache_of"]} and /v1/unload_lora_adapter {"lora_name"},
// as vLLM has them: on every decode server of the base, whose adapter_root the path is below. Each waits for the servers.
HttpResponse ServeLoadAdapter(const ServedModels& models, const Router& router, absl::string_view body);
HttpResponse ServeUnloadAdapter(const ServedModels& models, const Router& router, absl::string_view body);

nlohmann::ordered_json DescribeLoadAdapterBody();
nlohmann::ordered_json DescribeUnloadAdapterBody();

}  // namespace aludel
