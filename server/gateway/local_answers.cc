#include "server/gateway/local_answers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/gateway/anthropic/count_tokens.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/grpc_error.h"
#include "server/gateway/openai/model/adapter_requests.h"
#include "server/gateway/openai/model/model_list.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/openapi/docs_page.h"
#include "server/gateway/openapi/openapi.h"
#include "server/gateway/page/page.h"
#include "server/gateway/responses/responses_dialect.h"

namespace aludel {
namespace {

HttpResponse Page() {
  static const std::string* const policy = new std::string(PagePolicy());
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = {{"Content-Security-Policy", *policy}, {"X-Content-Type-Options", "nosniff"}};
  response.body = std::string(kPage);
  return response;
}

// What a path says behind its beginning.
std::string Rest(const HttpRequest& request, absl::string_view beginning) {
  return PercentDecode(absl::StripPrefix(CanonicalPath(request.path), beginning));
}

}  // namespace

HttpResponse LocalAnswers::Answer(const HttpRequest& request, const Route& asked,
                                  const RequestIdentity& identity) const {
  const absl::string_view route = asked.path;
  if (route == "/") return Page();
  if (route == "/v1/models") return ListModels(*models_, *router_);
  if (route == "/v1/models/*") return DescribeModel(*models_, *router_, Rest(request, "/v1/models/"));
  if (route == "/tokenize") {
    return ServeTokenize(*models_, request.body,
                         [this](const std::string& name) { return router_->State(name).max_context; });
  }
  if (route == "/v1/responses/*") {
    const std::string id = Rest(request, "/v1/responses/");
    return request.method == "DELETE" ? DeleteResponse(responses_, identity.client, id)
                                      : GetResponse(responses_, identity.client, id, request.query);
  }
  if (route == "/v1/messages/count_tokens") {
    HttpResponse response;
    const std::optional<ApiError> error = CountTokens(*models_, request.body, &response);
    return error ? error->ToResponse() : response;
  }
  if (route == "/v1/load_lora_adapter") return ServeLoadAdapter(*models_, *router_, request.body);
  if (route == "/v1/unload_lora_adapter") return ServeUnloadAdapter(*models_, *router_, request.body);
  if (route == "/detokenize") return ServeDetokenize(*models_, request.body);
  if (route == "/ready") return readiness_->Ready(request);
  if (route == "/version") return JsonResponse(200, {{"version", ALUDEL_VERSION}});
  if (route == "/metrics") {
    HttpResponse response;
    response.content_type = Metrics::kContentType;
    response.body = metrics_->Render();
    return response;
  }
  if (route == "/openapi.json") return JsonResponse(200, OpenApi());
  if (route == "/docs") return DocsPage();
  if (const auto admin = operator_.Answer(request)) return *admin;
  if (route == "/health") return readiness_->Health();
  return FromGrpcStatus({grpc::StatusCode::INTERNAL, absl::StrCat("nothing answers the route ", route)})
      .ToResponse();
}

}  // namespace aludel
