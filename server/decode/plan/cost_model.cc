#include "server/decode/plan/cost_model.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

// Prefixes are remembered at multiples of this many tokens, and whole.
constexpr int64_t kRememberedStep = 64;
// The link was the bottleneck if sending took this many times as long as producing.
constexpr double kLinkBound = 1.2;

// An observation above this many times the prediction counts as that much: one cold or busy moment says
// little about the next request, and a server that has become slower is learned after a few. Fast
// observations count in full: nothing is fast by accident.
constexpr double kSurprise = 2;

void Learn(double tokens, double seconds, CostFit* fit) {
  const std::optional<double> known = fit->At(tokens);
  fit->Add(tokens, known.has_value() ? std::min(seconds, kSurprise * *known) : seconds);
}

std::string Key(const std::string& target, const std::string& format) {
  return absl::StrCat(target, " ", format);
}

uint64_t HashPrefix(const std::string& key, absl::string_view salt, absl::Span<const int32_t> prefix) {
  return absl::HashOf(key, salt, prefix);
}

}  // namespace

std::optional<double> CostModel::PredictLocal(int64_t tokens) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<double> own = local_.At(static_cast<double>(tokens));
  if (!own) return own;
  return *own + Wait();
}

double CostModel::Wait() const {
  if (local_prompts_ == 0) return 0;
  // Prompt by prompt: attention makes one of all their tokens far dearer. The first is half done, on average.
  const auto prompts = static_cast<double>(local_prompts_);
  return (prompts - 0.5) * local_.At(static_cast<double>(local_tokens_) / prompts).value_or(0);
}

double CostModel::LocalWait() const {
  absl::MutexLock lock(&mutex_);
  return Wait();
}

std::optional<double> CostModel::LocalCompute(int64_t tokens) const {
  absl::MutexLock lock(&mutex_);
  return local_.At(static_cast<double>(tokens));
}

void CostModel::Forget(const std::set<std::string>& formats) {
  if (formats.empty()) return;
  absl::MutexLock lock(&mutex_);
  ++forgotten_;
  for (const std::string& format : formats) {
    formats_.erase(format);
    stored_.erase(format);
    for (auto& [target, link] : links_) {
      std::erase_if(link.rest, [&format](const auto& rest) { return rest.first.first == format; });
    }
  }
  std::erase_if(chosen_, [&formats](const auto& choice) {
    return std::any_of(formats.begin(), formats.end(), [&choice](const std::string& format) {
      return absl::EndsWith(choice.first, Key("", format));
    });
  });
  prefixes_.clear();
  prefix_order_.clear();
}

uint64_t CostModel::forgotten() const {
  absl::MutexLock lock(&mutex_);
  return forgotten_;
}

void CostModel::BeginLocal(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  ++local_prompts_;
  local_tokens_ += tokens;
}

void CostModel::EndLocal(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  --local_prompts_;
  local_tokens_ -= tokens;
}

bool CostModel::local_busy() const {
  absl::MutexLock lock(&mutex_);
  return local_prompts_ > 0;
}

void CostModel::Arrive(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  arrivals_.Arrive(now);
}

double CostModel::ArrivalsPerSecond(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return arrivals_.PerSecond(now);
}

double CostModel::ConsumerSeconds(const std::string& format, int64_t tokens) const {
  absl::MutexLock lock(&mutex_);
  const auto known = formats_.find(format);
  return known == formats_.end() ? 0 : known->second.consumer.At(static_cast<double>(tokens)).value_or(0);
}

const LinkEstimate& CostModel::RateOf(const Link& link) const {
  const auto site = sites_.find(link.site);
  return site == sites_.end() ? link.rate : site->second;
}

CostModel::Parts CostModel::PartsOf(const Link& link, const Format& format, int64_t tokens,
                                    int64_t cached) const {
  Parts parts;
  if (tokens != cached) parts.producer = link.producer.At(static_cast<double>(tokens - cached)).value_or(0);
  const double bytes = format.bytes.At(static_cast<double>(tokens)).value_or(0);
  const double rate = RateOf(link).bytes_per_second();
  if (rate > 0) parts.transfer = bytes / rate;
  parts.consumer = format.consumer.At(static_cast<double>(tokens)).value_or(0);
  return parts;
}

double CostModel::RestOf(const Link& link, const std::string& format, bool whole, int64_t tokens) {
  for (const bool key : {whole, !whole}) {
    const auto rest = link.rest.find({format, key});
    if (rest == link.rest.end() || !rest->second.At(static_cast<double>(tokens))) continue;
    return rest->second.SignedAt(static_cast<double>(tokens));
  }
  return 0;
}

std::optional<double> CostModel::PredictRemote(const Target& target, const std::string& format,
                                               absl::Span<const int32_t> prompt, absl::string_view salt,
                                               std::optional<int64_t> stored) const {
  absl::MutexLock lock(&mutex_);
  const auto link = links_.find(target.name);
  const auto known = formats_.find(format);
  if (link == links_.end() || known == formats_.end()) return std::nullopt;
  const double queue = target.tokens_per_second > 0
                           ? static_cast<double>(target.waiting_tokens) / target.tokens_per_second
                           : 0;
  const auto tokens = static_cast<int64_t>(prompt.size());
  const int64_t cached = stored ? std::min(*stored, tokens) : CachedTokens(target.name, format, salt, prompt);
  const Parts parts = PartsOf(link->second, known->second, tokens, cached);
  const double step_wait = local_prompts_ > 0 ? wait_beside_local_.seconds : wait_alone_.seconds;
  return queue + parts.With(RestOf(link->second, format, cached == tokens, tokens)) + step_wait;
}

std::optional<double> CostModel::PredictStored(const std::string& format, int64_t tokens) const {
  const auto x = static_cast<double>(tokens);
  absl::MutexLock lock(&mutex_);
  if (const auto stored = stored_.find(format); stored != stored_.end()) return stored->second.At(x);
  const auto known = formats_.find(format);
  return known == formats_.end() ? std::nullopt : known->second.consumer.At(x);
}

void CostModel::ObserveStored(const std::string& format, int64_t tokens, double seconds) {
  const auto x = static_cast<double>(tokens);
  absl::MutexLock lock(&mutex_);
  CostFit& fit = stored_[format];
  // The first one is no less a surprise than later ones.
  const auto known = formats_.find(format);
  if (!fit.At(x) && known != formats_.end()) {
    if (const auto prior = known->second.consumer.At(x)) seconds = std::min(seconds, kSurprise * *prior);
  }
  Learn(x, seconds, &fit);
}

void CostModel::ObserveLocal(int64_t tokens, int64_t cached, const StageSeconds& stages) {
  absl::MutexLock lock(&mutex_);
  Learn(static_cast<double>(tokens - cached), stages.ttft - stages.queue, &local_);
}

void CostModel::ObserveRemote(const Target& target, const std::string& format,
                              absl::Span<const int32_t> prompt, absl::string_view salt,
                              const StageSeconds& stages, const ProducerSeconds& producer,
                              const FrameArrival& arrival) {
  if (arrival.bytes == 0) return;
  const auto tokens = static_cast<int64_t>(prompt.size());
  const double made_in = producer.prefill + producer.encode;
  absl::MutexLock lock(&mutex_);
  if (!Knows(target.name)) return;
  const int64_t cached = CachedTokens(target.name, format, salt, prompt);
  if (arrival.stored) RememberPrefixes(target.name, format, salt, prompt);
  Format& known = formats_[format];
  known.bytes.Add(static_cast<double>(tokens), static_cast<double>(arrival.bytes));
  Learn(static_cast<double>(tokens), stages.reconstruct + stages.recompute + stages.first_decode,
        &known.consumer);
  Link& link = links_[target.name];
  if (std::exchange(link.site, target.site) != target.site) ForgetSites();
  if (cached > 0 && link.seen) {
    const double uncached = link.producer.At(static_cast<double>(tokens)).value_or(made_in);
    link.caches = made_in < uncached / 2;
  }
  if (tokens > cached || !link.caches) {
    Learn(static_cast<double>(link.caches ? tokens - cached : tokens), made_in, &link.producer);
  }
  if (arrival.bytes > arrival.first_bytes) {
    LinkEstimate& rate = target.site.empty() ? link.rate : sites_[target.site];
    rate.Observe(static_cast<double>(arrival.bytes - arrival.first_bytes), arrival.seconds,
                 arrival.seconds > kLinkBound * made_in);
  }
  const int64_t spared = link.caches ? cached : 0;
  const Parts parts = PartsOf(link, known, tokens, spared);
  link.rest[{format, spared == tokens}].Add(static_cast<double>(tokens),
                                            stages.ttft - stages.queue - arrival.step_wait - parts.Sum());
  StepWaitOf(arrival.beside_local).Add(arrival.step_wait);
  link.seen = true;
  chosen_[Key(target.name, format)].overtaken = 0;
}

void CostModel::ObserveOvertaken(const Target& target, const std::string& format,
                                 absl::Span<const int32_t> prompt, absl::string_view salt, absl::Time begin,
                                 absl::Time now, bool beside_local) {
  absl::MutexLock lock(&mutex_);
  if (!Knows(target.name)) return;
  Choice& choice = chosen_[Key(target.name, format)];
  if (begin <= choice.overtaken_at) return;
  choice.overtaken_at = now;
  choice.overtaken = std::min(choice.overtaken + 1, kMaxDoublings);
  choice.waited = absl::ToDoubleSeconds(now - begin);
  const auto link = links_.find(target.name);
  const auto known = formats_.find(format);
  if (link == links_.end() || known == formats_.end()) return;
  const auto tokens = static_cast<int64_t>(prompt.size());
  const int64_t cached = CachedTokens(target.name, format, salt, prompt);
  const Parts parts = PartsOf(link->second, known->second, tokens, cached);
  CostFit& rest = link->second.rest[{format, cached == tokens}];
  const double step_wait = StepWaitOf(beside_local).seconds;
  const double expected = parts.With(RestOf(link->second, format, cached == tokens, tokens)) + step_wait;
  // How long it would have taken is not known: as long as it was waited for, at least. That may be less than
  // what is expected, and says nothing then.
  const double waited = std::min(absl::ToDoubleSeconds(now - begin), kSurprise * expected);
  if (waited > expected) rest.Add(static_cast<double>(tokens), waited - step_wait - parts.Sum());
}

void CostModel::SetTargets(std::set<std::string> targets) {
  absl::MutexLock lock(&mutex_);
  targets_ = std::move(targets);
  std::erase_if(
      links_, [this](const auto& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !Knows(link.first); });
  std::erase_if(chosen_, [this](const auto& choice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !Knows(choice.first.substr(0, choice.first.find(' ')));
  });
  ForgetSites();
}

void CostModel::ForgetSites() {
  std::erase_if(sites_, [this](const auto& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::none_of(links_.begin(), links_.end(),
                        [&site](const auto& link) { return link.second.site == site.first; });
  });
}

// Local prefill has no name.
bool CostModel::Knows(const std::string& target) const {
  return !targets_ || target.empty() || targets_->contains(target);
}

void CostModel::Chosen(const std::string& target, const std::string& format, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (!Knows(target)) return;
  Choice& choice = chosen_[Key(target, format)];
  choice.at = now;
  choice.waited.reset();
}

std::optional<double> CostModel::Waited(const std::string& target, const std::string& format) const {
  absl::MutexLock lock(&mutex_);
  const auto chosen = chosen_.find(Key(target, format));
  return chosen == chosen_.end() ? std::nullopt : chosen->second.waited;
}

bool CostModel::IsStale(const std::string& target, const std::string& format, absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  const auto chosen = chosen_.find(Key(target, format));
  return chosen == chosen_.end() || now - chosen->second.at > kStale * (1 << chosen->second.overtaken);
}

double CostModel::BytesPerToken(const std::string& format, int64_t tokens) const {
  absl::MutexLock lock(&mutex_);
  const auto known = formats_.find(format);
  if (known == formats_.end() || tokens < 1) return 0;
  return known->second.bytes.At(static_cast<double>(tokens)).value_or(0) / static_cast<double>(tokens);
}

void CostModel::ObserveUpgrade(const std::string& format, int64_t tokens, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto known = formats_.find(format);
  if (known == formats_.end() || tokens < 1) return;
  known->second.upgrade.Add(static_cast<double>(tokens), static_cast<double>(bytes));
}

double CostModel::UpgradeBytes(const std::string& format, int64_t tokens) const {
  absl::MutexLock lock(&mutex_);
  const auto known = formats_.find(format);
  return known == formats_.end() ? 0 : known->second.upgrade.At(static_cast<double>(tokens)).value_or(0);
}

std::map<std::string, double> CostModel::LinkRates() const {
  std::map<std::string, double> rates;
  absl::MutexLock lock(&mutex_);
  for (const auto& [target, link] : links_) rates[target] = RateOf(link).bytes_per_second();
  return rates;
}

int64_t CostModel::CachedTokens(const std::string& target, const std::string& format, absl::string_view salt,
                                absl::Span<const int32_t> prompt) const {
  const auto link = links_.find(target);
  if (link == links_.end() || !link->second.caches) return 0;
  const std::string key = Key(target, format);
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (prefixes_.count(HashPrefix(key, salt, prompt)) != 0) return tokens;
  for (int64_t end = tokens / kRememberedStep * kRememberedStep; end > 0; end -= kRememberedStep) {
    if (prefixes_.count(HashPrefix(key, salt, prompt.subspan(0, end))) != 0) return end;
  }
  return 0;
}

void CostModel::RememberPrefixes(const std::string& target, const std::string& format, absl::string_view salt,
                                 absl::Span<const int32_t> prompt) {
  const std::string key = Key(target, format);
  const auto remember = [&](absl::Span<const int32_t> prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t hash = HashPrefix(key, salt, prefix);
    if (!prefixes_.insert(hash).second) return;
    prefix_order_.push_back(hash);
    if (prefix_order_.size() <= kMaxPrefixes) return;
    prefixes_.erase(prefix_order_.front());
    prefix_order_.pop_front();
  };
  const auto tokens = static_cast<int64_t>(prompt.size());
  for (int64_t end = kRememberedStep; end < tokens; end += kRememberedStep) remember(prompt.subspan(0, end));
  remember(prompt);
}

}  // namespace aludel
