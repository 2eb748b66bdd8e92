#include "server/gateway/openai/completions.h"

#include <openssl/rand.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "runtime/files/stop_scope.h"
#include "server/gateway/access/cache_salt.h"
#include "server/gateway/openai/completion_exchange.h"
#include "server/gateway/openai/completion_fan.h"
#include "server/gateway/openai/model_limits.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/openai/response_format.h"
#include "server/gateway/openai/sampling_fields.h"
#include "server/gateway/openai/system_fingerprint.h"
#include "server/gateway/openai/token_ids.h"
#include "server/gateway/openai/tools/tools.h"
#include "server/rpc/rpc_status.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr size_t kMaxKnownSchemas = 1024;
constexpr size_t kMaxKnownSchemaBytes = 16 << 20;
// As JSON in one event they must fit a connection's queue.
constexpr size_t kMaxReturnedPrompt = 32768;
// As JSON in a burst of events they must, too.
constexpr size_t kMaxStreamedEcho = 8192;
constexpr size_t kMaxStreamedEchoBytes = 128 << 10;
// What an answer has of a prompt's token, about: in an echo's lists for the token and each of its alternatives, and
// in "prompt_logprobs".
constexpr size_t kEchoEntryBytes = 30;
constexpr size_t kPromptLogprobBytes = 60;
// Of one request; the others follow as these end.
constexpr int kPromptsAtOnce = 8;

absl::Status DeadlinePassed() { return absl::DeadlineExceededError("the request's deadline has passed"); }

// Keeps the last tokens of a prompt: as many as asked for, or (-1) as leave room for the answer. An answer that would
// take the whole context is refused later, or yields: all but one token of the context are the prompt's.
void Truncate(const CompletionRequest& request, uint64_t max_context, std::vector<int32_t>* ids) {
  uint64_t answer = std::max<uint64_t>(request.sampling.max_tokens(), 1);
  if (request.max_tokens_yields && answer >= max_context) answer = 1;
  const uint64_t room = max_context > answer ? max_context - answer : ids->size();
  const int64_t asked = *request.truncate_prompt_tokens;
  const uint64_t kept = std::min<uint64_t>(asked < 0 ? room : static_cast<uint64_t>(asked), ids->size());
  ids->erase(ids->begin(), ids->end() - static_cast<int64_t>(kept));
}

std::string MakeId(absl::string_view prefix) {
  // Where no keys are set, the id of a stored answer is all that protects it.
  std::string random(16, '\0');
  ALUDEL_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), static_cast<int>(random.size())) ==
               1);
  return absl::StrCat(prefix, absl::BytesToHexString(random));
}

// Of a text in JSON, without its quotes.
size_t JsonBytes(absl::string_view text) {
  size_t bytes = text.size();
  for (const char byte : text) {
    if (absl::StrContains("\"\\\b\f\n\r\t", byte)) {
      bytes += 1;
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      bytes += 5;
    }
  }
  return bytes;
}

// What is told of prompts must fit what a gateway keeps of an answer, or of a stream.
std::optional<ApiError> CheckTold(const CompletionRequest& request,
                                  const std::vector<PromptEcho::Options>& prompts, size_t max_answer_bytes) {
  const size_t choices = request.sampling.choices();
  size_t tokens = 0;
  size_t echoed = 0;  // log-probabilities and offsets
  size_t text = 0;
  size_t bytes = 0;  // of all that is told, about
  for (const PromptEcho::Options& prompt : prompts) {
    tokens += prompt.ids.size();
    if (prompt.echo) text += JsonBytes(prompt.text) * choices;
    if (prompt.echo_logprobs) echoed += prompt.ids.size() * (2 + *prompt.echo_logprobs) * choices;
    if (prompt.prompt_logprobs) {
      bytes += prompt.ids.size() * (1 + *prompt.prompt_logprobs) * kPromptLogprobBytes *
               (request.chat ? 1 : choices);
    }
  }
  bytes += echoed * kEchoEntryBytes + text;
  if (!request.stream) {
    if (bytes <= max_answer_bytes) return std::nullopt;
    return Unprocessable(request.prompt_logprobs ? "prompt_logprobs" : "echo",
                         absl::StrCat("what is asked for of ", tokens, " prompt tokens takes about ", bytes,
                                      " bytes of an answer, of which this gateway keeps ", max_answer_bytes,
                                      ": ask for fewer log-probabilities, choices or prompts"));
  }
  if (echoed > kMaxStreamedEcho) {
    return Unprocessable("stream", absl::StrCat("'stream' is for echoes of at most ", kMaxStreamedEcho,
                                                " log-probabilities and offsets; yours would have ", echoed,
                                                ": ask without 'stream', or for fewer"));
  }
  if (text > kMaxStreamedEchoBytes) {
    return Unprocessable(
        "stream", absl::StrCat("'stream' is for echoes of at most ", kMaxStreamedEchoBytes,
                               " bytes; yours would have ", text, ": ask without 'stream', or for fewer"));
  }
  if (request.return_token_ids && tokens > kMaxReturnedPrompt) {
    return Unprocessable("stream", absl::StrCat("'stream' is for 'return_token_ids' of prompts of at most ",
                                                kMaxReturnedPrompt, " tokens together; yours have ", tokens,
                                                ": ask without 'stream', or for fewer"));
  }
  return std::nullopt;
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

struct Completions::Call {
  Call(std::unique_ptr<Dialect> dialect, HttpRequest http, RequestIdentity identity,
       const std::weak_ptr<Access::Grant>& grant, HttpResponder responder, OnCompletionEnd on_end)
      : dialect(std::move(dialect)),
        http(std::move(http)),
        identity(std::move(identity)),
        limits(grant.lock()->limits()),
        grant(grant),
        responder(std::move(responder)),
        on_end(std::move(on_end)) {}

  std::unique_ptr<Dialect> dialect;
  HttpRequest http;
  const RequestIdentity identity;
  const KeyLimits limits;
  const std::weak_ptr<Access::Grant> grant;  // on_end's, which gives it back
  HttpResponder responder;
  OnCompletionEnd on_end;
  absl::Time deadline;  // of MonotonicNow()
  CompletionRequest request;
  int places = 1;                            // that the grant has; where it is bounded
  const ServedModel* model = nullptr;        // that request.model names, or is an adapter over
  std::vector<PromptEcho::Options> prompts;  // one at least
  ReasoningSplitter::Mode thoughts = ReasoningSplitter::Mode::kOff;
  v1::GenerateRequest generate;  // but for the prompt
};

std::optional<ApiError> Completions::TakePlaces(Call* call) {
  const std::shared_ptr<Access::Grant> grant = call->grant.lock();
  if (grant == nullptr) return std::nullopt;
  const auto choices = static_cast<int>(call->request.sampling.choices());
  const size_t prompts = std::clamp<size_t>(call->request.prompts.size(), 1, kPromptsAtOnce);
  if (auto error = grant->Widen(choices, choices * static_cast<int>(prompts))) return error;
  call->places = grant->places();
  return std::nullopt;
}

Completions::Completions(Options options, const ServedModels* models, Router* router, Metrics* metrics,
                         WorkPool* heavy)
    : options_(std::move(options)),
      models_(models),
      router_(router),
      metrics_(metrics),
      heavy_(heavy),
      schemas_({.max_entries = kMaxKnownSchemas, .max_bytes = kMaxKnownSchemaBytes},
               [](const TextConstraint& constraint) -> absl::StatusOr<std::monostate> {
                 const absl::Status status = CompileConstraint(constraint).status();
                 if (!status.ok()) return status;
                 return std::monostate();
               }) {}

std::optional<ApiError> Completions::Tokenize(const ServedModel& model, const CompletionRequest& request,
                                              absl::string_view param, PlainPrompt prompt,
                                              PromptEcho::Options* tokens,
                                              ReasoningSplitter::Mode* thoughts) const {
  const uint64_t max_context = router_->State(model.name).max_context;
  std::vector<int32_t>& ids = tokens->ids = std::move(prompt.ids);
  const bool is_text = ids.empty();
  if (!is_text) {
    if (auto error = CheckTokenIds(model, param, ids)) return error;
  } else {
    std::string joint;
    if (request.chat) {
      if (auto error = RenderChat(model, request, &prompt.text, &joint)) return error;
      *thoughts = ThoughtsBehind(model.thinking, prompt.text,
                                 request.continue_final_message ? &request.messages.back() : nullptr);
    }
    if (!request.truncate_prompt_tokens) {
      if (auto error = CheckTextLength(model, param, prompt.text, max_context)) return error;
    }
    // A chat template has written what stands in front of the prompt.
    if (auto error =
            TokenizeText(model, param, prompt.text, /*add_special_tokens=*/!request.chat, joint, &ids)) {
      return error;
    }
  }
  const size_t whole = ids.size();
  if (request.truncate_prompt_tokens) Truncate(request, max_context, &ids);
  if (request.return_token_ids && ids.size() > kMaxReturnedPrompt) {
    return Unprocessable("return_token_ids",
                         absl::StrCat("'return_token_ids' is for prompts of at most ", kMaxReturnedPrompt,
                                      " tokens; yours has ", ids.size(), ". /tokenize returns them all"));
  }
  tokens->prompt_logprobs = request.prompt_logprobs;
  tokens->echo = request.echo;
  if (request.echo) {
    tokens->text = is_text && ids.size() == whole
                       ? std::move(prompt.text)
                       : model.tokenizer->Decode(ids, /*skip_special_tokens=*/false);
    if (request.sampling.has_top_logprobs()) {
      tokens->echo_logprobs = static_cast<int>(request.sampling.top_logprobs());
    }
  }
  return CheckLength(request, param, ids.size(), max_context);
}

std::optional<ApiError> Completions::TokenizeAll(const ServedModel& model, Call* call) const {
  CompletionRequest& request = call->request;
  if (request.chat) {
    if (auto error = Tokenize(model, request, request.prompt_param, {}, &call->prompts.emplace_back(),
                              &call->thoughts)) {
      return error;
    }
    return CheckTold(request, call->prompts, options_.max_answer_bytes);
  }
  size_t tokens = 0;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    if (const absl::Status stopped = CheckStop(); !stopped.ok()) return FromStatus("prompt", stopped);
    const std::string param = request.prompts.size() == 1 ? "prompt" : absl::StrCat("prompt[", i, "]");
    PromptEcho::Options& prompt = call->prompts.emplace_back();
    if (auto error =
            Tokenize(model, request, param, std::move(request.prompts[i]), &prompt, &call->thoughts)) {
      return error;
    }
    tokens += prompt.ids.size();
  }
  if (tokens > kMaxPromptTokens && call->prompts.size() > 1) {
    return InvalidParameter("prompt",
                            absl::StrCat("'prompt' holds ", tokens, " tokens in ", call->prompts.size(),
                                         " prompts; want at most ", kMaxPromptTokens, " in one request"));
  }
  return CheckTold(request, call->prompts, options_.max_answer_bytes);
}

std::optional<ApiError> Completions::Prepare(Call* call, WorkPool::Task* task) const {
  CompletionRequest* const request = &call->request;
  v1::GenerateRequest* const generate = &call->generate;
  const std::string body = std::move(call->http.body);  // not kept while the answer is made
  const std::shared_ptr<HttpBodyHold> body_share = std::move(call->http.body_share);
  call->dialect->TakeShare(body_share);
  if (auto error = call->dialect->Read(body, request)) return error;
  if (request->timeout < options_.request_timeout) {
    call->deadline += request->timeout - options_.request_timeout;
    if (task != nullptr) task->Tighten(call->deadline);
  }
  const ServedModel* model = call->model = models_->Find(request->model);
  if (model == nullptr) return ModelNotFound(request->model);
  if (request->model != model->name) generate->set_adapter(request->model);
  if (auto error = CheckKeyLimits(call->limits, *request)) return error;
  if (auto error = TakePlaces(call)) return error;
  if (auto error = CheckModelLimits(*model, *router_, *request)) return error;
  // Before the work of a prompt that would be refused.
  if (const auto full =
          router_->CheckRoom(model->name, call->identity.client, call->deadline, request->priority)) {
    return FromGrpcStatus(*full);
  }
  if (auto error = SpellBadWords(*model->tokenizer, request->bad_words, &request->sampling)) return error;
  if (auto error = TokenizeAll(*model, call)) return error;
  *generate->mutable_sampling() = request->sampling;
  FillSampling(model->defaults, generate->mutable_sampling());
  if (auto error = CheckMinTokens(generate->sampling())) return error;
  std::optional<v1::TextConstraint> constraint = request->constraint;
  if (auto error = ConstrainToCall(request->tools, model->tool_dialect, &constraint)) return error;
  if (constraint) *generate->mutable_constraint() = *std::move(constraint);
  if (auto error = LetThink(call->thoughts, model->thinking, model->name, *model->tokenizer,
                            request->thinking, generate)) {
    return error;
  }
  generate->set_fidelity(request->fidelity);
  generate->set_format(request->format);
  generate->set_priority(request->priority);
  generate->set_trace(request->trace);
  if (request->max_staleness_ms) generate->set_max_staleness_ms(*request->max_staleness_ms);
  for (const std::string& target : options_.prefill_targets) generate->add_prefill_targets(target);
  return std::nullopt;
}

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
  if (stopped.ok()) error = Prepare(call.get(), task);
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

CompletionOutcome Completions::OutcomeOf(const Call& call) const {
  const CompletionRequest& request = call.request;
  CompletionOutcome outcome;
  outcome.operation = call.dialect->operation();
  if (call.model != nullptr || models_->Find(request.model) != nullptr) outcome.model = request.model;
  outcome.stream = request.stream;
  if (!request.max_tokens_param.empty()) outcome.max_tokens = request.sampling.max_tokens();
  if (request.sampling.has_temperature()) outcome.temperature = request.sampling.temperature();
  outcome.prompts = static_cast<int64_t>(call.prompts.size());
  for (const PromptEcho::Options& prompt : call.prompts) {
    outcome.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  return outcome;
}

void Completions::Fail(Call* call, const ApiError& error) {
  CompletionOutcome outcome = OutcomeOf(*call);
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

void Completions::Send(const std::shared_ptr<Call>& call) {
  if (running_.fetch_add(1) >= options_.max_requests) {
    running_.fetch_sub(1);
    return Fail(call.get(), TooManyRequests(options_.max_requests));
  }
  v1::GenerateRequest& generate = call->generate;
  generate.set_request_id(call->identity.id);
  generate.set_cache_salt(MakeCacheSalt(call->identity.client, call->request.cache_salt));
  CompletionExchange::Options options = ExchangeOptions(call.get());
  options.on_end = [this, on_end = std::move(call->on_end)](const CompletionOutcome& outcome) {
    running_.fetch_sub(1);
    on_end(outcome);
  };
  Router::Request request{.model = call->model->name,
                          .tenant = call->identity.client,
                          .message = std::move(generate),
                          .deadline = call->deadline,
                          .traceparent = call->identity.trace.ToTraceparent()};
  std::vector<std::vector<int32_t>> prompts;
  for (const PromptEcho::Options& prompt : options.prompts) prompts.push_back(prompt.ids);
  // Choices at once: those of some prompts, and not more than the key may ask for, or than a server takes.
  int at_once = kPromptsAtOnce;
  const KeyLimits& limits = call->limits;
  const auto most_choices = static_cast<int>(router_->State(call->model->name).max_choices);
  for (const int most : {limits.max_n, most_choices}) {
    if (most > 0) at_once = std::clamp(most / options.choices, 1, at_once);
  }
  if (limits.max_concurrent > 0) at_once = std::clamp(call->places / options.choices, 1, at_once);
  auto exchange = std::make_shared<CompletionExchange>(std::move(options), call->responder, &metrics_);
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

CompletionExchange::Options Completions::ExchangeOptions(Call* call) const {
  const CompletionRequest& request = call->request;
  CompletionExchange::Options options;
  options.outcome = OutcomeOf(*call);
  options.chat = request.chat;
  options.return_token_ids = request.return_token_ids;
  options.id = MakeId(call->dialect->id_prefix());
  options.model = request.model;
  options.choices = static_cast<int>(call->generate.sampling().choices());
  options.tokenizer = call->model->tokenizer.get();
  options.prompts = std::move(call->prompts);
  CompletionIdentity identity = {
      .chat = request.chat,
      .id = options.id,
      .created = absl::ToUnixSeconds(absl::Now()),
      .model = request.model,
      .system_fingerprint = SystemFingerprint(router_->Numerics(call->model->name)),
      .include_usage = request.include_usage,
      .may_call = request.tools.choice != Tools::Choice::kNone,
      .return_token_ids = request.return_token_ids,
      .prompt_tokens = options.outcome.prompt_tokens,
      .choices_per_prompt = options.choices};
  if (request.return_token_ids) {
    for (const PromptEcho::Options& prompt : options.prompts) identity.prompt_ids.push_back(prompt.ids);
  }
  if (identity.may_call) {
    options.tools = {.dialect = call->model->tool_dialect,
                     .names = request.tools.names,
                     .required = request.tools.choice == Tools::Choice::kRequired,
                     .bare = request.constraint.has_value()};
    if (!request.tools.parallel) options.tools.max_calls = 1;
  }
  options.reasoning = call->thoughts;
  options.writer = call->dialect->Writer(request, std::move(identity));
  options.dialect = std::move(call->dialect);
  options.max_answer_bytes = options_.max_answer_bytes;
  options.received = call->http.received;
  return options;
}

}  // namespace aludel
