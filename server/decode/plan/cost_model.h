#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/decode/plan/arrival_rate.h"
#include "server/decode/plan/cost_fit.h"
#include "server/decode/plan/link_estimate.h"
#include "server/decode/stages.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// How a handoff's frames came in.
struct FrameArrival {
  // Of all frames. 0: not known, nor when they came, since the ticket was lost between its last frame and the first token.
  uint64_t bytes = 0;
  uint64_t first_bytes = 0;  // of the first one received
  double seconds = 0;        // from the first to the last
  bool stored = true;        // the server keeps what it sent
  // What had come waited so long for this server's steps, which computed other prompts.
  double step_wait = 0;
  bool beside_local = false;  // prompts were prefilled here when it was planned
};

// What the time to the first token is made of, learned from the requests that were served: seconds of prefill
// and of reconstruction by prompt length, bytes by format, the rate of each prefill server's link. Predicts a
// plan's time from them. Thread-safe; its memory is bounded by servers x formats, and kMaxPrefixes.
class CostModel {
 public:
  // Local prefill of `tokens` that no cache has, behind those that have begun here. Nothing until one
  // was seen.
  std::optional<double> PredictLocal(int64_t tokens) const;

  // The part of it before the first of its tokens is computed: 0 where nothing has begun here.
  double LocalWait() const;
  // The rest of it.
  std::optional<double> LocalCompute(int64_t tokens) const;

  struct Target {
    std::string name;
    int64_t waiting_tokens = 0;    // as it reported
    double tokens_per_second = 0;  // the same; 0: not known
    std::string site;              // whose servers share a link; "": it has one of its own
  };
  // The handoff of `prompt` from `target` in `format`: the longer of producing and sending, what this
  // server does itself, what earlier ones took beside or saved of that, and where prompts are prefilled here, for how long
  // earlier ones waited for such steps. Nothing until that format came
  // from any server and anything came from that server. `salt`: what the server had to send for another salt
  // it does not have for this one. `stored`: tokens of the prompt that it says it has; nothing: what it was asked for
  // before counts.
  std::optional<double> PredictRemote(const Target& target, const std::string& format,
                                      absl::Span<const int32_t> prompt, absl::string_view salt,
                                      std::optional<int64_t> stored = std::nullopt) const;

  // What this server does itself for a handoff of so many tokens; 0: not known.
  double ConsumerSeconds(const std::string& format, int64_t tokens) const;

  // Of the first `tokens` of a prompt from this server's own store, in that format: as long as it took before, or at first
  // what this server does itself for frames of any server. Nothing until either was seen.
  std::optional<double> PredictStored(const std::string& format, int64_t tokens) const;

  // This server's cache had the first `cached` of the prompt's `tokens`.
  void ObserveLocal(int64_t tokens, int64_t cached, const StageSeconds& stages);
  void ObserveRemote(const Target& target, const std::string& format, absl::Span<const int32_t> prompt,
                     absl::string_view salt, const StageSeconds& stages, const ProducerSeconds& producer,
                     const FrameArrival& arrival);

  // It took so many seconds, or was given up for another plan that took so many.
  void ObserveStored(const std::string& format, int64_t tokens, double seconds);

  // This handoff, begun at `begin`, was ended at `now` for what was sooner: local prefill beside it, or another
  // server. Of handoffs that ran at the same time one counts: what made one late made all of them late.
  // FrameArrival says what `beside_local` is.
  void ObserveOvertaken(const Target& target, const std::string& format, absl::Span<const int32_t> prompt,
                        absl::string_view salt, absl::Time begin, absl::Time now, bool beside_local = false);

  // These are the prefill servers from now on: nothing is known, or learned from runs that still end, of others. Until
  // then of all.
  void SetTargets(std::set<std::string> targets);

  // What was learned of these formats is of another artifact now, and so is what servers were asked for before.
  // Nothing where there are none.
  void Forget(const std::set<std::string>& formats);
  // How often that was: what was planned before is no news behind it.
  uint64_t forgotten() const;

  // A prompt of so many tokens is being prefilled here, or no longer.
  void BeginLocal(int64_t tokens);
  void EndLocal(int64_t tokens);
  bool local_busy() const;

  // A request is planned, in whatever way.
  void Arrive(absl::Time now);
  // How many are, lately.
  double ArrivalsPerSecond(absl::Time now) const;

  // This plan (no target: local prefill, or with a format this server's own store) was chosen at `now`. What is not chosen is not measured: after kStale its
  // figures are old. Twice as long each time that it was overtaken since it was last complete, up to kMaxDoublings.
  void Chosen(const std::string& target, const std::string& format, absl::Time now);
  bool IsStale(const std::string& target, const std::string& format, absl::Time now) const;
  // How long the last handoff that was chosen was waited for, if it was overtaken.
  std::optional<double> Waited(const std::string& target, const std::string& format) const;

  // Of a handoff of so many tokens, all frames together, without second parts of frames (CodecSpec::base_planes); 0: not known.
  double BytesPerToken(const std::string& format, int64_t tokens) const;
  // All second parts of a handoff came, and were so many bytes.
  void ObserveUpgrade(const std::string& format, int64_t tokens, uint64_t bytes);
  // Bytes of them that are to be expected; 0: not known.
  double UpgradeBytes(const std::string& format, int64_t tokens) const;

  // For metrics: of the prefill servers that something came from; 0: not known.
  std::map<std::string, double> LinkRates() const;

  static constexpr absl::Duration kStale = absl::Seconds(30);
  static constexpr int kMaxDoublings = 5;
  static constexpr size_t kMaxPrefixes = 4096;

 private:
  struct Format {
    CostFit bytes;     // of all frames, by tokens
    CostFit upgrade;   // of their second parts
    CostFit consumer;  // seconds of this server's own work, by tokens
  };
  struct Link {
    LinkEstimate rate;  // where its site has none
    std::string site;
    CostFit producer;  // seconds of prefill and encoding, by tokens that it did not have cached
    // Seconds to add to the sum of the parts, or to take off because they overlap, by tokens: for each
    // format, and apart for prompts that it had cached whole.
    std::map<std::pair<std::string, bool>, CostFit> rest;
    bool caches = true;  // sends frames of prompts that it has seen without computing them
    bool seen = false;
  };

  // The mean of the latest ones, of handoffs that were planned beside local prefill or not. Kept apart from Link::rest: most
  // handoffs are chosen because prompts are waiting here, and what these wait for is nothing that others must expect.
  struct StepWait {
    double seconds = 0;
    bool seen = false;

    void Add(double observed) {
      seconds = seen ? seconds + kLatest * (observed - seconds) : observed;
      seen = true;
    }
    static constexpr double kLatest = 0.1;
  };
  StepWait& StepWaitOf(bool beside_local) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return beside_local ? wait_beside_local_ : wait_alone_;
  }

  struct Choice {
    absl::Time at = absl::InfinitePast();  // the last one
    int overtaken = 0;                     // since it was last complete
    absl::Time overtaken_at = absl::InfinitePast();
    std::optional<double> waited;  // seconds, of the last one, if it was
  };

  // Tokens at the prompt's start that `target` was asked for before, in that format and for that salt: it has
  // their frames.
  int64_t CachedTokens(const std::string& target, const std::string& format, absl::string_view salt,
                       absl::Span<const int32_t> prompt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RememberPrefixes(const std::string& target, const std::string& format, absl::string_view salt,
                        absl::Span<const int32_t> prompt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a handoff consists of, in seconds.
  struct Parts {
    double producer = 0;
    double transfer = 0;
    double consumer = 0;
    // Producing and sending overlap always.
    double Sum() const { return std::max(producer, transfer) + consumer; }
    // A lower bound, with perfect overlap.
    double Least() const { return std::max({producer, transfer, consumer}); }
    double With(double rest) const { return std::max(Least(), Sum() + rest); }
  };
  Parts PartsOf(const Link& link, const Format& format, int64_t tokens, int64_t cached) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Link::rest; of prompts that were not cached `whole` alike, or that were, where nothing is known of these: a slow link is slow
  // for both.
  static double RestOf(const Link& link, const std::string& format, bool whole, int64_t tokens);
  // That it comes over.
  const LinkEstimate& RateOf(const Link& link) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Of sites that no link is from any more.
  void ForgetSites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Knows(const std::string& target) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double Wait() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  CostFit local_ ABSL_GUARDED_BY(mutex_);
  int64_t local_prompts_ ABSL_GUARDED_BY(mutex_) = 0;  // being prefilled here
  int64_t local_tokens_ ABSL_GUARDED_BY(mutex_) = 0;   // of all of them
  StepWait wait_beside_local_ ABSL_GUARDED_BY(mutex_), wait_alone_ ABSL_GUARDED_BY(mutex_);
  ArrivalRate arrivals_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::set<std::string>> targets_ ABSL_GUARDED_BY(mutex_);  // nothing: all there may be
  std::map<std::string, Format> formats_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, CostFit> stored_ ABSL_GUARDED_BY(mutex_);  // seconds by tokens, by format
  std::map<std::string, Link> links_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, LinkEstimate> sites_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Choice> chosen_ ABSL_GUARDED_BY(mutex_);
  uint64_t forgotten_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> prefixes_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> prefix_order_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace aludel
