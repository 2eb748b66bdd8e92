#include "server/decode/generate_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/codec/hand_over.h"
#include "runtime/status_macros.h"
#include "server/decode/sampling_fields.h"
#include "server/random.h"
#include "server/rpc_status.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// For the reader to take what is left after the end.
constexpr absl::Duration kReaderGrace = absl::Seconds(10);

std::optional<TraceContext> Child(const std::optional<TraceContext>& parent) {
  return parent ? std::optional<TraceContext>(parent->NewChild()) : std::nullopt;
}

}  // namespace

GenerateSession::GenerateSession(const DecodeContext& context, std::shared_ptr<Stream> stream,
                                 absl::Time deadline, const std::optional<TraceContext>& caller)
    : context_(context),
      stream_(std::move(stream)),
      start_(absl::Now()),
      deadline_(deadline),
      caller_(caller),
      trace_(Child(caller)),
      handover_trace_(Child(trace_)) {
  context_.sessions_open->fetch_add(1);
}

GenerateSession::~GenerateSession() { context_.sessions_open->fetch_sub(1); }

void GenerateSession::Start(const v1::GenerateRequest& request) {
  request_id_ = request.request_id();
  if (request.has_max_staleness_ms()) max_staleness_ms_ = request.max_staleness_ms();
  {
    absl::MutexLock lock(&mutex_);
    labels_ = {.model = context_.options->served_model_name, .plan = "local", .format = ""};
    prompt_tokens_ = request.prompt_size();
  }
  absl::StatusOr<Plan> plan = ChoosePlan(request);
  const absl::Status status = plan.ok() ? Admit(request, *plan) : plan.status();
  if (!status.ok()) End(status);
}

absl::StatusOr<Plan> GenerateSession::ChoosePlan(const v1::GenerateRequest& request) const {
  PlanRequest wanted{.prompt_tokens = request.prompt_size(), .format = request.format()};
  if (request.fidelity() == v1::FIDELITY_EXACT) wanted.fidelity = Fidelity::kExact;
  if (request.fidelity() == v1::FIDELITY_CODED) wanted.fidelity = Fidelity::kCoded;
  wanted.targets.assign(request.prefill_targets().begin(), request.prefill_targets().end());
  std::vector<std::string> formats;
  for (const auto& codec : context_.model->codecs()) formats.push_back(codec->name());
  ALUDEL_ASSIGN_OR_RETURN(
      Plan plan, MakePlan(context_.options->planner, formats, context_.prefill_pool->Snapshot(), wanted));
  if (!plan.remote) return plan;
  // The format's own native tokens, beside what the operator wants computed here.
  const TokenRange range = HandedOver(*context_.model->FindCodec(plan.format), request.prompt_size());
  plan.handed_over_tokens = std::min(plan.handed_over_tokens, range.end);
  if (plan.handed_over_tokens <= range.begin) return Plan{.reason = "short_prompt"};
  return plan;
}

absl::Status GenerateSession::Admit(const v1::GenerateRequest& request, const Plan& chosen) {
  Plan plan = chosen;
  ALUDEL_ASSIGN_OR_RETURN(SamplingParams sampling, ReadSampling(request.sampling()));
  {
    absl::MutexLock lock(&mutex_);
    last_token_.resize(sampling.choices);
    open_choices_ = sampling.choices;
  }
  GenerateSpec spec{.prompt = {request.prompt().begin(), request.prompt().end()},
                    .sampling = std::move(sampling),
                    .deadline = deadline_};
  if (request.has_constraint()) {
    const v1::TextConstraint& wire = request.constraint();
    ALUDEL_ASSIGN_OR_RETURN(spec.constraint,
                            context_.constraints->Get({wire.prefix(), wire.json_schema(), wire.suffix()}));
  }
  FrameExtent extent;
  if (plan.remote) {
    const KvCodec* codec = context_.model->FindCodec(plan.format);
    absl::StatusOr<FrameExtent> reserved =
        context_.arena->Reserve(context_.model->HandoverBytesBound(*codec, plan.handed_over_tokens));
    if (reserved.ok()) {
      extent = *std::move(reserved);
      spec.codec = codec;
      spec.handed_over_tokens = plan.handed_over_tokens;
    } else {
      plan = Plan{.reason = "arena"};
    }
  }
  if (spec.sampling.top_logprobs) shown_logprobs_ = 1 + static_cast<size_t>(*spec.sampling.top_logprobs);
  // One answer, freely chosen: what a second computation can be held against.
  if (plan.remote && context_.shadow != nullptr && spec.sampling.choices == 1 && spec.constraint == nullptr &&
      context_.shadow->Choose()) {
    shadow_.emplace(ShadowAnswer{.format = plan.format, .prompt = spec.prompt});
    spec.sampling.top_logprobs = std::max(spec.sampling.top_logprobs.value_or(0), kShadowLogprobs);
  }
  context_.metrics->CountPlan(plan.remote ? "remote" : "local", plan.reason);
  std::vector<int32_t> shipped(spec.prompt.begin(), spec.prompt.begin() + plan.handed_over_tokens);
  {
    absl::MutexLock lock(&mutex_);
    admitted_ = absl::Now();
    if (plan.remote) {
      labels_.plan = "remote";
      labels_.format = plan.format;
      handing_over_ = true;
      target_ = plan.target;
      handed_over_tokens_ = plan.handed_over_tokens - spec.codec->native_head_tokens();
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(const SequenceId sequence,
                          context_.model->engine().Generate(std::move(spec), shared_from_this()));
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    sequence_ = sequence;
    stopped = stopped_;
  }
  if (!stopped.ok()) {
    context_.model->engine().Cancel(sequence, stopped);
  } else if (plan.remote) {
    StartHandover(plan, std::move(extent), sequence, std::move(shipped));
  }
  return absl::OkStatus();
}

void GenerateSession::StartHandover(const Plan& plan, FrameExtent extent, SequenceId sequence,
                                    std::vector<int32_t> prompt) {
  const absl::Time until = std::min(deadline_, absl::Now() + context_.options->handover_timeout);
  const KvCodec* codec = context_.model->FindCodec(plan.format);
  ticket_ = RandomTicketId();
  // The receiver keeps these callbacks until the ticket is closed: no cycle outlives the hand-over.
  Engine* engine = &context_.model->engine();
  context_.receiver->Open(
      {.id = ticket_,
       .deadline = until,
       .codec = codec,
       .tokens = static_cast<uint32_t>(plan.handed_over_tokens),
       .extent = std::move(extent),
       .owner = {.on_frame =
                     [engine, sequence](const FrameHeader& header, std::vector<uint8_t> header_bytes,
                                        absl::Span<const uint8_t> payload, std::function<void()> release) {
                       engine->ApplyFrame(sequence, header, std::move(header_bytes), payload,
                                          std::move(release));
                     },
                 .on_lost =
                     [weak = weak_from_this()](const absl::Status& reason) {
                       if (const auto session = weak.lock()) session->Abandon(reason);
                     }}});

  v1::RunRequest run;
  run.set_request_id(request_id_);
  if (max_staleness_ms_) run.set_max_staleness_ms(*max_staleness_ms_);
  run.mutable_prompt()->Add(prompt.begin(), prompt.end());
  v1::Ticket* ticket = run.mutable_ticket();
  ticket->set_id(std::string(ticket_.begin(), ticket_.end()));
  ticket->set_epoch(context_.receiver->epoch());
  ticket->set_receiver_address(context_.receiver_address);
  ticket->mutable_format()->set_name(codec->name());
  ticket->mutable_format()->set_artifact_hash(codec->artifact_hash());

  KvReceiver* receiver = context_.receiver;
  bool over = false;
  {
    absl::MutexLock lock(&mutex_);
    ticket_open_ = true;
    handover_start_ = absl::Now();
    over = ended_ || !handing_over_;  // the engine was faster
    if (!over) handover_timer_ = context_.timer->At(until, [receiver] { receiver->Reap(); });
  }
  if (over) {
    EndHandover();
    return;
  }
  std::shared_ptr<RunCall> call =
      RunCall::Start(context_.prefill_pool->stub(plan.target), std::move(run), until,
                     {.on_event = [self = shared_from_this()](const v1::RunEvent& e) { self->OnRunEvent(e); },
                      .on_end = [self = shared_from_this()](const absl::Status& s) { self->OnRunEnd(s); }},
                     handover_trace_ ? handover_trace_->ToTraceparent() : "");
  {
    absl::MutexLock lock(&mutex_);
    over = ended_ || !handing_over_;
    if (!over) run_ = call;
  }
  if (over) call->Cancel();
}

void GenerateSession::OnRunEvent(const v1::RunEvent& event) {
  if (!event.has_computed()) return;
  absl::MutexLock lock(&mutex_);
  producer_ = ProducerSeconds{.queue = event.computed().queue_seconds(),
                              .prefill = event.computed().prefill_seconds(),
                              .encode = event.computed().encode_seconds()};
}

void GenerateSession::OnRunEnd(const absl::Status& status) {
  size_t target = 0;
  {
    absl::MutexLock lock(&mutex_);
    run_.reset();
    // A run that ended well may still have frames on the link; one that we cancelled says nothing.
    if (status.ok() || !handing_over_) return;
    target = target_;
  }
  ReportTarget(target, status);
  Abandon(status);
}

void GenerateSession::Abandon(const absl::Status& reason) {
  SequenceId sequence = 0;
  size_t target = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!handing_over_ || ended_) return;
    handing_over_ = false;
    sequence = sequence_;
    target = target_;
  }
  if (absl::IsDeadlineExceeded(reason)) ReportTarget(target, reason);
  EndHandover();
  context_.model->engine().FallBack(sequence, reason);
}

void GenerateSession::ReportTarget(size_t target, const absl::Status& status) {
  // Where the client's own deadline was the shorter one, the prefill server is not to blame.
  if (absl::IsDeadlineExceeded(status) && absl::Now() + absl::Milliseconds(50) >= deadline_) return;
  context_.prefill_pool->ReportRunFailure(target, status);
}

void GenerateSession::EndHandover() {
  std::shared_ptr<RunCall> run;
  Timer::Id timer = 0;
  bool open = false;
  {
    absl::MutexLock lock(&mutex_);
    handing_over_ = false;
    std::swap(run, run_);
    std::swap(timer, handover_timer_);
    std::swap(open, ticket_open_);
  }
  if (timer != 0) context_.timer->Cancel(timer);
  if (run != nullptr) run->Cancel();
  if (!open) return;
  const KvReceiver::Usage usage = context_.receiver->Close(ticket_);
  absl::MutexLock lock(&mutex_);
  usage_ = usage;
  handover_end_ = absl::Now();
}

void GenerateSession::Stop(const absl::Status& reason) {
  SequenceId sequence = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || !stopped_.ok()) return;
    stopped_ = reason;
    sequence = sequence_;
  }
  if (sequence != 0) context_.model->engine().Cancel(sequence, reason);
}

void GenerateSession::SendStarted(const SequenceTimes& times, bool fell_back,
                                  const absl::Status& fallback_reason) {
  bool remote = false;
  int64_t handed_over = 0;
  {
    absl::MutexLock lock(&mutex_);
    remote = labels_.plan == "remote";
    handed_over = handed_over_tokens_;
  }
  // The cache is complete: frames that still come are late.
  EndHandover();

  KvReceiver::Usage usage;
  double since_admission = 0;
  StageSeconds stages;
  RequestLabels labels;
  {
    absl::MutexLock lock(&mutex_);
    if (fell_back) labels_.plan = "fallback";
    labels = labels_;
    usage = usage_;
    since_admission = absl::ToDoubleSeconds(absl::Now() - admitted_);
    stages = SplitFirstToken(times, producer_, absl::ToDoubleSeconds(admitted_ - start_));
    stages_ = stages;
  }
  if (fell_back) {
    context_.metrics->CountFallback(StatusName(fallback_reason.code()));
    spdlog::warn("request={} prefilled here after a failed hand-over: {}", request_id_,
                 fallback_reason.ToString());
  }
  if (remote) {
    context_.metrics->CountHandover("received", fell_back ? StatusName(fallback_reason.code()) : "ok",
                                    since_admission);
  }
  context_.metrics->ObserveFirstToken(labels, stages);

  v1::GenerateEvent out;
  v1::Started* started = out.mutable_started();
  started->set_plan(labels.plan);
  started->set_format(labels.format);
  started->set_payload_bytes(usage.bytes);
  if (remote && !fell_back) {
    const ModelConfig& config = context_.model->config();
    started->set_handed_over_tokens(static_cast<uint32_t>(handed_over));
    started->set_raw_bytes(uint64_t{2} * config.layers * config.kv_dim() * 2 * handed_over);
  }
  if (fell_back) started->set_fallback_reason(fallback_reason.ToString());
  v1::Stages* wire = started->mutable_stages();
  wire->set_queue(stages.queue);
  wire->set_prefill(stages.prefill);
  wire->set_encode(stages.encode);
  wire->set_transfer(stages.transfer);
  wire->set_reconstruct(stages.reconstruct);
  wire->set_native(stages.native);
  wire->set_first_decode(stages.first_decode);
  wire->set_ttft(stages.ttft);
  stream_->Push(std::move(out));
}

void GenerateSession::OnToken(const TokenEvent& event) {
  const absl::Time now = absl::Now();
  if (!std::exchange(started_, true)) SendStarted(event.times, event.fell_back, event.fallback_reason);
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time before = std::exchange(last_token_[event.choice], now);
    if (!event.first) {
      context_.metrics->ObserveInterToken(labels_.model, absl::ToDoubleSeconds(now - before));
    }
    ++completion_tokens_;
  }
  v1::GenerateEvent out;
  out.mutable_token()->set_id(event.id);
  out.mutable_token()->set_text(event.text);
  out.mutable_token()->set_choice(static_cast<uint32_t>(event.choice));
  if (shadow_) shadow_->Keep(event);
  for (size_t i = 0; i < std::min(shown_logprobs_, event.logprobs.size()); ++i) {
    const TokenLogprob& entry = event.logprobs[i];
    v1::TokenLogprob* logprob = out.mutable_token()->add_logprobs();
    logprob->set_token(entry.id);
    logprob->set_logprob(entry.logprob);
  }
  if (stream_->Push(std::move(out))) return;
  // Too slow, or gone (then the stream has said so already and this changes nothing).
  Stop(absl::ResourceExhaustedError(
      absl::StrCat("the reader is more than ", context_.options->max_stream_backlog, " tokens behind")));
}

void GenerateSession::OnDone(const absl::Status& status, const SequenceResult& result) {
  EndHandover();
  if (shadow_ && status.ok() && !result.fell_back) context_.shadow->Offer(*std::move(shadow_));
  if (status.ok()) {
    // An answer may have no token at all.
    if (!std::exchange(started_, true)) SendStarted(result.times, result.fell_back, result.fallback_reason);
    v1::GenerateEvent out;
    v1::Finished* finished = out.mutable_finished();
    finished->set_reason(result.reason == FinishReason::kStop ? "stop" : "length");
    finished->set_prompt_tokens(static_cast<uint32_t>(result.prompt_tokens));
    finished->set_completion_tokens(static_cast<uint32_t>(result.completion_tokens));
    finished->set_text(result.tail_text);
    finished->set_choice(static_cast<uint32_t>(result.choice));
    if (!stream_->Push(std::move(out))) {
      lost_ = absl::ResourceExhaustedError("the reader is too slow to take the end of its answer");
    }
  } else {
    if (lost_.ok()) lost_ = status;
  }
  int open = 0;
  {
    absl::MutexLock lock(&mutex_);
    open = --open_choices_;
  }
  if (open == 0) return End(lost_);
  // One choice that failed takes the others along: half an answer is none.
  if (!lost_.ok()) Stop(lost_);
}

void GenerateSession::End(const absl::Status& status) {
  RequestLabels labels;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    labels = labels_;
    prompt_tokens = prompt_tokens_;
    completion_tokens = completion_tokens_;
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
  context_.metrics->ObserveRequest(labels, StatusName(status.code()), seconds, prompt_tokens,
                                   completion_tokens);
  spdlog::log(status.ok() ? spdlog::level::debug : spdlog::level::info,
              "request={} ended: {} (plan {} {}, {} + {} tokens, {:.3f} s)", request_id_, status.ToString(),
              labels.plan, labels.format, prompt_tokens, completion_tokens, seconds);
  if (context_.traces != nullptr && trace_ && trace_->sampled) ExportSpans(status, labels);
  stream_->End(ToGrpc(status));
  // What is left to write must not keep the call open for ever.
  context_.timer->At(absl::Now() + kReaderGrace, [weak = std::weak_ptr<Stream>(stream_)] {
    if (const auto stream = weak.lock()) stream->Abort();
  });
}

void GenerateSession::ExportSpans(const absl::Status& status, const RequestLabels& labels) {
  Span span{.context = *trace_,
            .parent = caller_->span_id,
            .name = absl::StrCat("decode ", labels.model),
            .kind = Span::Kind::kServer,
            .start = start_,
            .end = absl::Now(),
            .error = status.ok() ? "" : status.ToString()};
  Span handover{.context = *handover_trace_,
                .parent = trace_->span_id,
                .name = absl::StrCat("hand-over ", labels.format),
                .kind = Span::Kind::kClient};
  {
    absl::MutexLock lock(&mutex_);
    span.attributes = {{"gen_ai.request.model", labels.model},
                       {"gen_ai.usage.input_tokens", prompt_tokens_},
                       {"gen_ai.usage.output_tokens", completion_tokens_},
                       {"aludel.request_id", request_id_},
                       {"aludel.plan", labels.plan},
                       {"aludel.format", labels.format},
                       {"aludel.stage.queue_seconds", stages_.queue},
                       {"aludel.stage.prefill_seconds", stages_.prefill},
                       {"aludel.stage.encode_seconds", stages_.encode},
                       {"aludel.stage.transfer_seconds", stages_.transfer},
                       {"aludel.stage.reconstruct_seconds", stages_.reconstruct},
                       {"aludel.stage.native_seconds", stages_.native},
                       {"aludel.stage.first_decode_seconds", stages_.first_decode}};
    handover.start = handover_start_;
    handover.end = handover_end_;
    handover.attributes = {{"aludel.payload_bytes", static_cast<int64_t>(usage_.bytes)},
                           {"aludel.frames", static_cast<int64_t>(usage_.frames)},
                           {"aludel.handed_over_tokens", handed_over_tokens_}};
    if (labels.plan == "fallback") handover.error = "the prompt was prefilled on the decode server";
  }
  context_.traces->Export(std::move(span));
  if (handover.end != absl::UnixEpoch()) context_.traces->Export(std::move(handover));
}

}  // namespace aludel
