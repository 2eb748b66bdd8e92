#include "server/gateway/openapi/docs_page.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/gateway/openapi/openapi.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

void AddFields(const ordered_json& schema, std::string* html) {
  if (!schema.contains("properties")) return;
  *html += "<table><thead><tr><th>field<th>may be</thead><tbody>\n";
  for (const auto& [name, field] : schema["properties"].items()) {
    absl::StrAppend(html, "<tr><th scope=row><code>", Escaped(name), "</code><td><code>",
                    Escaped(field.dump()), "</code>\n");
  }
  *html += "</tbody></table>\n";
}

std::string MakePage() {
  const ordered_json& api = OpenApi();
  std::string html =
      "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width\">"
      "<meta name=color-scheme content=\"light dark\"><title>aludel-gateway: "
      "API</title></head>\n<body><h1>API</h1>\n"
      "<p>From <a href=\"/openapi.json\">/openapi.json</a>. Fields that are not named are ignored, or "
      "refused where they "
      "would change the answer.</p>\n";
  for (const auto& [path, methods] : api["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      absl::StrAppend(&html, "<h2><code>", absl::AsciiStrToUpper(method), " ", Escaped(path),
                      "</code></h2>\n<p>", Escaped(operation["summary"].get<std::string>()),
                      operation.contains("security") ? ". Needs a key where there are keys" : "", ".</p>\n");
      if (operation.contains("requestBody")) {
        AddFields(operation["requestBody"]["content"]["application/json"]["schema"], &html);
      }
    }
  }
  return html + "</body></html>\n";
}

}  // namespace

HttpResponse DocsPage() {
  static const auto* const made = new std::string(MakePage());
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = {
      {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"},
      {"X-Content-Type-Options", "nosniff"}};
  response.body = *made;
  return response;
}

}  // namespace aludel
