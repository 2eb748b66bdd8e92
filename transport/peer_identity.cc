#include "transport/peer_identity.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace aludel {
namespace {

bool IsUri(absl::string_view name) { return absl::StrContains(name, ":"); }

bool Matches(absl::string_view identity, absl::string_view name) {
  if (!absl::StartsWith(identity, "*.")) return absl::EqualsIgnoreCase(identity, name);
  // What comes before the suffix in a URI is its owner's choice, not the authority's.
  const absl::string_view suffix = identity.substr(1);
  return !IsUri(name) && name.size() > suffix.size() && absl::EndsWithIgnoreCase(name, suffix);
}

}  // namespace

bool HasIdentity(absl::Span<const std::string> identities, absl::Span<const std::string> names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::any_of(identities.begin(), identities.end(),
                       [&](const std::string& identity) { return Matches(identity, name); });
  });
}

bool IsIdentityPattern(absl::string_view identity) {
  if (absl::StartsWith(identity, "*.")) identity.remove_prefix(2);
  return !identity.empty() && std::all_of(identity.begin(), identity.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '*';
  });
}

}  // namespace aludel
