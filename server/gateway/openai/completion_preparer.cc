#include "server/gateway/openai/completion_preparer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/files/stop_scope.h"
#include "server/gateway/openai/fields/sampling_fields.h"
#include "server/gateway/openai/fields/token_ids.h"
#include "server/gateway/openai/grpc_error.h"
#include "server/gateway/openai/model/model_limits.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/openai/tools/tools.h"

namespace aludel {
namespace {

// As JSON in one event they must fit a connection's queue.
constexpr size_t kMaxReturnedPrompt = 32768;
// As JSON in a burst of events they must, too.
constexpr size_t kMaxStreamedEcho = 8192;
constexpr size_t kMaxStreamedEchoBytes = 128 << 10;
// What an answer has of a prompt's token, about: in an echo's lists for the token and each of its alternatives, and
// in "prompt_logprobs".
constexpr size_t kEchoEntryBytes = 30;
constexpr size_t kPromptLogprobBytes = 60;

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

// For all choices of the prompts that are asked about at once, or of one prompt at least.
std::optional<ApiError> TakePlaces(CompletionCall* call) {
  const std::shared_ptr<Access::Grant> grant = call->grant.lock();
  if (grant == nullptr) return std::nullopt;
  const auto choices = static_cast<int>(call->request.sampling.choices());
  const size_t prompts = std::clamp<size_t>(call->request.prompts.size(), 1, kPromptsAtOnce);
  if (auto error = grant->Widen(choices, choices * static_cast<int>(prompts))) return error;
  call->places = grant->places();
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> CompletionPreparer::Tokenize(const ServedModel& model,
                                                     const CompletionRequest& request,
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

std::optional<ApiError> CompletionPreparer::TokenizeAll(const ServedModel& model,
                                                        CompletionCall* call) const {
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

std::optional<ApiError> CompletionPreparer::Prepare(CompletionCall* call, WorkPool::Task* task) const {
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

}  // namespace aludel
