#pragma once

#include "absl/strings/string_view.h"

namespace aludel {

// The web page at `/`: page.html with page.css and page.js in it, built into the binary.
extern const absl::string_view kPage;

// It runs its own script, talks to its own origin, and cannot be framed.
inline constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src "
    "'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

}  // namespace aludel
