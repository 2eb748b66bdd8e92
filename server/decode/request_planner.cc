#include "server/decode/request_planner.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"
#include "server/host/shedding.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr char kHere[] = "";  // in place of a target's name: local prefill, or with a format the own store

bool Contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool UpgradedLater(const SequenceCodecs& codecs, const std::string& format) {
  const DecoderFactory* const codec = codecs.Find(format);
  return codec != nullptr && codec->spec().base_planes > 0;
}

// Best first. What is upgraded while the answer goes on is for one answer alone: others would keep copies of its last block.
std::vector<std::string> FormatsFor(const SequenceCodecs& codecs, const PlanRequest& wanted) {
  std::vector<std::string> names = codecs.Names();
  if (wanted.choices > 1) std::erase_if(names, [&](const auto& name) { return UpgradedLater(codecs, name); });
  return names;
}

absl::Status CheckForced(const SequenceCodecs& codecs, const PlanRequest& wanted) {
  if (wanted.choices <= 1 || !UpgradedLater(codecs, wanted.format)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("format: found \"", wanted.format, "\", which is refined while one answer goes on, and ",
                   wanted.choices, " choices; want one choice, or a format whose frames come whole"));
}

// What a prefill server is asked for: the last token's logits come from a forward pass here, and so does what an activated
// adapter acts on.
absl::Span<const int32_t> HandedOverPart(absl::Span<const int32_t> prompt, const RequestAdapter& adapter) {
  const size_t all = prompt.size() - std::min<size_t>(prompt.size(), 1);
  return prompt.first(adapter.begin > 0 ? std::min(all, static_cast<size_t>(adapter.begin)) : all);
}

// As MakePlan for the model, of whose cache the adapter takes what comes before it acts.
absl::StatusOr<Plan> MakeBasePlan(const DecodeContext& context, const RequestAdapter& adapter,
                                  const SequenceCodecs& codecs, absl::Span<const PlanTarget> targets,
                                  const PlanRequest& wanted, const Predict& predict,
                                  const StoredHere& stored_here) {
  const PlannerOptions& options = context.options->planner;
  PlanRequest request = wanted;
  if (adapter.begin > 0) {
    request.prompt_tokens =
        std::min<int64_t>(wanted.prompt_tokens, adapter.begin + options.recomputed_tail_tokens);
  }
  return MakePlan(options, FormatsFor(codecs, wanted), targets, request, predict, stored_here);
}

// As MakePlan, with the adapter's own formats and what calibration measured of them. A format that is forced and that
// the server has, but not for this adapter, is as one that no prefill server has.
absl::StatusOr<Plan> MakeAdapterPlan(const DecodeContext& context, const SequenceCodecs& codecs,
                                     absl::Span<const PlanTarget> targets, const PlanRequest& wanted,
                                     const Predict& predict, const StoredHere& stored_here) {
  const std::vector<std::string> names = FormatsFor(codecs, wanted);
  const auto formats = ServerFormats(*context.model, *context.adapters);
  const bool lacks_forced = !wanted.format.empty() && !Contains(names, wanted.format) &&
                            std::any_of(formats.begin(), formats.end(),
                                        [&](const auto& format) { return format.name == wanted.format; });
  PlanRequest request = wanted;
  if (lacks_forced) request.format.clear();
  PlannerOptions options = context.options->planner;
  options.losses = codecs.losses();
  ALUDEL_ASSIGN_OR_RETURN(Plan plan, MakePlan(options, lacks_forced ? std::vector<std::string>{} : names,
                                              targets, request, predict, stored_here));
  const bool nothing = plan.reason == PlanReason::kNoTarget || plan.reason == PlanReason::kNoFormat;
  if (nothing && (names.empty() || lacks_forced)) plan.reason = PlanReason::kAdapter;
  return plan;
}

CostModel::Target CostTarget(const PlanTarget& target) {
  return {target.name, target.waiting_tokens, target.tokens_per_second, target.site};
}

}  // namespace

void RequestPlanner::EndLocalWait() {
  if (const int64_t tokens = local_tokens_.exchange(-1); tokens >= 0) context_.costs->EndLocal(tokens);
}

bool RequestPlanner::BeginTrial() {
  const EngineStats engine = context_.model->engine().stats();
  const auto running = static_cast<int64_t>(engine.hedges_started - engine.hedges_won - engine.hedges_lost);
  trial_ = context_.trials->Begin(running, context_.options->hedge.max_running);
  return trial_;
}

void RequestPlanner::EndTrial() {
  if (trial_.exchange(false)) context_.trials->End();
}

int64_t RequestPlanner::CachedHere(absl::Span<const int32_t> prompt, const std::string& cache_salt,
                                   const RequestAdapter& adapter) const {
  return context_.model->engine().CachedTokens(prompt, /*codec=*/nullptr, cache_salt, adapter.weights(),
                                               adapter.begin);
}

absl::StatusOr<Plan> RequestPlanner::Choose(const PlanRequest& wanted, absl::Span<const int32_t> prompt,
                                            const std::string& cache_salt, const RequestAdapter& adapter) {
  CostModel& costs = *context_.costs;
  std::vector<PlanTarget> targets = context_.prefill_pool->Snapshot();
  codecs_.emplace(context_, adapter, targets, wanted.format);
  ALUDEL_RETURN_IF_ERROR(CheckForced(*codecs_, wanted));
  learned_ = costs.forgotten();
  codecs_->Narrow(&targets);
  whole_ = wanted.whole;
  const int64_t cached = whole_ ? 0 : CachedHere(prompt, cache_salt, adapter);
  const std::optional<double> local = costs.PredictLocal(wanted.prompt_tokens - cached);
  const auto shipped = HandedOverPart(prompt, adapter);
  computes_rest_ = shipped.size() + 1 < prompt.size();
  const absl::Time now = MonotonicNow();
  beside_local_ = costs.local_busy();
  costs.Arrive(now);
  const double alone = costs.LocalCompute(wanted.prompt_tokens - cached).value_or(0);
  const auto crowd_price = [arrivals = costs.ArrivalsPerSecond(now), wait = costs.LocalWait()](
                               double seconds) { return CrowdPrice(arrivals, wait, seconds); };
  const bool may_try = !context_.options->planner.hedged || BeginTrial();
  std::map<std::string, int64_t> stored;
  const auto stored_here = [&](const std::string& format) {
    return stored[format] = KeptTokens(format, shipped, wanted.prompt_tokens, cache_salt);
  };
  const auto predict = [&](std::optional<size_t> target, const std::string& format) -> Prediction {
    if (target == kOwnStore) {
      const auto rest = wanted.prompt_tokens - stored[format];
      std::optional<double> seconds = costs.PredictStored(format, stored[format]);
      if (seconds && rest > 1) *seconds += costs.PredictLocal(rest).value_or(0);
      const double computing = rest > 1 ? costs.LocalCompute(rest).value_or(0) : 0;
      return {seconds, may_try && costs.IsStale(kHere, format, now), crowd_price(computing)};
    }
    if (!target) return {local, may_try && costs.IsStale(kHere, "", now), crowd_price(alone)};
    const PlanTarget& server = targets[*target];
    const double here = costs.ConsumerSeconds(format, wanted.prompt_tokens);
    return {PredictRemote(CostTarget(server), format, prompt, shipped, cache_salt),
            may_try && costs.IsStale(server.name, format, now),
            LinkPrice(server.link_used, alone) + crowd_price(here),
            may_try ? costs.Waited(server.name, format) : std::nullopt};
  };
  PlanRequest request = wanted;
  request.try_seconds = context_.trials->seconds();
  ALUDEL_ASSIGN_OR_RETURN(
      Plan plan, adapter.coded() == nullptr
                     ? MakeBasePlan(context_, adapter, *codecs_, targets, request, predict, stored_here)
                     : MakeAdapterPlan(context_, *codecs_, targets, request, predict, stored_here));
  if (!plan.hedge_after) EndTrial();
  costs.Chosen(plan.remote() ? targets[plan.target].name : kHere, plan.format, now);
  if (!plan.framed()) {
    plan.predicted_ttft = local;
    plan.cached_tokens = cached;
    return plan;
  }
  // The format's own recomputed tokens, beside what the operator wants computed here.
  const TokenRange range = HandedOver(codecs_->Find(plan.format)->spec(), wanted.prompt_tokens);
  plan.handed_over_tokens = std::min(plan.handed_over_tokens, range.end);
  if (plan.handed_over_tokens <= range.begin) return Plan{.reason = PlanReason::kShortPrompt};
  if (!plan.remote()) return plan;
  stored_ = Stored(targets[plan.target].name, plan.format,
                   prompt.first(static_cast<size_t>(plan.handed_over_tokens)), cache_salt);
  return plan;
}

std::optional<double> RequestPlanner::PredictRemote(const CostModel::Target& target,
                                                    const std::string& format,
                                                    absl::Span<const int32_t> prompt,
                                                    absl::Span<const int32_t> shipped,
                                                    const std::string& cache_salt) const {
  std::optional<double> seconds = context_.costs->PredictRemote(
      target, format, shipped, cache_salt, Stored(target.name, format, shipped, cache_salt));
  const auto rest = static_cast<int64_t>(prompt.size() - shipped.size());
  if (seconds && rest > 1) *seconds += context_.costs->PredictLocal(rest).value_or(0);
  return seconds;
}

int64_t RequestPlanner::KeptTokens(const std::string& format, absl::Span<const int32_t> shipped,
                                   int64_t prompt_tokens, const std::string& cache_salt) const {
  if (context_.codes == nullptr) return 0;
  const std::optional<absl::string_view> salt = context_.cache_epoch->OwnSalt(cache_salt);
  const DecoderFactory* const codec = codecs_->Find(format);
  // What comes in two parts is not kept.
  if (!salt || codec == nullptr || codec->spec().base_planes > 0) return 0;
  const TokenRange range = HandedOver(codec->spec(), prompt_tokens);
  const auto all = static_cast<int64_t>(shipped.size());
  const int64_t wanted =
      std::min({all, range.end, prompt_tokens - context_.options->planner.recomputed_tail_tokens});
  if (wanted <= range.begin) return 0;
  const int64_t tokens =
      context_.codes->Tokens(codec->spec(), *salt, shipped.first(static_cast<size_t>(wanted)));
  if (tokens <= range.begin) return 0;
  return tokens == wanted ? all : tokens;
}

std::optional<int64_t> RequestPlanner::Stored(const std::string& target, const std::string& format,
                                              absl::Span<const int32_t> shipped,
                                              const std::string& cache_salt) const {
  if (context_.known_stores == nullptr) return std::nullopt;
  const std::optional<absl::string_view> salt = context_.cache_epoch->OwnSalt(cache_salt);
  const DecoderFactory* const codec = codecs_->Find(format);
  if (!salt || codec == nullptr) return std::nullopt;
  return context_.known_stores->StoredTokens(target, codec->spec(), *salt, shipped);
}

std::vector<v1::PlanOption> RequestPlanner::Options(absl::Span<const int32_t> prompt,
                                                    const std::string& cache_salt,
                                                    const RequestAdapter& adapter) const {
  const CostModel& costs = *context_.costs;
  const auto tokens = static_cast<int64_t>(prompt.size());
  const int64_t cached = CachedHere(prompt, cache_salt, adapter);
  std::vector<v1::PlanOption> options(1);
  options[0].set_predicted_ttft(costs.PredictLocal(tokens - cached).value_or(0));
  const auto shipped = HandedOverPart(prompt, adapter);
  std::vector<PlanTarget> targets = context_.prefill_pool->Snapshot();
  codecs_->Narrow(&targets);
  for (const std::string& format : codecs_->Names()) {
    std::optional<double> soonest;
    bool ready = false;
    for (const PlanTarget& target : targets) {
      if (!target.ready || !target.link_open ||
          std::find(target.formats.begin(), target.formats.end(), format) == target.formats.end())
        continue;
      ready = true;
      const std::optional<double> ttft =
          PredictRemote(CostTarget(target), format, prompt, shipped, cache_salt);
      if (ttft) soonest = std::min(*ttft, soonest.value_or(*ttft));
    }
    if (!ready) continue;
    v1::PlanOption& option = options.emplace_back();
    option.set_format(format);
    option.set_predicted_ttft(soonest.value_or(0));
    option.set_bytes_per_token(costs.BytesPerToken(format, tokens));
  }
  return options;
}

int64_t RequestPlanner::CachedEnough(const Plan& plan, absl::Span<const int32_t> prompt,
                                     const std::string& cache_salt, const RequestAdapter& adapter) const {
  const Engine& engine = context_.model->engine();
  const CodecSpec& codec = codecs_->Find(plan.format)->spec();
  const int64_t cached = engine.CachedTokens(prompt, &codec, cache_salt, adapter.weights(), adapter.begin);
  const int64_t worth_asking =
      std::max<int64_t>(context_.options->planner.min_remote_tokens, engine.options().block_tokens);
  return plan.handed_over_tokens - cached < worth_asking ? cached : 0;
}

absl::Status RequestPlanner::CheckDeadline(const Plan& plan, absl::Time deadline) const {
  const bool others =
      context_.costs->local_busy() || (plan.remote() && context_.receiver->open_tickets() > 0);
  absl::Status shed = ShedIfHopeless(plan.predicted_ttft, others, MonotonicNow(), deadline);
  if (!shed.ok()) context_.metrics->CountPlan(Name(PlanKind::kShed), Name(PlanReason::kDeadline));
  return shed;
}

void RequestPlanner::Begin(const Plan& plan, int64_t prompt_tokens) {
  context_.trials->Account(plan);
  if (plan.remote()) {
    target_ = context_.prefill_pool->Snapshot()[plan.target];
  } else {
    // A scored prompt has a small part of each step: others hardly wait for it.
    replayed_ = plan.handed_over_tokens;
    local_tokens_ = whole_ ? 0 : prompt_tokens - plan.cached_tokens - replayed_;
    context_.costs->BeginLocal(local_tokens_);
  }
}

void RequestPlanner::Release() {
  EndLocalWait();
  EndTrial();
}

void RequestPlanner::Close() {
  Release();
  codecs_.reset();
}

void RequestPlanner::Learn(const RequestTimeline::Started& started, const SequenceTimes& times,
                           int64_t cached_tokens, Handoff* handoff) {
  Release();
  if (started.predicted_ttft && !whole_) {
    context_.metrics->ObservePrediction(started.labels, *started.predicted_ttft, started.stages.ttft);
  }
  if (started.plan == PlanKind::kLocal && !whole_) {
    context_.costs->ObserveLocal(started.prompt_tokens, cached_tokens, started.stages);
  }
  // Of an artifact that is not asked for any more nothing is learned.
  if (context_.costs->forgotten() != learned_) return;
  if (replayed_ > 0) {
    // The rest was computed behind it. What was given up, for local prefill or for a prefill server, took as long, at least.
    const int64_t rest = started.prompt_tokens - replayed_;
    const double computing = rest > 1 ? context_.costs->LocalCompute(rest).value_or(0) : 0;
    context_.costs->ObserveStored(started.labels.format, replayed_,
                                  std::max(started.stages.ttft - started.stages.queue - computing, 0.0));
  }
  if (started.plan == PlanKind::kFallback) LearnOvertaken(started, handoff);
  // Where much was computed here behind what came, the time says little of what came.
  if (started.plan != PlanKind::kRemote || computes_rest_) return;
  // The prefill server's account travels beside its frames: after a short prompt it comes after the
  // first token.
  handoff->WhenAccounted([costs = context_.costs, metrics = context_.metrics, target = CostTarget(target_),
                          format = started.labels.format, times, queued = started.before_admission,
                          stored = stored_, beside_local = beside_local_, first_token = MonotonicNow(),
                          learned = learned_](const Handoff& handoff, const Handoff::Report& report) {
    if (report.attempts != 1) return;
    if (stored) metrics->CountStored(*stored, report.stored_tokens);
    if (costs->forgotten() != learned) return;
    StageSeconds stages = SplitFirstToken(times, report.producer, queued);
    const double worked = stages.reconstruct + stages.recompute + stages.first_decode;
    const double since_last = absl::ToDoubleSeconds(first_token - report.usage.last_received);
    const double step_wait = std::max(0.0, since_last - worked);
    stages.queue -= std::min(times.queue, step_wait);  // the others' part of shared steps counts once
    costs->ObserveRemote(
        target, format, handoff.prompt(), handoff.cache_salt(), stages, *report.producer,
        {.bytes = report.usage.bytes,
         .first_bytes = report.usage.first_bytes,
         .seconds = absl::ToDoubleSeconds(report.usage.last_received - report.usage.first_received),
         .stored = !handoff.no_store(),
         .step_wait = step_wait,
         .beside_local = beside_local});
  });
}

void RequestPlanner::LearnOvertaken(const RequestTimeline::Started& started, const Handoff* handoff) {
  if (!started.handoff || target_.name.empty()) return;  // not of the server that it was planned for
  const Handoff::Report report = handoff->report();
  if (!WasOvertaken(started.handoff->code, report.attempts, context_.options->planner.by_prediction,
                    context_.options->hedge)) {
    return;
  }
  context_.costs->ObserveOvertaken(CostTarget(target_), started.labels.format, handoff->prompt(),
                                   handoff->cache_salt(), report.begin, MonotonicNow(), beside_local_);
}

}  // namespace aludel
