#include "server/decode/generate_setup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "server/decode/sampling_fields.h"
#include "server/rpc/deadline.h"

namespace aludel {

absl::StatusOr<GenerateSetup> SetUpGenerate(const DecodeContext& context, const RequestPlanner& planner,
                                            const v1::GenerateRequest& request, const std::string& cache_salt,
                                            const Plan& chosen, const RequestAdapter& adapter,
                                            absl::Time deadline, std::shared_ptr<TokenAutomaton> constraint) {
  const SequenceCodecs& codecs = planner.codecs();
  GenerateSetup setup{.plan = chosen};
  Plan& plan = setup.plan;
  ALUDEL_ASSIGN_OR_RETURN(SamplingParams sampling, ReadSampling(request.sampling()));
  setup.spec = {.prompt = {request.prompt().begin(), request.prompt().end()},
                .sampling = std::move(sampling),
                .deadline = ToSteadyTime(deadline),
                .priority = request.priority(),
                .cache_salt = cache_salt,
                .keep_prefix = !request.no_store()};
  GenerateSpec& spec = setup.spec;
  spec.constraint = std::move(constraint);
  if (adapter.served != nullptr) {
    if (spec.sampling.prompt_logprobs && !adapter.served->scores_prompts()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the log-probabilities of a prompt are not those of adapter ", request.adapter(),
                       ", which answers from its base's cache of the prompt: ask its base for them"));
    }
    spec.adapter = {adapter.served, adapter.weights()};
    spec.adapter_begin = adapter.begin;
    spec.adapter_reads_only = adapter.served->reads_only();
  }
  // The age of cached codes is not known here.
  if (plan.framed() && !request.has_max_staleness_ms()) {
    spec.cached_tokens = planner.CachedEnough(plan, spec.prompt, spec.cache_salt, adapter);
  }
  const bool cached = spec.cached_tokens > 0;
  if (cached) {
    spec.codec = codecs.Find(plan.format);
    plan = Plan{.kind = PlanKind::kCached,
                .format = plan.format,
                .cached_tokens = spec.cached_tokens,
                .reason = PlanReason::kCached};
  } else {
    ALUDEL_RETURN_IF_ERROR(planner.CheckDeadline(plan, deadline));
  }
  if (plan.framed()) {
    const DecoderFactory* codec = codecs.Find(plan.format);
    absl::StatusOr<FrameExtent> reserved = context.arena->Reserve(context.model->HandoffWindow(
        codec->spec(), plan.handed_over_tokens, context.options->handoff_window_bytes));
    if (reserved.ok()) {
      setup.extent = *std::move(reserved);
      spec.codec = codec;
      spec.handed_over_tokens = plan.handed_over_tokens;
    } else {
      plan = Plan{.reason = PlanReason::kArena};
    }
  }
  if (spec.sampling.top_logprobs) {
    setup.shown_logprobs = 1 + static_cast<size_t>(*spec.sampling.top_logprobs);
  }
  if (spec.codec != nullptr) spec.codec_owner = codecs.owner();
  // Only a single, unconstrained answer of the model itself can be compared with a second computation, and that keeps
  // its prompt.
  if ((plan.framed() || cached) && !request.no_store() && adapter.served == nullptr &&
      context.shadow != nullptr && spec.sampling.choices == 1 && spec.constraint == nullptr &&
      context.shadow->Choose()) {
    setup.shadow.emplace(
        ShadowAnswer{.format = plan.format, .cache_salt = spec.cache_salt, .prompt = spec.prompt});
    spec.sampling.top_logprobs = std::max(spec.sampling.top_logprobs.value_or(0), kShadowLogprobs);
  }
  return setup;
}

HandoffSpec MakeHandoffSpec(const DecodeContext& context, const v1::GenerateRequest& request,
                            const PlanRequest& wanted, const GenerateSetup& setup, absl::Time deadline,
                            std::string traceparent) {
  const Plan& plan = setup.plan;
  const std::vector<int32_t>& prompt = setup.spec.prompt;
  HandoffSpec handoff{.request_id = request.request_id(),
                      .traceparent = std::move(traceparent),
                      .prompt = {prompt.begin(), prompt.begin() + plan.handed_over_tokens},
                      .codec = std::make_shared<const CodecSpec>(setup.spec.codec->spec()),
                      .cache_salt = setup.spec.cache_salt,
                      .tenant = request.cache_salt(),
                      .no_store = request.no_store(),
                      .trace = request.trace(),
                      .wanted = wanted,
                      .deadline = deadline,
                      .patience = PatienceWith(plan, context.options->hedge)};
  if (request.has_max_staleness_ms()) handoff.max_staleness_ms = request.max_staleness_ms();
  if (request.has_workflow()) handoff.workflow = request.workflow();
  handoff.wanted.format = plan.format;  // what the engine expects from now on
  if (plan.move) {
    handoff.move.silence = LateBy(plan.move->after, context.options->hedge);
    handoff.move.after = absl::Seconds(plan.move->after) + handoff.move.silence;
    handoff.patience.whole = 2 * handoff.move.after;  // the next server may be as late
    handoff.wanted.targets = RankedAfter(plan.move->target, context.prefill_pool->Snapshot(), wanted.targets);
  }
  return handoff;
}

}  // namespace aludel
