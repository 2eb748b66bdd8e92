#include "server/gateway/openai/completion_call.h"

#include <openssl/rand.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "server/gateway/openai/model/system_fingerprint.h"

namespace aludel {
namespace {

std::string MakeId(absl::string_view prefix) {
  // Where no keys are set, the id of a stored answer is all that protects it.
  std::string random(16, '\0');
  ALUDEL_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), static_cast<int>(random.size())) ==
               1);
  return absl::StrCat(prefix, absl::BytesToHexString(random));
}

// What every part of the answer repeats.
CompletionIdentity IdentityOf(const CompletionCall& call, const std::string& id,
                              const std::string& numerics) {
  const CompletionRequest& request = call.request;
  CompletionIdentity identity = {.chat = request.chat,
                                 .id = id,
                                 .created = absl::ToUnixSeconds(absl::Now()),
                                 .model = request.model,
                                 .system_fingerprint = SystemFingerprint(numerics),
                                 .include_usage = request.include_usage,
                                 .may_call = request.tools.choice != Tools::Choice::kNone,
                                 .return_token_ids = request.return_token_ids};
  identity.choices_per_prompt = static_cast<int>(call.generate.sampling().choices());
  for (const PromptEcho::Options& prompt : call.prompts) {
    identity.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    if (request.return_token_ids) identity.prompt_ids.push_back(prompt.ids);
  }
  return identity;
}

ToolCallParser::Options ToolOptions(const CompletionRequest& request, ToolDialect dialect) {
  if (request.tools.choice == Tools::Choice::kNone) return {};
  ToolCallParser::Options options = {.dialect = dialect,
                                     .names = request.tools.names,
                                     .required = request.tools.choice == Tools::Choice::kRequired,
                                     .bare = request.constraint.has_value()};
  if (!request.tools.parallel) options.max_calls = 1;
  return options;
}

}  // namespace

CompletionOutcome CompletionCall::Outcome(bool names_model) const {
  CompletionOutcome outcome;
  outcome.operation = dialect->operation();
  if (names_model) outcome.model = request.model;
  outcome.stream = request.stream;
  if (!request.max_tokens_param.empty()) outcome.max_tokens = request.sampling.max_tokens();
  if (request.sampling.has_temperature()) outcome.temperature = request.sampling.temperature();
  outcome.prompts = static_cast<int64_t>(prompts.size());
  for (const PromptEcho::Options& prompt : prompts) {
    outcome.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  return outcome;
}

std::shared_ptr<CompletionExchange> CompletionCall::MakeExchange(const std::string& numerics,
                                                                 size_t max_answer_bytes,
                                                                 const RequestMetrics* metrics) {
  CompletionMeter::Options measured = {.model = request.model,
                                       .id = MakeId(dialect->id_prefix()),
                                       .received = http.received,
                                       .outcome = Outcome(/*names_model=*/true),
                                       .on_end = std::move(on_end)};
  CompletionExchange::Options options;
  options.writer = dialect->Writer(request, IdentityOf(*this, measured.id, numerics));
  options.dialect = std::move(dialect);
  options.chat = request.chat;
  options.return_token_ids = request.return_token_ids;
  options.choices = static_cast<int>(generate.sampling().choices());
  options.prompts = std::move(prompts);
  options.tools = ToolOptions(request, model->tool_dialect);
  options.reasoning = thoughts;
  options.tokenizer = model->tokenizer.get();
  options.max_answer_bytes = max_answer_bytes;
  return std::make_shared<CompletionExchange>(std::move(options), std::move(measured), responder, metrics);
}

}  // namespace aludel
