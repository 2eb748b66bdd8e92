#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/token_table.h"

namespace aludel {

// Runs a grammar over tokens. The grammar's pushdown automaton is made deterministic as far as texts need it:
// a state is a set of (node, stack) pairs, states are shared by all sequences of the grammar, and each keeps
// its transitions and, once asked for, its mask of tokens.
//
// Cost, measured by tests/bench/constrain_bench.cc for a vocabulary of 128,000 in CPU time on one Zen 4 core
// under load: 1.4 ms for the mask of a state inside a string (nearly every token allowed) when a text first
// comes there, 9 ns a token from then on, and 0.1 ms a token for choosing under a mask.
//
// Used by one thread, the engine's, after construction. Memory is bounded: masks are dropped beyond
// kMaxMaskBytes, and states beyond kMaxStates or kMaxHeldConfigs; both are made again when they are needed.
//
// Time is bounded, too, because all sequences of the engine wait for a mask. What a schema leaves open in
// many ways at once (branches that begin alike, level upon level) makes states of many configurations, twice
// as many with every level at worst. A text cannot go where more than kMaxConfigs ways are open, and a mask
// that takes more than kMaxMaskSteps is given up: the sequence fails, and the others go on.
class TokenAutomaton {
 public:
  static constexpr size_t kMaxStates = 1 << 14;
  static constexpr size_t kMaxMaskBytes = 8 << 20;
  static constexpr size_t kMaxConfigs = 4096;
  static constexpr size_t kMaxHeldConfigs = 1 << 20;
  static constexpr int64_t kMaxMaskSteps = 1 << 20;  // 30 ms

  TokenAutomaton(Grammar grammar, std::shared_ptr<const TokenTable> table);

  // Where one sequence stands. Not thread-safe; must not outlive the automaton.
  class Cursor {
   public:
    explicit Cursor(TokenAutomaton* automaton);
    ~Cursor();
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;

    // Tokens that may come next, a bit each: those after which the text can still become one of the
    // grammar's, and the end tokens where it is one already. Valid until the next call to any cursor of the
    // automaton. Empty where it would cost too much, see status().
    absl::Span<const uint64_t> Mask();
    // Why the last Mask() allows nothing: FailedPrecondition.
    absl::Status status() const;
    // Advances by a token that the mask allowed, and not an end token.
    void Accept(int32_t token);
    // Nothing may follow but the end.
    bool complete() const;

   private:
    friend class TokenAutomaton;
    TokenAutomaton* const automaton_;
    int32_t state_;
  };

  // Whether a text can begin: FailedPrecondition where more than kMaxConfigs ways are open at once.
  absl::Status CheckStart() const;

  struct Counts {
    size_t states = 0;
    size_t masks = 0;       // held now
    uint64_t walks = 0;     // masks made, ever
    uint64_t restarts = 0;  // times that all states were dropped
  };
  Counts counts() const;

 private:
  using Config = uint64_t;  // node << 32 | stack
  using ConfigSet = std::vector<Config>;
  static constexpr int32_t kDead = -1;
  static constexpr int32_t kUnknown = -2;
  static constexpr int32_t kTooWide = -3;  // a state of more than kMaxConfigs
  static constexpr int32_t kGivenUp = -2;  // a mask

  struct Frame {
    int32_t node;    // where the caller goes on
    int32_t parent;  // frame below; -1: none
  };
  struct State {
    ConfigSet configs;
    std::vector<int32_t> next;  // by byte class
    bool accepts = false;
    int32_t mask = -1;      // index into masks_; kGivenUp
    bool narrowed = false;  // a token was left out because what follows it is kTooWide
  };

  void FindByteClasses();
  int32_t Push(int32_t node, int32_t parent);
  void Close(int32_t node, int32_t stack);
  int32_t Intern();
  int32_t Step(int32_t state, uint8_t byte);
  int32_t MaskOf(int32_t state);
  // Drops all states but those that cursors stand in.
  void Restart();

  const Grammar grammar_;
  const std::shared_ptr<const TokenTable> table_;
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> byte_of_class_;

  std::vector<Frame> frames_;
  absl::flat_hash_map<uint64_t, int32_t> frame_ids_;
  std::vector<State> states_;
  std::map<ConfigSet, int32_t> state_ids_;
  std::vector<std::vector<uint64_t>> masks_;
  std::vector<Cursor*> cursors_;
  int32_t start_ = kDead;        // the state of an empty text
  ConfigSet closing_;            // of the state being made
  std::vector<Config> pending_;  // of its closure
  absl::flat_hash_map<Config, bool> seen_;
  std::vector<int32_t> path_;  // states along the token being walked
  bool too_wide_ = false;      // the state being made
  size_t held_configs_ = 0;    // of all states
  int64_t steps_ = 0;          // of all closures, ever
  uint64_t walks_ = 0;
  uint64_t restarts_ = 0;
};

}  // namespace aludel
