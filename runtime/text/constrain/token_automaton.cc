#include "runtime/text/constrain/token_automaton.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace aludel {
namespace {

// Stands for the node of a text that is complete.
constexpr int32_t kAccept = INT32_MAX;
constexpr int32_t kNoStack = -1;
// Nodes that are passed on the way to one that waits for a byte: calls, splits and returns.
constexpr size_t kMaxStepsPerConfig = 16;
// Steps of what costs more than one.
constexpr int64_t kConfigSteps = 4;  // to pass a node
constexpr int64_t kStateSteps = 32;  // to make a state, and a quarter of one for each of its configurations
constexpr size_t kConfigsAStep = 4;  // tried with a byte

constexpr uint64_t Pair(int32_t high, int32_t low) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}
constexpr int32_t High(uint64_t pair) { return static_cast<int32_t>(pair >> 32); }
constexpr int32_t Low(uint64_t pair) { return static_cast<int32_t>(pair & 0xffffffff); }

}  // namespace

struct TokenMask {
  std::vector<uint64_t> bits;  // none where it was given up
  bool narrowed = false;       // a token was left out because too many ways are open behind it
};

TokenAutomaton::TokenAutomaton(Grammar grammar, std::shared_ptr<const TokenTable> table)
    : grammar_(std::move(grammar)), table_(std::move(table)) {
  FindByteClasses();
  Close(grammar_.start, kNoStack);
  start_ = Intern();
}

// Bytes that no set tells apart share a transition.
void TokenAutomaton::FindByteClasses() {
  // Every set cuts the classes in two, unless they are single bytes already.
  std::array<int, 256> classes{};
  int count = 1;
  for (const ByteSet& set : grammar_.sets) {
    if (count == 256) break;
    std::array<std::array<int, 2>, 256> renamed;
    for (auto& pair : renamed) pair = {-1, -1};
    int next = 0;
    for (int byte = 0; byte < 256; ++byte) {
      int& name = renamed[classes[byte]][set.test(byte) ? 1 : 0];
      if (name < 0) name = next++;
      classes[byte] = name;
    }
    count = next;
  }
  byte_of_class_.resize(count);
  for (int byte = 255; byte >= 0; --byte) {
    class_of_[byte] = static_cast<uint8_t>(classes[byte]);
    byte_of_class_[classes[byte]] = static_cast<uint8_t>(byte);
  }
}

int32_t TokenAutomaton::Push(int32_t node, int32_t parent) {
  const auto [it, added] = frame_ids_.try_emplace(Pair(node, parent), static_cast<int32_t>(frames_.size()));
  if (added) frames_.push_back({node, parent});
  return it->second;
}

// Adds to closing_ every node that waits for a byte, or for the end, and that is reached from `node`
// for nothing.
void TokenAutomaton::Close(int32_t node, int32_t stack) {
  if (too_wide_) return;
  pending_.push_back(Pair(node, stack));
  while (!pending_.empty()) {
    const Config config = pending_.back();
    pending_.pop_back();
    steps_ += kConfigSteps;
    if (closing_.size() > kMaxConfigs || seen_.size() > kMaxStepsPerConfig * kMaxConfigs) {
      too_wide_ = true;
      pending_.clear();
      return;
    }
    if (!seen_.try_emplace(config, true).second) continue;
    const int32_t at = High(config);
    const int32_t below = Low(config);
    const Grammar::Node& entry = grammar_.nodes[at];
    switch (entry.kind) {
      case Grammar::Kind::kBytes:
        closing_.push_back(config);
        break;
      case Grammar::Kind::kSplit:
        pending_.push_back(Pair(entry.to, below));
        pending_.push_back(Pair(entry.next, below));
        break;
      case Grammar::Kind::kCall: {
        // A caller that has nothing left to do needs no frame: stacks stay as deep as the text is nested.
        const bool tail = grammar_.nodes[entry.next].kind == Grammar::Kind::kReturn;
        pending_.push_back(Pair(entry.to, tail ? below : Push(entry.next, below)));
        break;
      }
      case Grammar::Kind::kReturn:
        if (below == kNoStack) {
          closing_.push_back(Pair(kAccept, kNoStack));
        } else {
          pending_.push_back(Pair(frames_[below].node, frames_[below].parent));
        }
        break;
    }
  }
}

int32_t TokenAutomaton::Intern() {
  State state;
  state.configs = std::move(closing_);
  closing_.clear();
  seen_.clear();
  if (std::exchange(too_wide_, false)) return kTooWide;
  if (state.configs.empty()) return kDead;
  std::sort(state.configs.begin(), state.configs.end());
  steps_ += kStateSteps + static_cast<int64_t>(state.configs.size() / kConfigsAStep);
  const auto known = state_ids_.find(absl::MakeConstSpan(state.configs));
  if (known != state_ids_.end()) return known->second;
  const auto id = static_cast<int32_t>(states_.size());
  for (const Config config : state.configs) {
    if (High(config) == kAccept) {
      state.accepts = true;
    } else {
      state.live |= grammar_.sets[grammar_.nodes[High(config)].to];
    }
  }
  state.next.assign(byte_of_class_.size(), kUnknown);
  held_configs_ += state.configs.size();
  states_.push_back(std::move(state));
  state_ids_.emplace(absl::MakeConstSpan(states_.back().configs), id);
  return id;
}

int32_t TokenAutomaton::Step(int32_t state, uint8_t byte) {
  const uint8_t byte_class = class_of_[byte];
  const int32_t known = states_[state].next[byte_class];
  if (known != kUnknown) return known;
  ++steps_;
  if (!states_[state].live.test(byte)) return states_[state].next[byte_class] = kDead;
  steps_ += static_cast<int64_t>(states_[state].configs.size() / kConfigsAStep);
  for (const Config config : states_[state].configs) {
    if (High(config) == kAccept) continue;
    const Grammar::Node& node = grammar_.nodes[High(config)];
    if (grammar_.sets[node.to].test(byte)) Close(node.next, Low(config));
  }
  const int32_t next = Intern();
  states_[state].next[byte_class] = next;
  return next;
}

void TokenAutomaton::BeginWalk(int32_t state) {
  ++walks_;
  walk_ = {.state = state, .path = {state}, .mask = std::make_shared<TokenMask>()};
  walk_.path.reserve(table_->longest() + 1);
  walk_.mask->bits.assign(table_->mask_words(), 0);
}

void TokenAutomaton::Continue(int64_t until) {
  const auto allow = [this](int32_t id) { walk_.mask->bits[id / 64] |= uint64_t{1} << (id % 64); };
  const int64_t begun = steps_;
  const absl::Span<const TokenTable::Entry> entries = table_->entries();
  for (; walk_.entry < entries.size(); ++walk_.entry) {
    if (walk_.steps + steps_ - begun > kMaxMaskSteps) {
      walk_.mask->bits.clear();
      return EndWalk();
    }
    const TokenTable::Entry& entry = entries[walk_.entry];
    ++steps_;
    if (entry.shared >= walk_.path.size()) continue;  // the prefix that it shares is dead
    walk_.path.resize(entry.shared + 1);
    const absl::string_view bytes = table_->bytes(entry);
    int32_t at = walk_.path.back();
    for (size_t i = entry.shared; i < bytes.size(); ++i) {
      if (steps_ >= until) break;
      at = Step(at, static_cast<uint8_t>(bytes[i]));
      if (at < 0) break;
      walk_.path.push_back(at);
    }
    // What was found of the entry is known, so that beginning it again costs next to nothing.
    if (at >= 0 && walk_.path.size() <= bytes.size()) break;
    if (at == kTooWide) walk_.mask->narrowed = true;
    if (at >= 0) allow(entry.id);
  }
  walk_.steps += steps_ - begun;
  if (walk_.entry < entries.size()) return;
  if (states_[walk_.state].accepts) {
    for (const int id : table_->eos_ids()) allow(id);
  }
  EndWalk();
}

void TokenAutomaton::EndWalk() {
  if ((masks_ + 1) * table_->mask_words() * sizeof(uint64_t) > kMaxMaskBytes && masks_ > 0) {
    masks_ = 0;
    for (State& state : states_) state.mask = nullptr;
  }
  ++masks_;
  states_[walk_.state].mask = std::move(walk_.mask);
  walk_.state = kDead;
}

// What a restart has to keep may be more than the bounds: the next one comes when as much again was added.
bool TokenAutomaton::TooLarge() const {
  return states_.size() > kMaxStates + cursors_.size() || held_configs_ > kMaxHeldConfigs + kept_configs_ ||
         frames_.size() > kMaxHeldConfigs + kept_frames_;
}

void TokenAutomaton::Restart() {
  ++restarts_;
  const std::vector<Frame> frames = std::exchange(frames_, {});
  const std::vector<State> states = std::exchange(states_, {});
  frame_ids_.clear();
  state_ids_.clear();
  masks_ = 0;
  held_configs_ = 0;
  Close(grammar_.start, kNoStack);
  start_ = Intern();
  // Stacks are copied from the bottom, each frame once however many stand on it: below comes before above.
  std::vector<int32_t> moved(frames.size(), kNoStack);
  std::vector<bool> wanted(frames.size(), false);
  std::vector<int32_t> kept(states.size(), kUnknown);
  for (const Cursor* cursor : cursors_) {
    if (cursor->state_ < 0 || std::exchange(kept[cursor->state_], kDead) == kDead) continue;
    for (const Config config : states[cursor->state_].configs) {
      for (int32_t at = Low(config); at != kNoStack && !wanted[at]; at = frames[at].parent) wanted[at] = true;
    }
  }
  for (size_t id = 0; id < frames.size(); ++id) {
    if (!wanted[id]) continue;
    const int32_t parent = frames[id].parent;
    moved[id] = Push(frames[id].node, parent == kNoStack ? kNoStack : moved[parent]);
  }
  for (size_t id = 0; id < states.size(); ++id) {
    if (kept[id] == kUnknown) continue;
    for (const Config config : states[id].configs) {
      const int32_t stack = Low(config);
      closing_.push_back(Pair(High(config), stack == kNoStack ? kNoStack : moved[stack]));
    }
    kept[id] = Intern();
  }
  for (Cursor* cursor : cursors_) {
    if (cursor->state_ >= 0) cursor->state_ = kept[cursor->state_];
  }
  kept_configs_ = held_configs_;
  kept_frames_ = frames_.size();
}

absl::Status TokenAutomaton::CheckStart() const {
  if (start_ >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the schema leaves more than ", kMaxConfigs, " ways open for how a text begins"));
}

TokenAutomaton::Counts TokenAutomaton::counts() const {
  return {.states = states_.size(), .masks = masks_, .walks = walks_, .restarts = restarts_, .steps = steps_};
}

TokenAutomaton::Cursor::Cursor(TokenAutomaton* automaton) : automaton_(automaton), state_(automaton->start_) {
  automaton_->cursors_.push_back(this);
}

TokenAutomaton::Cursor::Cursor(const Cursor& other)
    : automaton_(other.automaton_), state_(other.state_), ahead_(other.ahead_), mask_(other.mask_) {
  automaton_->cursors_.push_back(this);
}

TokenAutomaton::Cursor::~Cursor() { std::erase(automaton_->cursors_, this); }

bool TokenAutomaton::Cursor::Prepare(int64_t* steps) {
  TokenAutomaton& automaton = *automaton_;
  const int64_t begun = automaton.steps_;
  const int64_t until = *steps > std::numeric_limits<int64_t>::max() - begun
                            ? std::numeric_limits<int64_t>::max()
                            : begun + *steps;
  size_t passed = 0;
  for (; passed < ahead_.size() && automaton.steps_ < until; ++passed) {
    state_ = automaton.Step(state_, static_cast<uint8_t>(ahead_[passed]));
    ALUDEL_CHECK(state_ >= 0);
  }
  ahead_.erase(0, passed);
  Walk& walk = automaton.walk_;
  while (ahead_.empty() && state_ >= 0 && mask_ == nullptr) {
    mask_ = automaton.states_[state_].mask;
    if (mask_ != nullptr || automaton.steps_ >= until) break;
    const bool wanted = std::any_of(automaton.cursors_.begin(), automaton.cursors_.end(),
                                    [&walk](const Cursor* cursor) { return cursor->state_ == walk.state; });
    if (!wanted || walk.state == kDead) {
      walk.state = kDead;
      if (automaton.TooLarge()) automaton.Restart();
      automaton.BeginWalk(state_);
    }
    automaton.Continue(until);
  }
  *steps -= automaton.steps_ - begun;
  return state_ < 0 || mask_ != nullptr;
}

absl::Span<const uint64_t> TokenAutomaton::Cursor::Mask() {
  int64_t steps = std::numeric_limits<int64_t>::max();
  Prepare(&steps);
  if (mask_ == nullptr) return {};
  return mask_->bits;
}

absl::Status TokenAutomaton::Cursor::status() const {
  if (mask_ == nullptr) return automaton_->CheckStart();
  if (mask_->bits.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the schema leaves so many ways open here that the tokens which may come next take more than ",
        kMaxMaskSteps, " steps to find"));
  }
  if (mask_->narrowed) {
    return absl::FailedPreconditionError(absl::StrCat("the schema leaves more than ", kMaxConfigs,
                                                      " ways open behind every token that may come next"));
  }
  return absl::FailedPreconditionError("no token of the vocabulary spells what the constraint asks for next");
}

void TokenAutomaton::Cursor::Accept(int32_t token) {
  ALUDEL_CHECK(state_ >= 0);
  mask_ = nullptr;
  const absl::string_view bytes = automaton_->table_->bytes(token);
  size_t passed = 0;
  for (; ahead_.empty() && passed < bytes.size(); ++passed) {
    const int32_t next =
        automaton_->states_[state_].next[automaton_->class_of_[static_cast<uint8_t>(bytes[passed])]];
    if (next == kUnknown) break;  // dropped since the mask was made
    ALUDEL_CHECK(next >= 0);
    state_ = next;
  }
  ahead_.append(bytes.substr(passed).data(), bytes.size() - passed);
}

bool TokenAutomaton::Cursor::complete() const {
  if (state_ < 0 || !ahead_.empty()) return false;
  const State& state = automaton_->states_[state_];
  return state.accepts && state.configs.size() == 1;
}

}  // namespace aludel
