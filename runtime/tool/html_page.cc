#include "runtime/tool/html_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/tool/html_policy.h"

namespace aludel {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
)";
constexpr char kStyle[] = R"(<style>
:root { color-scheme: light dark; --ink: #22242a; --soft: #6c6f78; --line: #dcd9d2; --ground: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --soft: #989ca6; --line: #343840; --ground: #17191d; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.25rem; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } .grid { stroke: var(--line); }
)";

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string RenderPage(const HtmlPage& page) {
  const std::string title = EscapeHtml(page.title);
  const std::string rest =
      absl::StrCat(kStyle, "body { max-width: ", page.width, "; }\n", page.style, "</style>\n<title>", title,
                   "</title></head><body>\n<h1>", title, "</h1>\n", page.body, "</body></html>\n");
  return absl::StrCat(
      kHead, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src ",
      InlineSources(rest, "script"), "; style-src ", InlineSources(rest, "style"),
      "; base-uri 'none'; form-action 'none'\">\n", rest);
}

}  // namespace aludel
