#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/model/served_models.h"

namespace aludel {

// A list of token ids named `param`, which may be empty.
std::optional<ApiError> ParseTokenIds(const nlohmann::ordered_json& value, absl::string_view param,
                                      std::vector<int32_t>* ids);
// What each of them may be, as a JSON schema.
nlohmann::ordered_json TokenIdSchema();
// Ids that a client made itself must be in the vocabulary.
std::optional<ApiError> CheckTokenIds(const ServedModel& model, absl::string_view param,
                                      absl::Span<const int32_t> ids);

}  // namespace aludel
