#include "server/gateway/completions.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/gateway/cache_salt.h"
#include "server/gateway/completion_exchange.h"
#include "server/gateway/model_limits.h"
#include "server/gateway/prompt.h"
#include "server/gateway/sampling_fields.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

std::string MakeId(absl::string_view prefix) {
  thread_local absl::BitGen random;
  return absl::StrCat(prefix, absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

ApiError TooManyRequests(int max_requests) {
  ApiError error;
  error.status = 503;
  error.type = "server_error";
  error.code = "overloaded";
  error.message =
      absl::StrCat("The gateway is answering ", max_requests, " requests already; try again soon");
  error.retry_after_seconds = 1;
  return error;
}

}  // namespace

Completions::Completions(Options options, const ServedModels* models, Router* router, Metrics* metrics)
    : options_(std::move(options)), models_(models), router_(router), metrics_(metrics) {}

std::optional<ApiError> Completions::Tokenize(const ServedModel& model, CompletionRequest* request,
                                              v1::GenerateRequest* generate) const {
  const absl::string_view param = request->chat ? "messages" : "prompt";
  const uint64_t max_context = router_->State(model.name).max_context;
  std::vector<int32_t> ids = std::move(request->prompt_ids);
  if (!ids.empty()) {
    if (auto error = CheckTokenIds(model, param, ids)) return error;
  } else {
    std::string text = std::move(request->prompt);
    std::string joint;
    if (request->chat) {
      if (auto error = RenderChat(model, *request, &text, &joint)) return error;
    }
    if (auto error = CheckTextLength(model, param, text, max_context)) return error;
    // A chat template has written what stands in front of the prompt.
    if (auto error = TokenizeText(model, param, text, /*add_special_tokens=*/!request->chat, joint, &ids)) {
      return error;
    }
  }
  generate->mutable_prompt()->Assign(ids.begin(), ids.end());
  return CheckLength(*request, ids.size(), max_context);
}

std::optional<ApiError> Completions::Prepare(bool chat, const HttpRequest& http, CompletionRequest* request,
                                             v1::GenerateRequest* generate) const {
  if (auto error = chat ? ParseChatRequest(http.body, request) : ParseCompletionRequest(http.body, request)) {
    return error;
  }
  const ServedModel* model = models_->Find(request->model);
  if (model == nullptr) return ModelNotFound(request->model);
  if (auto error = CheckModelLimits(*model, *router_, *request)) return error;
  if (auto error = Tokenize(*model, request, generate)) return error;
  *generate->mutable_sampling() = request->sampling;
  FillSampling(model->defaults, generate->mutable_sampling());
  std::optional<v1::TextConstraint> constraint = request->constraint;
  if (auto error = ConstrainToCall(request->tools, model->tool_dialect, &constraint)) return error;
  if (constraint) *generate->mutable_constraint() = *std::move(constraint);
  generate->set_fidelity(request->fidelity);
  generate->set_format(request->format);
  generate->set_priority(request->priority);
  if (request->max_staleness_ms) generate->set_max_staleness_ms(*request->max_staleness_ms);
  for (const std::string& target : options_.prefill_targets) generate->add_prefill_targets(target);
  return std::nullopt;
}

void Completions::Serve(bool chat, const HttpRequest& http, const RequestIdentity& identity,
                        HttpResponder responder, OnCompletionEnd on_end) {
  CompletionRequest request;
  v1::GenerateRequest generate;
  std::optional<ApiError> error = Prepare(chat, http, &request, &generate);
  const bool admitted = !error && running_.fetch_add(1) < options_.max_requests;
  if (!error && !admitted) {
    running_.fetch_sub(1);
    error = TooManyRequests(options_.max_requests);
  }
  CompletionOutcome outcome;
  outcome.operation = chat ? "chat" : "text_completion";
  if (models_->Find(request.model) != nullptr) outcome.model = request.model;
  outcome.stream = request.stream;
  if (!request.max_tokens_param.empty()) outcome.max_tokens = request.sampling.max_tokens();
  if (request.sampling.has_temperature()) outcome.temperature = request.sampling.temperature();
  outcome.prompt_tokens = generate.prompt_size();
  if (error) {
    outcome.status = error->status;
    outcome.name = OutcomeName(error->status);
    outcome.refused = true;
    outcome.error = error->message;
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - http.received).count();
    responder.Respond(error->ToResponse());
    on_end(outcome);
    return;
  }
  generate.set_request_id(identity.id);
  generate.set_cache_salt(MakeCacheSalt(identity.client, request.cache_salt));
  CompletionExchange::Options options;
  options.identity = {.chat = chat,
                      .id = MakeId(chat ? "chatcmpl-" : "cmpl-"),
                      .created = absl::ToUnixSeconds(absl::Now()),
                      .model = request.model,
                      .include_usage = request.include_usage,
                      .may_call = request.tools.choice != Tools::Choice::kNone};
  options.choices = static_cast<int>(generate.sampling().choices());
  options.tokenizer = models_->Find(request.model)->tokenizer.get();
  if (options.identity.may_call) {
    options.tools = {.dialect = models_->Find(request.model)->tool_dialect,
                     .names = request.tools.names,
                     .required = request.tools.choice == Tools::Choice::kRequired};
    if (!request.tools.parallel) options.tools.max_calls = 1;
  }
  options.received = http.received;
  options.outcome = std::move(outcome);
  options.on_end = [this, on_end = std::move(on_end)](const CompletionOutcome& outcome) {
    running_.fetch_sub(1);
    on_end(outcome);
  };
  auto exchange = std::make_shared<CompletionExchange>(std::move(options), responder, metrics_);
  const std::shared_ptr<GenerateCall> call =
      router_->Generate(request.model, std::move(generate),
                        MonotonicNow() + std::min(request.timeout, options_.request_timeout),
                        std::move(exchange), identity.trace.ToTraceparent());
  responder.OnDisconnect([weak = std::weak_ptr<GenerateCall>(call)] {
    if (auto running = weak.lock()) running->Cancel();
  });
}

}  // namespace aludel
