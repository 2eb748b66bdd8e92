#include "runtime/text/constrain/regex/char_dfa.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

constexpr int64_t kTransitionsPerStep = 2;

}  // namespace

absl::StatusOr<int32_t> CharDfa::AddState(bool accepts, StepBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Spend(4 + alphabet_.size() / kTransitionsPerStep));
  if (accepts_.size() == kMaxStates) {
    return absl::InvalidArgumentError(absl::StrCat("needs more than ", kMaxStates, " states"));
  }
  next_.resize(next_.size() + alphabet_.size(), kDead);
  accepts_.push_back(accepts);
  return static_cast<int32_t>(accepts_.size() - 1);
}

absl::StatusOr<CharDfa> CharDfa::MakeList(const std::vector<std::string>& texts, StepBudget* budget) {
  std::vector<CodePointSet> letters;
  CodePointSet seen;
  for (const std::string& text : texts) {
    ALUDEL_RETURN_IF_ERROR(budget->Spend(1 + static_cast<int64_t>(text.size())));
    for (size_t at = 0; at < text.size();) {
      const uint32_t code_point = NextCodePoint(text, &at);
      if (seen.Has(code_point)) continue;
      seen.Add(code_point, code_point);
      letters.push_back({{code_point, code_point}});
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(Alphabet alphabet, Alphabet::Of(letters, budget));
  CharDfa dfa(std::move(alphabet));
  ALUDEL_RETURN_IF_ERROR(dfa.AddState(false, budget).status());
  for (const std::string& text : texts) {
    int32_t state = 0;
    for (size_t at = 0; at < text.size();) {
      const int32_t symbol = dfa.alphabet_.SymbolOf(NextCodePoint(text, &at));
      int32_t next = dfa.Next(state, symbol);
      if (next == kDead) {
        ALUDEL_ASSIGN_OR_RETURN(next, dfa.AddState(false, budget));
        dfa.Next(state, symbol) = next;
      }
      state = next;
    }
    dfa.accepts_[state] = true;
  }
  dfa.Trim();
  return dfa;
}

absl::StatusOr<CharDfa> CharDfa::MakeLengths(int64_t min, int64_t max, StepBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(Alphabet alphabet, Alphabet::Of({}, budget));
  CharDfa dfa(std::move(alphabet));
  const int64_t last = max < 0 ? min : max;
  for (int64_t i = 0; i <= last; ++i) {
    ALUDEL_ASSIGN_OR_RETURN(const int32_t state, dfa.AddState(i >= min, budget));
    if (state > 0) dfa.Next(state - 1, 1) = state;
  }
  if (max < 0) dfa.Next(static_cast<int32_t>(last), 1) = static_cast<int32_t>(last);
  return dfa;
}

absl::StatusOr<CharDfa> CharDfa::Intersect(absl::Span<const Term> terms, StepBudget* budget) {
  std::vector<const Alphabet*> alphabets;
  for (const Term& term : terms) alphabets.push_back(&term.dfa->alphabet_);
  ALUDEL_ASSIGN_OR_RETURN(Alphabet joint, Alphabet::Joint(alphabets, budget));
  std::vector<std::vector<int32_t>> symbols;  // of each term, by the joint ones
  for (const Alphabet* alphabet : alphabets) symbols.push_back(joint.In(*alphabet));
  CharDfa dfa(std::move(joint));

  std::vector<std::vector<int32_t>> states;  // of each term
  absl::flat_hash_map<std::vector<int32_t>, int32_t> ids;
  // The state of the product, kDead where a term has no way on.
  const auto intern = [&](std::vector<int32_t> parts) -> absl::StatusOr<int32_t> {
    bool accepts = true;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (parts[i] == kDead && !terms[i].negated) return kDead;
      accepts = accepts && (parts[i] != kDead && terms[i].dfa->accepts(parts[i])) != terms[i].negated;
    }
    if (const auto known = ids.find(parts); known != ids.end()) return known->second;
    ALUDEL_ASSIGN_OR_RETURN(const int32_t id, dfa.AddState(accepts, budget));
    ids.emplace(parts, id);
    states.push_back(std::move(parts));
    return id;
  };
  std::vector<int32_t> starts;
  for (const Term& term : terms) starts.push_back(term.dfa->empty() ? kDead : 0);
  ALUDEL_RETURN_IF_ERROR(intern(std::move(starts)).status());
  for (size_t at = 0; at < states.size(); ++at) {
    for (int32_t symbol = 1; symbol < dfa.alphabet_.size(); ++symbol) {
      ALUDEL_RETURN_IF_ERROR(budget->Spend(2 + static_cast<int64_t>(terms.size())));
      std::vector<int32_t> next = states[at];
      for (size_t i = 0; i < terms.size(); ++i) {
        if (next[i] != kDead) next[i] = terms[i].dfa->Next(next[i], symbols[i][symbol]);
      }
      ALUDEL_ASSIGN_OR_RETURN(const int32_t to, intern(std::move(next)));
      dfa.Next(static_cast<int32_t>(at), symbol) = to;
    }
  }
  dfa.Trim();
  return dfa;
}

void CharDfa::Trim() {
  const auto count = static_cast<int32_t>(states());
  const int32_t symbols = alphabet_.size();
  // Which states lead to each, as lists in one array.
  std::vector<int32_t> first(count + 1, 0);
  for (const int32_t to : next_) first[to + 1] += to == kDead ? 0 : 1;
  for (int32_t id = 0; id < count; ++id) first[id + 1] += first[id];
  std::vector<int32_t> from(first[count]), filled(first.begin(), first.end() - 1);
  for (size_t i = 0; i < next_.size(); ++i) {
    if (next_[i] != kDead) from[filled[next_[i]]++] = static_cast<int32_t>(i / symbols);
  }
  std::vector<bool> live = accepts_;
  std::vector<int32_t> ready;
  for (int32_t id = 0; id < count; ++id) {
    if (accepts_[id]) ready.push_back(id);
  }
  while (!ready.empty()) {
    const int32_t id = ready.back();
    ready.pop_back();
    for (int32_t i = first[id]; i < first[id + 1]; ++i) {
      if (live[from[i]]) continue;
      live[from[i]] = true;
      ready.push_back(from[i]);
    }
  }
  std::vector<int32_t> renamed(count, kDead);
  int32_t kept = 0;
  for (int32_t id = 0; id < count && live[0]; ++id) {
    if (live[id]) renamed[id] = kept++;
  }
  CharDfa trimmed(alphabet_);
  trimmed.next_.resize(static_cast<size_t>(kept) * symbols);
  trimmed.accepts_.resize(kept);
  for (int32_t id = 0; id < count; ++id) {
    if (renamed[id] == kDead) continue;
    trimmed.accepts_[renamed[id]] = accepts_[id];
    for (int32_t symbol = 0; symbol < symbols; ++symbol) {
      const int32_t to = Next(id, symbol);
      trimmed.Next(renamed[id], symbol) = to == kDead ? kDead : renamed[to];
    }
  }
  *this = std::move(trimmed);
}

bool CharDfa::Has(absl::string_view utf8) const {
  int32_t state = empty() ? kDead : 0;
  for (size_t at = 0; at < utf8.size() && state != kDead;) {
    state = Next(state, alphabet_.SymbolOf(NextCodePoint(utf8, &at)));
  }
  return state != kDead && accepts_[state];
}

std::vector<CharDfa::Edge> CharDfa::EdgesOf(int32_t state) const {
  std::vector<Edge> edges;
  absl::flat_hash_map<int32_t, size_t> edge_of;
  for (int32_t symbol = 0; symbol < alphabet_.size(); ++symbol) {
    const int32_t to = Next(state, symbol);
    if (to == kDead) continue;
    const auto [it, added] = edge_of.try_emplace(to, edges.size());
    if (added) edges.push_back({.to = to});
    edges[it->second].symbols.push_back(symbol);
  }
  return edges;
}

}  // namespace aludel
