#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "server/gateway/routing/policy/choose_replica.h"

namespace aludel {

// Published policies that the gateway's is compared with, over the same views.
constexpr char kLeastTtftExact[] = "least_ttft_exact";
bool IsOtherPolicy(const std::string& policy);
std::optional<size_t> ChooseOtherwise(const std::string& policy, uint64_t key, int64_t prompt_tokens,
                                      double objective_seconds, absl::Span<const ReplicaView> views);

}  // namespace aludel
