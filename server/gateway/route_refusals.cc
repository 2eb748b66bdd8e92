#include "server/gateway/route_refusals.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/rpc_fields.h"

namespace aludel {
namespace {

HttpResponse NoBodyHere(const HttpRequest& request) {
  ApiError error;
  error.status = 413;
  error.message = absl::StrCat(Quotable(request.method), " ", Quotable(request.path), " takes no body");
  error.code = "body_not_taken";
  return error.ToResponse();
}

HttpResponse CompressedBody(absl::string_view encoding) {
  ApiError error;
  error.status = 415;
  error.message =
      absl::StrCat("bodies are read as they are: Content-Encoding is '", Quotable(encoding), "', want none");
  error.code = "unsupported_content_encoding";
  return error.ToResponse();
}

}  // namespace

// Paths and methods are quoted in part: they need no key to be as long as a header.
HttpResponse NoSuchPath(const HttpRequest& request) {
  ApiError error;
  error.status = 404;
  error.message =
      absl::StrCat("Unknown request URL: ", Quotable(request.method), " ", Quotable(request.path));
  if (const absl::string_view why = WhyNotServed(request.path); !why.empty()) {
    absl::StrAppend(&error.message, ". The models of this gateway generate text, ", why);
  }
  error.code = "unknown_url";
  HttpResponse response = error.ToResponse();
  // Ollama's clients show a text, and of anything else nothing.
  if (absl::StartsWith(request.path, "/api/")) response.body = Dump({{"error", error.message}});
  return response;
}

HttpResponse WrongMethod(const HttpRequest& request, const Route& route) {
  ApiError error;
  error.status = 405;
  error.message =
      absl::StrCat(Quotable(request.path), " takes ", route.method, ", not ", Quotable(request.method));
  error.code = "method_not_allowed";
  HttpResponse response = error.ToResponse();
  response.headers.push_back({"Allow", route.Allow()});
  return response;
}

ApiError NoAdmin() {
  ApiError error;
  error.status = 403;
  error.message = "this path is for API keys with admin=1 in access.keys_file";
  error.code = "admin_key_required";
  return error;
}

std::optional<HttpResponse> RefuseBody(const HttpRequest& request, bool preflight, const Route* route) {
  if (preflight) return NoBodyHere(request);
  if (route == nullptr) return NoSuchPath(request);
  if (!route->Takes(request.method)) return WrongMethod(request, *route);
  if (!route->TakesBody()) return NoBodyHere(request);
  const absl::string_view encoding = request.Header("content-encoding");
  if (!encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) return CompressedBody(encoding);
  return std::nullopt;
}

}  // namespace aludel
