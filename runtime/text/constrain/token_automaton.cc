#include "runtime/text/constrain/token_automaton.h"

#include <algorithm>
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

constexpr uint64_t Pair(int32_t high, int32_t low) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}
constexpr int32_t High(uint64_t pair) { return static_cast<int32_t>(pair >> 32); }
constexpr int32_t Low(uint64_t pair) { return static_cast<int32_t>(pair & 0xffffffff); }

}  // namespace

TokenAutomaton::TokenAutomaton(Grammar grammar, std::shared_ptr<const TokenTable> table)
    : grammar_(std::move(grammar)), table_(std::move(table)) {
  FindByteClasses();
  path_.reserve(table_->longest() + 1);
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
    ++steps_;
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
  ConfigSet configs = std::move(closing_);
  closing_.clear();
  seen_.clear();
  if (std::exchange(too_wide_, false)) return kTooWide;
  if (configs.empty()) return kDead;
  std::sort(configs.begin(), configs.end());
  const auto [it, added] = state_ids_.try_emplace(std::move(configs), static_cast<int32_t>(states_.size()));
  if (added) {
    State state;
    state.configs = it->first;
    state.next.assign(byte_of_class_.size(), kUnknown);
    state.accepts = std::binary_search(state.configs.begin(), state.configs.end(), Pair(kAccept, kNoStack));
    held_configs_ += state.configs.size();
    states_.push_back(std::move(state));
  }
  return it->second;
}

int32_t TokenAutomaton::Step(int32_t state, uint8_t byte) {
  const uint8_t byte_class = class_of_[byte];
  const int32_t known = states_[state].next[byte_class];
  if (known != kUnknown) return known;
  for (const Config config : states_[state].configs) {
    if (High(config) == kAccept) continue;
    const Grammar::Node& node = grammar_.nodes[High(config)];
    if (grammar_.sets[node.to].test(byte)) Close(node.next, Low(config));
  }
  const int32_t next = Intern();
  states_[state].next[byte_class] = next;
  return next;
}

int32_t TokenAutomaton::MaskOf(int32_t state) {
  if (states_[state].mask >= 0 || states_[state].mask == kGivenUp) return states_[state].mask;
  const size_t words = table_->mask_words();
  if ((masks_.size() + 1) * words * sizeof(uint64_t) > kMaxMaskBytes && !masks_.empty()) {
    masks_.clear();
    for (State& other : states_) other.mask = std::min(other.mask, -1);
  }
  ++walks_;
  std::vector<uint64_t> mask(words, 0);
  const auto allow = [&mask](int32_t id) { mask[id / 64] |= uint64_t{1} << (id % 64); };
  // path_[d]: the state after d bytes of the entry; entries that share a dead prefix are passed over.
  path_.assign(1, state);
  const int64_t last_step = steps_ + kMaxMaskSteps;
  for (const TokenTable::Entry& entry : table_->entries()) {
    if (entry.shared >= path_.size()) continue;  // the prefix that it shares is dead
    path_.resize(entry.shared + 1);
    const absl::string_view bytes = table_->bytes(entry);
    int32_t at = path_.back();
    for (size_t i = entry.shared; i < bytes.size(); ++i) {
      at = Step(at, static_cast<uint8_t>(bytes[i]));
      if (at < 0) break;
      path_.push_back(at);
    }
    if (at == kTooWide) states_[state].narrowed = true;
    if (at >= 0) allow(entry.id);
    if (steps_ > last_step) return states_[state].mask = kGivenUp;
  }
  if (states_[state].accepts) {
    for (const int id : table_->eos_ids()) allow(id);
  }
  masks_.push_back(std::move(mask));
  states_[state].mask = static_cast<int32_t>(masks_.size() - 1);
  return states_[state].mask;
}

void TokenAutomaton::Restart() {
  ++restarts_;
  const std::vector<Frame> frames = std::exchange(frames_, {});
  const std::vector<State> states = std::exchange(states_, {});
  frame_ids_.clear();
  state_ids_.clear();
  masks_.clear();
  held_configs_ = 0;
  Close(grammar_.start, kNoStack);
  start_ = Intern();
  // Stacks are copied from the bottom, each frame once however many stand on it: below comes before above.
  std::vector<int32_t> moved(frames.size(), kNoStack);
  std::vector<bool> wanted(frames.size(), false);
  for (const Cursor* cursor : cursors_) {
    if (cursor->state_ < 0) continue;
    for (const Config config : states[cursor->state_].configs) {
      for (int32_t at = Low(config); at != kNoStack && !wanted[at]; at = frames[at].parent) wanted[at] = true;
    }
  }
  for (size_t id = 0; id < frames.size(); ++id) {
    if (!wanted[id]) continue;
    const int32_t parent = frames[id].parent;
    moved[id] = Push(frames[id].node, parent == kNoStack ? kNoStack : moved[parent]);
  }
  for (Cursor* cursor : cursors_) {
    if (cursor->state_ < 0) continue;
    for (const Config config : states[cursor->state_].configs) {
      const int32_t stack = Low(config);
      closing_.push_back(Pair(High(config), stack == kNoStack ? kNoStack : moved[stack]));
    }
    cursor->state_ = Intern();
  }
}

absl::Status TokenAutomaton::CheckStart() const {
  if (start_ >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the schema leaves more than ", kMaxConfigs, " ways open for how a text begins"));
}

TokenAutomaton::Counts TokenAutomaton::counts() const {
  return {.states = states_.size(), .masks = masks_.size(), .walks = walks_, .restarts = restarts_};
}

TokenAutomaton::Cursor::Cursor(TokenAutomaton* automaton) : automaton_(automaton), state_(automaton->start_) {
  automaton_->cursors_.push_back(this);
}

TokenAutomaton::Cursor::~Cursor() { std::erase(automaton_->cursors_, this); }

absl::Span<const uint64_t> TokenAutomaton::Cursor::Mask() {
  if (state_ < 0) return {};
  if (automaton_->states_.size() > kMaxStates || automaton_->held_configs_ > kMaxHeldConfigs ||
      automaton_->frames_.size() > kMaxHeldConfigs) {
    automaton_->Restart();
  }
  const int32_t mask = automaton_->MaskOf(state_);
  if (mask < 0) return {};
  return automaton_->masks_[mask];
}

absl::Status TokenAutomaton::Cursor::status() const {
  if (state_ < 0) return automaton_->CheckStart();
  const State& state = automaton_->states_[state_];
  if (state.mask == kGivenUp) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the schema leaves so many ways open here that the tokens which may come next take more than ",
        kMaxMaskSteps, " steps to find"));
  }
  if (state.narrowed) {
    return absl::FailedPreconditionError(absl::StrCat("the schema leaves more than ", kMaxConfigs,
                                                      " ways open behind every token that may come next"));
  }
  return absl::FailedPreconditionError("no token of the vocabulary spells what the constraint asks for next");
}

void TokenAutomaton::Cursor::Accept(int32_t token) {
  for (const char byte : automaton_->table_->bytes(token)) {
    ALUDEL_CHECK(state_ >= 0);
    state_ = automaton_->Step(state_, static_cast<uint8_t>(byte));
  }
  ALUDEL_CHECK(state_ >= 0);
}

bool TokenAutomaton::Cursor::complete() const {
  if (state_ < 0) return false;
  const State& state = automaton_->states_[state_];
  return state.accepts && state.configs.size() == 1;
}

}  // namespace aludel
