#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// The salt that keeps one tenant's cached prefixes from another's. Its first 16 bytes are of a SHA-256 over the name of the
// API key (not its secret, so that a new secret of the same name keeps its cache), by which a prefix store counts what a
// tenant has; zeros without a key. The other 16 are of one over the name and the request's own `cache_salt`, each with
// its length in front, so that no other pair gives the same salt. Empty where both are: all share one cache.
std::string MakeCacheSalt(absl::string_view key_name, absl::string_view request_salt);

}  // namespace aludel
