#include "server/gateway/openai/model/adapter_requests.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/grpc_error.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/routing/adapter_calls.h"
#include "server/rpc/rpc_fields.h"
#include "server/rpc/rpc_status.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// What the two bodies hold.
struct AdapterFields {
  std::string name;
  std::string directory;
  std::string base;      // "": the only model
  std::string cache_of;  // "": "adapter"
};

std::string ReadText(JsonFields& fields, absl::string_view name) {
  fields.Require(name);
  const std::string text = fields.String(name).value_or("");
  if (!fields.error() && text.empty()) fields.Fail(name, "is required");
  return text;
}

AdapterFields ReadFields(JsonFields& fields, bool load) {
  AdapterFields read;
  read.name = ReadText(fields, "lora_name");
  if (!load) return read;
  read.directory = ReadText(fields, "lora_path");
  read.base = fields.String("base_model_name").value_or("");
  read.cache_of = fields.String("cache_of").value_or("");
  return read;
}

std::optional<ApiError> Parse(absl::string_view body, bool load, AdapterFields* read) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  *read = ReadFields(fields, load);
  return fields.error();
}

// A text, as vLLM answers.
HttpResponse Done(absl::string_view name, absl::string_view what) {
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = absl::StrCat("Success: LoRA adapter '", name, "' ", what, " successfully.");
  return response;
}

HttpResponse Failed(const absl::Status& status) {
  ApiError error = FromGrpcStatus(ToGrpc(status));
  if (absl::IsAlreadyExists(status)) {
    error = InvalidParameter("lora_name", status.message());
  } else if (absl::IsPermissionDenied(status)) {
    error = InvalidParameter("lora_path", status.message());
  }
  return error.ToResponse();
}

}  // namespace

HttpResponse ServeLoadAdapter(const ServedModels& models, const Router& router, absl::string_view body) {
  AdapterFields read;
  if (auto error = Parse(body, /*load=*/true, &read)) return error->ToResponse();
  if (read.base.empty() && models.all().size() > 1) {
    return InvalidParameter("base_model_name",
                            "'base_model_name' is required where several models are served")
        .ToResponse();
  }
  const ServedModel* base = models.all().front().get();
  if (!read.base.empty()) base = models.Find(read.base);
  if (base == nullptr || (!read.base.empty() && base->name != read.base)) {
    return ModelNotFound(read.base).ToResponse();
  }
  const ServedModel* const taken = models.Find(read.name);
  if (taken != nullptr && (taken != base || taken->name == read.name)) {
    return InvalidParameter("lora_name", absl::StrCat("'lora_name' is '", read.name,
                                                      "', which is a model of this gateway already"))
        .ToResponse();
  }
  v1::LoadAdapterRequest request;
  request.set_name(read.name);
  request.set_directory(read.directory);
  request.set_cache_of(read.cache_of);
  const absl::Status status = LoadAdapter(router.targets(), base->name, request);
  return status.ok() ? Done(read.name, "added") : Failed(status);
}

HttpResponse ServeUnloadAdapter(const ServedModels& models, const Router& router, absl::string_view body) {
  AdapterFields read;
  if (auto error = Parse(body, /*load=*/false, &read)) return error->ToResponse();
  const ServedModel* const base = models.Find(read.name);
  if (base == nullptr || base->name == read.name) return ModelNotFound(Quotable(read.name)).ToResponse();
  const absl::Status status = UnloadAdapter(router.targets(), base->name, read.name);
  return status.ok() ? Done(read.name, "removed") : Failed(status);
}

ordered_json DescribeLoadAdapterBody() {
  return DescribeFields([](JsonFields& fields) { ReadFields(fields, /*load=*/true); });
}

ordered_json DescribeUnloadAdapterBody() {
  return DescribeFields([](JsonFields& fields) { ReadFields(fields, /*load=*/false); });
}

}  // namespace aludel
