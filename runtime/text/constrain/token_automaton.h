#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/token_table.h"

namespace aludel {

struct TokenMask;

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
// Time is bounded, too, because all sequences of the engine wait for its thread. What a schema leaves open in
// many ways at once (branches that begin alike, level upon level) makes states of many configurations, twice
// as many with every level at worst. A text cannot go where more than kMaxConfigs ways are open, and a mask
// that takes more than kMaxMaskSteps is given up: the sequence fails, and the others go on. And a mask is made
// in slices (Cursor::Prepare), between which the engine runs what needs none.
class TokenAutomaton {
 public:
  static constexpr size_t kMaxStates = 1 << 14;
  static constexpr size_t kMaxMaskBytes = 8 << 20;
  static constexpr size_t kMaxConfigs = 4096;
  static constexpr size_t kMaxHeldConfigs = 1 << 20;
  // A step is some 10 ns: a token whose bytes lead through known states, a quarter of a configuration.
  static constexpr int64_t kMaxMaskSteps = 1 << 22;

  TokenAutomaton(Grammar grammar, std::shared_ptr<const TokenTable> table);

  // Where one sequence stands. Not thread-safe; must not outlive the automaton.
  class Cursor {
   public:
    explicit Cursor(TokenAutomaton* automaton);
    Cursor(const Cursor& other);
    ~Cursor();
    Cursor& operator=(const Cursor&) = delete;

    // Works on the mask, for `*steps` and at most one transition more (kMaxTransitionSteps), and takes off what
    // it used. True once the mask is there, or is known to cost too much. One mask of an automaton is made at a
    // time: the work may be for another cursor's.
    bool Prepare(int64_t* steps);
    // Tokens that may come next, a bit each: those after which the text can still become one of the
    // grammar's, and the end tokens where it is one already. Valid until the next Accept(). Empty where it
    // would cost too much, see status(). Makes what Prepare() has left.
    absl::Span<const uint64_t> Mask();
    // Why the last Mask() allows nothing: FailedPrecondition.
    absl::Status status() const;
    // Advances by a token that the mask allowed, and not an end token. What has to be found again for that is
    // left to Prepare().
    void Accept(int32_t token);
    // Nothing may follow but the end. False as long as Accept() has left something.
    bool complete() const;
    const TokenAutomaton* automaton() const { return automaton_; }

   private:
    friend class TokenAutomaton;
    TokenAutomaton* const automaton_;
    int32_t state_;
    std::string ahead_;  // accepted bytes behind state_
    std::shared_ptr<const TokenMask> mask_;
  };
  // The most that one transition takes: every configuration with all that it passes on its way.
  static constexpr int64_t kMaxTransitionSteps = 160 * kMaxConfigs;

  // Whether a text can begin: FailedPrecondition where more than kMaxConfigs ways are open at once.
  absl::Status CheckStart() const;

  struct Counts {
    size_t states = 0;
    size_t masks = 0;       // held now, without those that only cursors hold
    uint64_t walks = 0;     // masks made, ever
    uint64_t restarts = 0;  // times that all states were dropped
    int64_t steps = 0;      // ever
  };
  Counts counts() const;

 private:
  using Config = uint64_t;  // node << 32 | stack
  using ConfigSet = std::vector<Config>;
  static constexpr int32_t kDead = -1;
  static constexpr int32_t kUnknown = -2;
  static constexpr int32_t kTooWide = -3;  // a state of more than kMaxConfigs

  struct Frame {
    int32_t node;    // where the caller goes on
    int32_t parent;  // frame below; -1: none
  };
  struct State {
    ConfigSet configs;
    ByteSet live;               // bytes that lead somewhere
    std::vector<int32_t> next;  // by byte class
    bool accepts = false;
    std::shared_ptr<const TokenMask> mask;
  };
  // A mask in the making. path[d]: the state after d bytes of the entry; entries that share a dead prefix are
  // passed over.
  struct Walk {
    int32_t state = kDead;  // whose mask it is; kDead: none is being made
    size_t entry = 0;       // the next one
    int64_t steps = 0;      // taken so far
    std::vector<int32_t> path;
    std::shared_ptr<TokenMask> mask;
  };

  void FindByteClasses();
  int32_t Push(int32_t node, int32_t parent);
  void Close(int32_t node, int32_t stack);
  int32_t Intern();
  int32_t Step(int32_t state, uint8_t byte);
  // Goes on with the walk until it ends or steps_ has reached `until`.
  void Continue(int64_t until);
  void BeginWalk(int32_t state);
  void EndWalk();
  bool TooLarge() const;
  // Drops all states but those that cursors stand in. No walk may be in progress.
  void Restart();

  const Grammar grammar_;
  const std::shared_ptr<const TokenTable> table_;
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> byte_of_class_;

  std::vector<Frame> frames_;
  absl::flat_hash_map<uint64_t, int32_t> frame_ids_;
  std::vector<State> states_;
  absl::flat_hash_map<absl::Span<const Config>, int32_t> state_ids_;  // the keys are the states' configs
  size_t masks_ = 0;                                                  // held by states
  std::vector<Cursor*> cursors_;
  int32_t start_ = kDead;        // the state of an empty text
  ConfigSet closing_;            // of the state being made
  std::vector<Config> pending_;  // of its closure
  absl::flat_hash_map<Config, bool> seen_;
  Walk walk_;
  bool too_wide_ = false;    // the state being made
  size_t held_configs_ = 0;  // of all states
  size_t kept_configs_ = 0;  // what the last restart kept
  size_t kept_frames_ = 0;
  int64_t steps_ = 0;  // ever
  uint64_t walks_ = 0;
  uint64_t restarts_ = 0;
};

}  // namespace aludel
