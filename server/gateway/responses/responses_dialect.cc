#include "server/gateway/responses/responses_dialect.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/openai/content/call_entry.h"
#include "server/gateway/responses/responses_writer.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kPrevious = "\"previous_response_id\"";
// What a request may bring of earlier answers: several times what fits into the body of one.
constexpr size_t kMaxCarried = 16 << 20;
constexpr int kMaxLookups = 16;
// Of a request that was not weighed as one that brings something: little enough for the thread that it came on.
constexpr size_t kMaxCarriedUnseen = 16 << 10;

// The answer as the next request's conversation has it.
ordered_json AsMessage(const ordered_json& output) {
  ordered_json message = {{"role", "assistant"}, {"content", ""}};
  for (const ordered_json& item : output) {
    if (item["type"] == "message") {
      auto& text = message["content"].get_ref<std::string&>();
      absl::StrAppend(&text, text.empty() ? "" : "\n",
                      item["content"][0]["text"].get_ref<const std::string&>());
      continue;
    }
    if (item["type"] == "reasoning") {
      message["reasoning_content"] = item["content"][0]["text"];
      continue;
    }
    message["tool_calls"].push_back(CallEntry(
        item["call_id"], item["name"], CallArguments(item["arguments"].get_ref<const std::string&>())));
  }
  return message;
}

HttpResponse NotFound(const std::string& id) {
  ApiError error;
  error.status = 404;
  error.message = absl::StrCat("Response with id '", id, "' not found.");
  if (absl::StrContains(id, '/')) {
    error.message = absl::StrCat("'/v1/responses/", id, "' is not served, only '/v1/responses/{id}'");
  }
  error.param = "id";
  error.code = "response_not_found";
  return error.ToResponse();
}

}  // namespace

ResponsesDialect::ResponsesDialect(ResponseStore* store, std::string client) {
  context_.store = store;
  context_.client = std::move(client);
  context_.now = MonotonicNow();
  context_.max_carried = kMaxCarriedUnseen;
}

size_t ResponsesDialect::Weigh(absl::string_view body) {
  // Looked for and not parsed: one that is written in another way brings little, or is refused. The text may stand
  // elsewhere in a body, too, so that the one that brings most counts.
  size_t brings = 0;
  size_t name = body.find(kPrevious);
  for (int i = 0; i < kMaxLookups && name != absl::string_view::npos; ++i) {
    const size_t begin = body.find('"', name + kPrevious.size());
    const size_t end = begin == absl::string_view::npos ? begin : body.find('"', begin + 1);
    if (end == absl::string_view::npos) break;
    const std::string id(body.substr(begin + 1, end - begin - 1));
    if (const auto stored = context_.store->Find(context_.client, id, context_.now)) {
      brings = std::max(brings, stored->messages.size());
    }
    name = body.find(kPrevious, name + kPrevious.size());
  }
  context_.max_carried = std::min(std::max(brings, kMaxCarriedUnseen), kMaxCarried);
  if (body.find("\"item_reference\"") != absl::string_view::npos) {
    brings += kMaxCarriedUnseen;  // which is too much for the thread that it came on
    context_.max_carried = kMaxCarried;
  }
  return body.size() + brings;
}

std::optional<ApiError> ResponsesDialect::Read(absl::string_view body, CompletionRequest* request) {
  if (auto error = ParseResponsesRequest(body, context_, request, &request_)) return error;
  if (share_ == nullptr || request_.carried == 0) return std::nullopt;
  if (share_->share.GrowTo(share_->share.bytes() + request_.carried)) return std::nullopt;
  ApiError error;
  error.status = 503;
  error.type = "server_error";
  error.code = "overloaded";
  error.message =
      "the gateway holds as many bytes of requests as it may (max_total_body_bytes), and the conversation "
      "that this one "
      "brings along does not fit; try again soon";
  error.retry_after_seconds = 1;
  return error;
}

std::unique_ptr<AnswerWriter> ResponsesDialect::Writer(const CompletionRequest& request,
                                                       CompletionIdentity identity) {
  std::string conversation;  // a JSON list that is left open
  if (request_.store) {
    for (size_t i = request_.instructions; i < request.messages.size(); ++i) {
      absl::StrAppend(&conversation, conversation.empty() ? "[" : ",", Dump(request.messages[i]));
    }
  }
  auto keep = [store = request_.store ? context_.store : nullptr, client = context_.client,
               conversation = std::move(conversation), share = std::move(share_)](
                  const std::string& id, std::string body, const ordered_json& output) {
    if (store == nullptr) return;
    StoredResponse stored;
    stored.body = std::move(body);
    stored.messages = absl::StrCat(conversation, ",", Dump(AsMessage(output)), "]");
    for (const ordered_json& item : output) stored.items.emplace_back(item["id"], Dump(item));
    store->Put(client, id, std::move(stored), MonotonicNow());
  };
  return std::make_unique<ResponsesWriter>(std::move(identity), std::move(request_.repeats), std::move(keep));
}

HttpResponse GetResponse(ResponseStore* store, const std::string& client, const std::string& id,
                         absl::string_view query) {
  if (absl::c_linear_search(absl::StrSplit(query, '&'), "stream=true")) {
    return UnsupportedParameter("stream", "'stream' is not supported: an answer that is kept comes whole")
        .ToResponse();
  }
  const std::shared_ptr<const StoredResponse> found = store->Find(client, id, MonotonicNow());
  if (found == nullptr) return NotFound(id);
  HttpResponse response;
  response.body = found->body;
  return response;
}

HttpResponse DeleteResponse(ResponseStore* store, const std::string& client, const std::string& id) {
  if (!store->Erase(client, id, MonotonicNow())) return NotFound(id);
  HttpResponse response;
  response.body = Dump({{"id", id}, {"object", "response"}, {"deleted", true}});
  return response;
}

}  // namespace aludel
