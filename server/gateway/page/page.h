#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/tool/html_policy.h"

namespace aludel {

// The web page at `/`: page.html with page.css and this folder's scripts in it, built into the binary.
extern const absl::string_view kPage;

// Its Content-Security-Policy: it runs its own script, talks to its own origin, cannot be framed, and
// never makes markup of text.
inline std::string PagePolicy() {
  return absl::StrCat(
      "default-src 'none'; script-src ", InlineSources(kPage, "script"), "; style-src ",
      InlineSources(kPage, "style"),
      "; img-src data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri "
      "'none'; require-trusted-types-for 'script'; trusted-types 'none'");
}

}  // namespace aludel
