#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// The inline elements called `tag` ("script", "style") of a page, as sources of a Content-Security-Policy: 'sha256-...' of
// each one's text, in order, or 'none'. With these a browser runs what the page was made with and nothing that got into it
// later; style attributes and event handlers in attributes are not allowed by them.
std::string InlineSources(absl::string_view html, absl::string_view tag);

}  // namespace aludel
