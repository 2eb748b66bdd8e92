#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// Text for HTML or SVG content and for quoted attributes.
std::string EscapeHtml(absl::string_view text);

// A report as one HTML file: no font, script or picture comes from anywhere else, and it follows the
// reader's light or dark mode. Its policy allows the <style> and <script> elements that it is made with, and no others, no
// style attributes and no handlers in attributes.
struct HtmlPage {
  std::string title;             // text; also the first heading
  absl::string_view width;       // CSS, that lines are wrapped at
  absl::string_view style = {};  // more CSS; it has --ink, --soft, --line and --ground
  std::string body;              // HTML behind the heading
};
std::string RenderPage(const HtmlPage& page);

}  // namespace aludel
