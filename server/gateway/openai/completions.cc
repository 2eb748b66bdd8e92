#include "server/gateway/openai/completions.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/answer/completion_exchange.h"
#include "server/gateway/openai/answer/completion_fan.h"
#include "server/gateway/openai/fields/response_format.h"
#include "server/gateway/openai/grpc_error.h"
#include "server/gateway/openai/tools/tools.h"
#include "server/rpc/cache_salt.h"
#include "server/rpc/rpc_status.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr size_t kMaxKnownSchemas = 1024;
constexpr size_t kMaxKnownSchemaBytes = 16 << 20;

absl::Status DeadlinePassed() { return absl::DeadlineExceededError("the request's deadline has passed"); }

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

Completions::Completions(Options options, const ServedModels* models, Router* router, Metrics* metrics,
                         WorkPool* heavy)
    : options_(std::move(options)),
      models_(models),
      router_(router),
      preparer_({.request_timeout = options_.request_timeout,
                 .max_answer_bytes = options_.max_answer_bytes,
                 .prefill_targets = options_.prefill_targets},
                models, router),
      metrics_(metrics),
      heavy_(heavy),
      schemas_({.max_entries = kMaxKnownSchemas, .max_bytes = kMaxKnownSchemaBytes},
               [](const TextConstraint& constraint) -> absl::StatusOr<std::monostate> {
                 const absl::Status status = CompileConstraint(constraint).status();
                 if (!status.ok()) return status;
                 return std::monostate();
               }) {}

void Completions::Serve(std::unique_ptr<Dialect> dialect, HttpRequest http, const RequestIdentity& identity,
                        const std::weak_ptr<Access::Grant>& grant, HttpResponder responder,
                        OnCompletionEnd on_end) {
  const absl::Duration since = absl::FromChrono(std::chrono::steady_clock::now() - http.began);
  const bool light = dialect->Weigh(http.body) <= kLightBodyBytes;
  auto call = std::make_shared<Call>(std::move(dialect), std::move(http), identity, grant,
                                     std::move(responder), std::move(on_end));
  call->deadline = MonotonicNow() - since + options_.request_timeout;
  if (light) return Begin(call, /*task=*/nullptr);
  const auto task =
      heavy_->Make(call->deadline, [this, call](WorkPool::Task& running) { Begin(call, &running); });
  call->responder.OnDisconnect([weak = std::weak_ptr<WorkPool::Task>(task)] {
    if (const auto waiting = weak.lock()) waiting->Stop(absl::CancelledError("the client has gone"));
  });
  heavy_->Start(task);
}

void Completions::Begin(const std::shared_ptr<Call>& call, WorkPool::Task* task) {
  absl::Status stopped = task == nullptr ? absl::OkStatus() : task->stopped();
  std::optional<ApiError> error;
  if (stopped.ok()) error = preparer_.Prepare(call.get(), task);
  // What was stopped has failed for that reason, whatever it met on its way out.
  if (task != nullptr) stopped = task->stopped();
  if (stopped.ok() && !error && MonotonicNow() >= call->deadline) stopped = DeadlinePassed();
  if (!stopped.ok()) error = FromGrpcStatus(ToGrpc(stopped));
  if (error) return Fail(call.get(), *error);
  if (call->generate.has_constraint()) return CheckSchema(call);
  Send(call);
}

void Completions::CheckSchema(const std::shared_ptr<Call>& call) {
  const auto wait = schemas_.Make([this, call](const absl::StatusOr<std::monostate>& checked) {
    const absl::Status& status = checked.status();
    if (status.ok()) return Send(call);
    const bool fault = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
    const CompletionRequest& request = call->request;
    // Where a call is required, the format has no say.
    const bool of_call = request.tools.choice == Tools::Choice::kRequired || status.GetPayload(kOfCall);
    Fail(call.get(), !fault    ? FromGrpcStatus(ToGrpc(status))
                     : of_call ? ToolsRefused(status)
                               : FormatRefused(request.format_param, request.format_name, status));
  });
  call->responder.OnDisconnect([weak = std::weak_ptr<Schemas::Wait>(wait)] {
    if (const auto waiting = weak.lock()) waiting->Stop(absl::CancelledError("the client has gone"));
  });
  schemas_.Begin(wait, ConstraintOf(call->generate.constraint()), call->deadline);
}

void Completions::Fail(Call* call, const ApiError& error) {
  CompletionOutcome outcome =
      call->Outcome(call->model != nullptr || models_->Find(call->request.model) != nullptr);
  outcome.status = error.status;
  outcome.name = OutcomeName(error.status);
  outcome.refused = true;
  outcome.error = error.message;
  outcome.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - call->http.received).count();
  // Before the answer: a client that has it may ask again.
  call->on_end(outcome);
  call->responder.Respond(call->dialect->Refusal(error));
}

int Completions::PromptsAtOnce(const Call& call, int choices) const {
  int at_once = kPromptsAtOnce;
  const auto most_choices = static_cast<int>(router_->State(call.model->name).max_choices);
  for (const int most : {call.limits.max_n, most_choices}) {
    if (most > 0) at_once = std::clamp(most / choices, 1, at_once);
  }
  return call.limits.max_concurrent > 0 ? std::clamp(call.places / choices, 1, at_once) : at_once;
}

void Completions::Send(const std::shared_ptr<Call>& call) {
  if (running_.fetch_add(1) >= options_.max_requests) {
    running_.fetch_sub(1);
    return Fail(call.get(), TooManyRequests(options_.max_requests));
  }
  v1::GenerateRequest& generate = call->generate;
  generate.set_request_id(call->identity.id);
  generate.set_cache_salt(MakeCacheSalt(call->identity.client, call->request.cache_salt));
  generate.set_no_store(call->request.no_store);
  if (call->request.workflow) *generate.mutable_workflow() = *call->request.workflow;
  call->on_end = [this, on_end = std::move(call->on_end)](const CompletionOutcome& outcome) {
    running_.fetch_sub(1);
    on_end(outcome);
  };
  std::vector<std::vector<int32_t>> prompts;
  for (const PromptEcho::Options& prompt : call->prompts) {
    prompts.push_back(prompt.ids);
    if (options_.capture == nullptr || call->request.no_capture) continue;
    options_.capture->Take(call->request.model, prompt.ids);
  }
  const std::string& model = call->model->name;
  auto exchange = call->MakeExchange(router_->Numerics(model), options_.max_answer_bytes, &metrics_);
  const int at_once = PromptsAtOnce(*call, static_cast<int>(generate.sampling().choices()));
  Router::Request request{.model = model,
                          .tenant = call->identity.client,
                          .tenant_weight = call->limits.weight,
                          .message = std::move(generate),
                          .deadline = call->deadline,
                          .traceparent = call->identity.trace.ToTraceparent(),
                          .cache_key = call->request.prompt_cache_key};
  const auto cancel_with = [&](const std::shared_ptr<GenerateCall>& sent) {
    call->responder.OnDisconnect([weak = std::weak_ptr<GenerateCall>(sent)] {
      if (auto running = weak.lock()) running->Cancel();
    });
  };
  if (prompts.size() == 1) {
    request.message.mutable_prompt()->Assign(prompts[0].begin(), prompts[0].end());
    return cancel_with(router_->Generate(std::move(request), std::move(exchange)));
  }
  const auto fan = std::make_shared<CompletionFan>(router_, std::move(request), std::move(prompts), at_once,
                                                   std::move(exchange));
  fan->Start();
  cancel_with(fan);
}

}  // namespace aludel
