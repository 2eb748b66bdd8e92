#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// Whether a certificate with these names (the DNS and URI entries of its subjectAltName) is one of
// `identities`. An identity is a whole name, or "*.suffix" for every DNS name that ends in ".suffix". Case
// does not matter.
bool HasIdentity(absl::Span<const std::string> identities, absl::Span<const std::string> names);

// Whether HasIdentity understands it: a name, or "*." and a name, without blanks and further asterisks.
bool IsIdentityPattern(absl::string_view identity);

}  // namespace aludel
