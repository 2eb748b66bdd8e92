#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// What an operator proves itself with, to a server that knows only its SHA-256.
using TokenHash = std::array<uint8_t, 32>;

// From 64 hexadecimal digits.
absl::StatusOr<TokenHash> ParseSha256(absl::string_view hex);
// Whether `authorization` is "Bearer " and the token. Takes equally long for all that are as long.
bool HasToken(absl::string_view authorization, const TokenHash& token_sha256);

}  // namespace aludel
