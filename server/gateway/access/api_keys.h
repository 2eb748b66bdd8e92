#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// What one client may use; 0: no limit.
struct KeyLimits {
  double requests_per_minute = 0;
  double tokens_per_minute = 0;  // prompt and completion
  int max_concurrent = 0;        // answers: every choice of every prompt that is asked about is one
  int max_n = 0;                 // choices of one request
  int weight = 1;                // of its share of the places where requests wait: 1 or more
  bool may_set_priority = true;
  bool admin = false;  // may add and remove adapters, reset caches, and see where others' prompts are cached
};

struct ApiKey {
  std::string name;                     // for logs; never the key
  std::array<uint8_t, 32> sha256 = {};  // of the key
  KeyLimits limits;
};

// A key is random and long, so a plain SHA-256 of it is enough: a reader of the file learns no key.
std::array<uint8_t, 32> HashApiKey(absl::string_view key);

// Reads a file of keys, one a line, `#` begins a comment:
//   NAME SHA256-IN-HEX [requests_per_minute=N] [tokens_per_minute=N] [max_concurrent=N]
//   [max_n=N] [weight=N] [may_set_priority=0|1] [admin=0|1]
// A limit that a line does not name is that of `defaults`. Errors name the file, the line, what was found and
// what was expected.
absl::StatusOr<std::vector<ApiKey>> LoadApiKeys(const std::string& path, const KeyLimits& defaults);
absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(absl::string_view text, const std::string& path,
                                                 const KeyLimits& defaults);

}  // namespace aludel
