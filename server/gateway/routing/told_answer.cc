#include "server/gateway/routing/told_answer.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace aludel {
namespace {

constexpr uint64_t kAnyAgeMs = uint64_t{1} << 40;

bool IsExact(const v1::Started& started) { return started.plan() == "local" || started.plan() == "fallback"; }

}  // namespace

bool ToldAnswer::SamePlan(const v1::Started& started) const {
  if (IsExact(started_) || IsExact(started)) return IsExact(started_) && IsExact(started);
  if (started_.format() != started.format()) return false;
  // The same frames come from a prefill server and from what a decode server has received before, of which one may have
  // more than another.
  const auto framed = [](const v1::Started& one) { return one.plan() == "remote" || one.plan() == "stored"; };
  if (framed(started_) && framed(started))
    return started_.handed_over_tokens() == started.handed_over_tokens();
  return started_.plan() == started.plan();
}

void ToldAnswer::AskForPlan(v1::GenerateRequest* request) const {
  request->clear_format();
  request->set_fidelity(v1::FIDELITY_EXACT);
  if (IsExact(started_)) return;
  request->clear_fidelity();
  request->set_format(started_.format());
  // With a bound on their age, codes come from a prefill server and not from what the decode server has.
  if ((started_.plan() == "remote" || started_.plan() == "stored") && !request->has_max_staleness_ms())
    request->set_max_staleness_ms(kAnyAgeMs);
}

ToldAnswer::Verdict ToldAnswer::Hear(const v1::Token& token) {
  if (token.choice() >= choices_.size()) return Verdict::kNews;
  Choice& choice = choices_[token.choice()];
  if (choice.repeated < choice.tokens.size()) {
    return choice.tokens[choice.repeated++] == token.id() ? Verdict::kRepeated : Verdict::kDiverged;
  }
  if (choice.finished) return Verdict::kDiverged;
  choice.tokens.push_back(token.id());
  ++choice.repeated;
  return Verdict::kNews;
}

ToldAnswer::Verdict ToldAnswer::Hear(const v1::Finished& finished) {
  if (finished.choice() >= choices_.size()) return Verdict::kNews;
  Choice& choice = choices_[finished.choice()];
  if (choice.repeated < choice.tokens.size()) return Verdict::kDiverged;
  return std::exchange(choice.finished, true) ? Verdict::kRepeated : Verdict::kNews;
}

void ToldAnswer::Forget() {
  started_.Clear();
  choices_.assign(choices_.size(), {});
}

void ToldAnswer::Repeat() {
  for (Choice& choice : choices_) choice.repeated = 0;
}

bool ToldAnswer::repeating() const {
  return absl::c_any_of(choices_,
                        [](const Choice& choice) { return choice.repeated < choice.tokens.size(); });
}

bool ToldAnswer::whole() const {
  return absl::c_all_of(choices_, [](const Choice& choice) { return choice.finished; });
}

}  // namespace aludel
