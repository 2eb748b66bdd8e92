#include "server/gateway/openai/prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/files/stop_scope.h"
#include "server/gateway/openai/chat_messages.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/fields/token_ids.h"
#include "server/gateway/openai/model/chat_context.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

ApiError ContextExceeded(absl::string_view param, absl::string_view message) {
  ApiError error = InvalidParameter(param, message);
  error.code = "context_length_exceeded";
  return error;
}

// The model that a body names.
std::optional<ApiError> FindModel(const ServedModels& models, JsonFields& fields, const ServedModel** model) {
  fields.Require("model");
  const std::string name = fields.String("model").value_or("");
  if (!fields.error() && name.empty()) fields.Fail("model", "is required");
  if (fields.error()) return fields.error();
  *model = models.Find(name);
  if (*model == nullptr) return ModelNotFound(name);
  return std::nullopt;
}

// The text, where one is given.
std::optional<std::string> ReadTokenizeFields(JsonFields& fields, bool* add_special_tokens, bool* spellings) {
  *add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  *spellings = fields.Bool("return_token_strs").value_or(false);
  fields.Describe("messages", MessagesSchema);
  return fields.String("prompt");
}

const ordered_json* FindTokens(JsonFields& fields) {
  fields.Require("tokens");
  fields.Describe("tokens", [] { return ordered_json{{"type", "array"}, {"items", TokenIdSchema()}}; });
  return fields.Find("tokens");
}

std::optional<ApiError> Tokenize(const ServedModels& models, absl::string_view body,
                                 const ServedModel** model, bool* spellings, std::vector<int32_t>* ids) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  if (auto error = FindModel(models, fields, model)) return error;
  bool add_special_tokens = true;
  const auto prompt = ReadTokenizeFields(fields, &add_special_tokens, spellings);
  if (fields.error()) return fields.error();
  if (prompt) return TokenizeText(**model, "prompt", *prompt, add_special_tokens, /*joint=*/"", ids);
  if (fields.Find("messages") == nullptr)
    return InvalidParameter("prompt", "'prompt' or 'messages' is required");
  return TokenizeChat(**model, object, ids);
}

std::optional<ApiError> Detokenize(const ServedModels& models, absl::string_view body, std::string* text) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  const ServedModel* model = nullptr;
  if (auto error = FindModel(models, fields, &model)) return error;
  const ordered_json* tokens = FindTokens(fields);
  std::vector<int32_t> ids;
  if (tokens == nullptr) return InvalidParameter("tokens", "'tokens' is required");
  if (auto error = ParseTokenIds(*tokens, "tokens", &ids)) return error;
  if (auto error = CheckTokenIds(*model, "tokens", ids)) return error;
  *text = model->tokenizer->Decode(ids, /*skip_special_tokens=*/false);
  return std::nullopt;
}

// Stands behind the last message where it is to go on: what a template writes behind it is cut off. No joint, as it is
// ASCII, and no white space, which templates strip.
constexpr absl::string_view kOpenEnd =
    "\x01"
    "open end\x01";

}  // namespace

std::optional<ApiError> RenderChat(const ServedModel& model, const CompletionRequest& request,
                                   std::string* text, std::string* joint) {
  joint->clear();
  if (model.chat_template == nullptr) {
    return InvalidParameter(
        "model", absl::StrCat("model '", model.name, "' has no chat template; use /v1/completions instead"));
  }
  ordered_json context = request.template_arguments;
  if (!context.contains("add_generation_prompt")) context["add_generation_prompt"] = true;
  context["messages"] = request.messages;
  if (auto error = SetEffort(model.thinking, model.name, request.thinking, &context)) return error;
  if (!request.tools.list.is_null()) context["tools"] = request.tools.list;
  if (model.special_tokens_as_text) {
    if (auto error = BreakSpecialTokens(*model.tokenizer, &context, joint)) {
      error->param = request.prompt_param;
      return error;
    }
  }
  if (request.continue_final_message) {
    absl::StrAppend(&context["messages"].back()["content"].get_ref<std::string&>(), kOpenEnd);
  }
  auto rendered = model.chat_template->Render(context);
  if (!rendered.ok()) return FromStatus(request.prompt_param, rendered.status());
  *text = *std::move(rendered);
  if (!request.continue_final_message) return std::nullopt;
  const size_t end = text->rfind(kOpenEnd.data(), std::string::npos, kOpenEnd.size());
  if (end == std::string::npos) {
    return InvalidParameter(
        request.continue_param,
        absl::StrCat("'", request.continue_param,
                     "' asks for the last message to go on, which is not possible: the model's chat template "
                     "does not write it as it is"));
  }
  text->resize(end);
  return std::nullopt;
}

std::optional<ApiError> CheckTextLength(const ServedModel& model, absl::string_view param,
                                        absl::string_view text, uint64_t max_context) {
  if (max_context == 0 || text.size() / max_context <= model.longest_token_bytes) return std::nullopt;
  return ContextExceeded(param, absl::StrCat("This model's maximum context length is ", max_context,
                                             " tokens, which never hold the ", text.size(), " bytes of your ",
                                             param, ". Please shorten them."));
}

std::optional<ApiError> TokenizeText(const ServedModel& model, absl::string_view param,
                                     absl::string_view text, bool add_special_tokens, absl::string_view joint,
                                     std::vector<int32_t>* ids) {
  auto encoded = model.tokenizer->Encode(text, add_special_tokens, joint);
  if (!encoded.ok()) return FromStatus(param, encoded.status());
  *ids = *std::move(encoded);
  return std::nullopt;
}

std::optional<ApiError> TokenizeChat(const ServedModel& model, const ordered_json& fields,
                                     std::vector<int32_t>* ids) {
  CompletionRequest request;
  if (auto error = ReadChatRequest(fields, &request)) return error;
  std::string text;
  std::string joint;
  if (auto error = RenderChat(model, request, &text, &joint)) return error;
  return TokenizeText(model, "messages", text, /*add_special_tokens=*/false, joint, ids);
}

std::optional<ApiError> CheckLength(const CompletionRequest& request, absl::string_view param,
                                    size_t prompt_tokens, uint64_t max_context) {
  if (prompt_tokens == 0) return InvalidParameter(param, absl::StrCat("'", param, "' holds no token"));
  if (max_context == 0) return std::nullopt;
  const std::string limit = absl::StrCat("This model's maximum context length is ", max_context, " tokens");
  if (prompt_tokens >= max_context) {
    return ContextExceeded(
        param, absl::StrCat(limit, ", of which at least one is for the answer. However, your ", param,
                            " resulted in ", prompt_tokens, " tokens. Please shorten them."));
  }
  const uint64_t answer_tokens =
      request.max_tokens_param.empty() || request.max_tokens_yields ? 0 : request.sampling.max_tokens();
  if (prompt_tokens + answer_tokens <= max_context) return std::nullopt;
  return ContextExceeded(request.max_tokens_param,
                         absl::StrCat(limit, ". However, you requested ", prompt_tokens + answer_tokens,
                                      " tokens (", prompt_tokens, " in the ", param, ", ", answer_tokens,
                                      " in the completion). Please reduce ", request.max_tokens_param,
                                      " or the length of the ", param, "."));
}

ApiError ModelNotFound(absl::string_view name) {
  ApiError error;
  error.status = 404;
  error.message = absl::StrCat("The model '", name, "' does not exist; GET /v1/models lists those that do");
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

HttpResponse ServeTokenize(const ServedModels& models, absl::string_view body,
                           const std::function<uint64_t(const std::string&)>& max_context) {
  std::vector<int32_t> ids;
  const ServedModel* model = nullptr;
  bool spellings = false;
  if (auto error = Tokenize(models, body, &model, &spellings, &ids)) return error->ToResponse();
  // By hand: as a JSON value, a million ids would be sixteen times as large.
  HttpResponse response;
  std::string& reply = response.body;
  absl::StrAppend(&reply, "{\"count\":", ids.size(), ",\"max_model_len\":", max_context(model->name),
                  ",\"tokens\":[", absl::StrJoin(ids, ","), "]");
  if (spellings) {
    reply += ",\"token_strs\":[";
    for (size_t i = 0; i < ids.size() && CheckStop().ok(); ++i) {
      const std::string text = model->tokenizer->IsSpecial(ids[i]) ? model->tokenizer->Decode({ids[i]}, false)
                                                                   : model->tokenizer->TokenBytes(ids[i]);
      absl::StrAppend(&reply, i == 0 ? "" : ",", Dump(text));
    }
    reply += "]";
  }
  reply += "}";
  return response;
}

ordered_json DescribeTokenizeBody() {
  return DescribeFields([](JsonFields& fields) {
    const ServedModel* model = nullptr;
    bool unused = false;
    static_cast<void>(FindModel(ServedModels({}), fields, &model));
    static_cast<void>(ReadTokenizeFields(fields, &unused, &unused));
  });
}

ordered_json DescribeDetokenizeBody() {
  return DescribeFields([](JsonFields& fields) {
    const ServedModel* model = nullptr;
    static_cast<void>(FindModel(ServedModels({}), fields, &model));
    static_cast<void>(FindTokens(fields));
  });
}

HttpResponse ServeDetokenize(const ServedModels& models, absl::string_view body) {
  std::string text;
  if (auto error = Detokenize(models, body, &text)) return error->ToResponse();
  return JsonResponse(200, {{"prompt", std::move(text)}});
}

}  // namespace aludel
