#include "runtime/engine/engine_blocks.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/engine/admission.h"
#include "runtime/engine/engine_hedges.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/kv/prefix_watcher.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 4;
constexpr int64_t kBlocks = 64;
constexpr int64_t kMaxSequences = 16;
constexpr const char* kFormats[] = {"codes", "int8"};

class FakeDecoders : public DecoderFactory {
 public:
  explicit FakeDecoders(std::string name)
      : DecoderFactory({.name = std::move(name),
                        .artifact_hash = "a",
                        .shipped_layers = {true},
                        .max_frame_bytes = nullptr},
                       0) {}
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override { return nullptr; }
};

class Deaf : public SequenceListener {
 public:
  void OnToken(const TokenEvent&) override {}
  void OnDone(const absl::Status&, const SequenceResult&) override {}
};

// A cache without a model: what a forward pass would write into a slot is a fingerprint of everything the slot's content
// depends on, so that a block that serves the wrong sequence, or the wrong provenance, is seen.
class FingerprintCache {
 public:
  BlockPool* pool() { return pool_.get(); }

  // Tokens [begin, end), into blocks that are the sequence's own.
  void Write(const Sequence& sequence, int64_t begin, int64_t end) {
    ForEachToken(sequence, end, [&](int64_t i, uint64_t print) {
      if (i < begin) return;
      ASSERT_EQ(pool_->references()[sequence.blocks.ids()[i / kBlockTokens]], 1)
          << "writes into a shared block";
      *Slot(sequence, i) = print;
    });
  }
  void Check(const Sequence& sequence) {
    if (sequence.awaiting()) return;
    ASSERT_LE(sequence.computed, static_cast<int64_t>(sequence.blocks.ids().size()) * kBlockTokens);
    ForEachToken(sequence, sequence.computed, [&](int64_t i, uint64_t print) {
      if (i < sequence.owed_head) return;
      ASSERT_EQ(*Slot(sequence, i), print) << "sequence " << sequence.id << " reads another's token " << i;
    });
  }

 private:
  uint64_t* Slot(const Sequence& sequence, int64_t token) {
    const BlockId block = sequence.blocks.ids()[token / kBlockTokens];
    return static_cast<uint64_t*>(pool_->Layer(0).k) + block * kBlockTokens + token % kBlockTokens;
  }
  // Of tokens [0, end) one after the other.
  template <typename Visit>
  void ForEachToken(const Sequence& sequence, int64_t end, const Visit& visit) {
    uint64_t print = 1;
    if (sequence.format != nullptr) print = sequence.format->name == kFormats[0] ? 2 : 3;
    if (!sequence.cache_salt.empty()) print += 3;
    for (int64_t i = 0; i < end; ++i) {
      print = (print ^ static_cast<uint64_t>(sequence.tokens[i] + 7)) * 0x9E3779B97F4A7C15u;
      visit(i, print);
    }
  }

  std::unique_ptr<Device> device_ = OpenDevice({.threads = 1}).value();
  std::unique_ptr<BlockPool> pool_ = BlockPool::Create(device_.get(), {.layers = 1,
                                                                       .kv_heads = 1,
                                                                       .head_dim = 2,
                                                                       .block_tokens = kBlockTokens,
                                                                       .blocks = kBlocks,
                                                                       .dtype = DType::kF32})
                                         .value();
};

// The sequence that is first in rank is never preempted, and runs again within a bounded number of steps.
class FirstInRank {
 public:
  void BeforeStep(const SequenceMap& sequences) {
    first_ = nullptr;
    for (const auto& [id, sequence] : sequences) {
      if (sequence->hedge_of != 0) continue;  // nothing is promised to it
      if (!sequence->awaiting() && (first_ == nullptr || sequence->rank() < first_->rank()))
        first_ = sequence.get();
    }
    ran_ = first_ != nullptr && first_->running;
  }
  void Check(const std::vector<StepItem>& plan) {
    ASSERT_TRUE(!ran_ || first_->running) << "the first in rank was preempted";
    const SequenceId id = first_ == nullptr ? 0 : first_->id;
    bool runs = false;
    for (const StepItem& item : plan) runs |= item.id == id;
    // It may have to wait for its turn where decodes are more than the budget.
    since_it_ran_ = runs || id != last_ || id == 0 ? 0 : since_it_ran_ + 1;
    last_ = id;
    ASSERT_LE(since_it_ran_, 2 * kMaxSequences) << "the first in rank starves";
  }

 private:
  const Sequence* first_ = nullptr;
  bool ran_ = false;
  SequenceId last_ = 0;
  int64_t since_it_ran_ = 0;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % bound); }

  // Few beginnings and few tokens, so that sequences meet in the cache.
  std::vector<int32_t> Prompt() {
    std::vector<int32_t> prompt(1 + Below(24), static_cast<int32_t>(Below(2)));
    for (size_t i = prompt.size() - Below(prompt.size()); i < prompt.size(); ++i) {
      prompt[i] = static_cast<int32_t>(Below(2));
    }
    return prompt;
  }

 private:
  std::mt19937_64 random_;
};

// What the prefix cache says that it has.
class Heard : public PrefixWatcher {
 public:
  void OnStored(const Block& block) override {
    EXPECT_TRUE(stored_.insert(block.hash).second);
    EXPECT_EQ(block.before == nullptr, block.tokens.size() == kBlockTokens);
    EXPECT_EQ(block.tokens.size() % kBlockTokens, 0u);
    if (!block.salt.empty()) {
      EXPECT_EQ(block.salt, "tenant");
      ++salted_;
    }
  }
  void OnRemoved(const PrefixHash& hash) override { EXPECT_EQ(stored_.erase(hash), 1u); }

  // Of a prompt that is computed here, all but the last token.
  int64_t Matched(absl::Span<const int32_t> prompt, const std::string& salt) const {
    PrefixChain chain({.model_hash = "model", .format = "", .artifact_hash = "", .salt = salt}, kBlockTokens);
    int64_t tokens = 0;
    for (const PrefixHash& hash : chain.Extend(prompt.first(prompt.size() - 1))) {
      if (!stored_.contains(hash)) break;
      tokens += kBlockTokens;
    }
    return tokens;
  }
  size_t stored() const { return stored_.size(); }
  int64_t salted() const { return salted_; }

 private:
  std::set<PrefixHash> stored_;
  int64_t salted_ = 0;
};

// A request, and the sequence that the engine makes of it.
struct Arrival {
  RequestSize size;
  std::unique_ptr<Sequence> sequence;
};

// Draws requests of every kind: prefill, local and handed over, cached or to come.
class Arrivals {
 public:
  Arrival Draw(Dice& dice, SequenceId id) const {
    std::vector<int32_t> prompt = dice.Prompt();
    const auto tokens = static_cast<int64_t>(prompt.size());
    const bool prefill = dice.Below(6) == 0;
    RequestSize size{.prompt_tokens = tokens, .max_completion = prefill ? 0 : 1 + dice.Below(160)};
    const int64_t how = dice.Below(4);
    const FakeDecoders* format = prefill || how < 2 ? nullptr : &formats_[dice.Below(2)];
    const bool lands = format != nullptr && how == 2 && tokens > 1;
    if (format != nullptr) size.handed_over = lands ? 1 + dice.Below(tokens - 1) : tokens;
    size.choices = !prefill && dice.Below(5) == 0 ? 3 : 1;

    auto group = std::make_shared<ChoiceGroup>();
    group->request = id;
    group->sampling.choices = group->open = size.choices;
    group->unforked = size.choices - 1;
    auto sequence =
        std::make_unique<Sequence>(std::move(prompt), size.max_completion, listener_, group, 0, nullptr);
    sequence->id = id;
    if (dice.Below(3) == 0) sequence->cache_salt = "tenant";
    sequence->priority = dice.Below(4) == 0 ? static_cast<int>(dice.Below(3)) - 1 : 0;
    sequence->prompt_end = tokens;
    if (format != nullptr) sequence->format = &format->spec();
    if (prefill) sequence->encoder = std::make_unique<EncodingObserver>(dice.Below(tokens), nullptr, nullptr);
    if (lands) {
      sequence->handed_over = size.handed_over;
      sequence->receiving.emplace(
          Receiving{format, nullptr, FrameLedger({true}, 0, static_cast<uint32_t>(size.handed_over))});
    }
    return {size, std::move(sequence)};
  }

 private:
  const FakeDecoders formats_[2] = {FakeDecoders(kFormats[0]), FakeDecoders(kFormats[1])};
  const std::shared_ptr<Deaf> listener_ = std::make_shared<Deaf>();
};

// The engine without its model, over a FingerprintCache.
class World {
 public:
  World(uint64_t seed, bool prefix_cache, int64_t token_budget)
      : dice_(seed),
        budget_(token_budget),
        blocks_("model",
                {.block_tokens = kBlockTokens,
                 .max_num_batched_tokens = token_budget,
                 .prefix_cache = prefix_cache},
                pool_, &counters_) {
    blocks_.Watch(&heard_);
  }
  ~World() { sequences_.clear(); }

  void RandomEvent() {
    const int64_t kind = dice_.Below(100);
    if (kind < 14) {
      Arrive();
    } else if (kind < 20) {
      Land();
    } else if (kind < 22) {
      FallBack();
    } else if (kind < 25) {
      CancelOne();
    } else if (kind < 28) {
      Hedge();
    } else {
      Step();
    }
  }

  // Runs what is left to its end; the bound is generous, a hang is not.
  void Drain() {
    for (int steps = 0; !sequences_.empty(); ++steps) {
      ASSERT_LT(steps, 20000) << sequences_.size() << " sequences never end";
      while (Land()) {
      }
      Step();
    }
    EXPECT_EQ(pool_->free_blocks(), kBlocks);
    EXPECT_EQ(admission_.promised_blocks(), 0);
    EXPECT_EQ(ended_, admitted_);
    EXPECT_EQ(hedges_.running(), 0);
    EXPECT_EQ(counters_.hedges_started, counters_.hedges_won + counters_.hedges_lost);
  }

  const EngineStats& counters() const { return counters_; }
  int64_t admitted() const { return admitted_; }
  int64_t matched() const { return matched_; }
  const Heard& heard() const { return heard_; }

 private:
  void Arrive() {
    Arrival arrival = arrivals_.Draw(dice_, next_id_);
    if (!admission_.Admit(next_id_, arrival.size).ok()) return;
    next_id_ += arrival.size.choices;
    admitted_ += arrival.size.choices;
    blocks_.Begin(*arrival.sequence, sequences_);
    sequences_.emplace(arrival.sequence->id, std::move(arrival.sequence));
  }

  Sequence* PickAwaiting() {
    std::vector<Sequence*> awaiting;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence->awaiting()) awaiting.push_back(sequence.get());
    }
    return awaiting.empty() ? nullptr : awaiting[dice_.Below(awaiting.size())];
  }

  bool Land() {
    Sequence* sequence = PickAwaiting();
    if (sequence == nullptr) return false;
    if (dice_.Below(2) == 0) {
      sequence->owed_head = dice_.Below(std::min<int64_t>(sequence->handed_over, 6) + 1);
    }
    cache_.Write(*sequence, sequence->owed_head, sequence->handed_over);
    sequence->receiving.reset();
    blocks_.Received(*sequence);
    hedges_.DropNeedless(sequences_);
    return true;
  }

  void FallBack() {
    if (Sequence* sequence = PickAwaiting(); sequence != nullptr) FallBack(*sequence);
  }

  void FallBack(Sequence& sequence) {
    sequence.receiving.reset();
    blocks_.FallBack(sequence);
    hedges_.Adopt(sequence, sequences_);
    admission_.FallBack(sequence.group->request);
  }

  void Hedge() {
    Sequence* sequence = PickAwaiting();
    if (sequence == nullptr || sequence->hedge != 0) return;
    hedges_.Begin(*sequence, next_id_++, absl::DeadlineExceededError("late"), admission_.promised_blocks(),
                  sequences_);
  }

  void CancelOne() {
    if (sequences_.empty()) return;
    const Sequence& one = *std::next(sequences_.begin(), dice_.Below(sequences_.size()))->second;
    const uint64_t request = one.hedge_of != 0 ? one.hedge_of : one.group->request;
    std::vector<SequenceId> ids;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence->group->request == request) ids.push_back(id);
    }
    for (const SequenceId id : ids) Finish(id);
  }

  void Finish(SequenceId id) {
    hedges_.Drop(*sequences_.at(id), sequences_);
    const std::unique_ptr<Sequence> sequence = std::move(sequences_.at(id));
    sequences_.erase(id);
    cache_.Check(*sequence);
    const int ended = 1 + std::exchange(sequence->group->unforked, 0);
    admission_.End(sequence->group->request, ended);
    ended_ += ended;
  }

  void Step() {
    first_.BeforeStep(sequences_);
    const std::vector<StepItem> plan = blocks_.Plan(sequences_);
    ++counters_.steps;
    first_.Check(plan);
    int64_t tokens = 0;
    for (const StepItem& item : plan) tokens += item.tokens;
    ASSERT_LE(tokens, budget_);
    for (const StepItem& item : plan) blocks_.Prepare(*sequences_.at(item.id), item.tokens, {});
    for (const StepItem& item : plan) {
      Sequence& sequence = *sequences_.at(item.id);
      cache_.Write(sequence, 0, std::exchange(sequence.owed_head, 0));
      cache_.Write(sequence, sequence.computed, sequence.computed + item.tokens);
    }
    for (const StepItem& item : plan) Advance(item);
    CheckHeard();
    if (counters_.steps % 16 == 0) {
      for (const auto& [id, sequence] : sequences_) cache_.Check(*sequence);
    }
  }

  // What was heard of the cache is what a look-up there finds.
  void CheckHeard() {
    const std::vector<int32_t> prompt = dice_.Prompt();
    const std::string salt = dice_.Below(2) == 0 ? "tenant" : "";
    const int64_t found = blocks_.MatchedTokens(prompt, nullptr, salt, {});
    ASSERT_EQ(heard_.Matched(prompt, salt), found);
    matched_ += found;
  }

  void Advance(const StepItem& item) {
    Sequence& sequence = *sequences_.at(item.id);
    if (sequence.encoder != nullptr) sequence.encoder->Encoded(sequence.computed + item.tokens);
    blocks_.Advance(sequence, item.tokens);
    if (sequence.left() > 0) return;
    if (sequence.hedge_of != 0) return FallBack(*sequences_.at(sequence.hedge_of));
    if (sequence.max_completion == 0) return Finish(item.id);
    const bool first = sequence.choice == 0 && sequence.completion_tokens() == 0;
    ChoiceGroup& group = *sequence.group;
    for (int choice = 1; group.unforked > 0; ++choice, --group.unforked) {
      std::unique_ptr<Sequence> fork = ForkChoice(sequence, choice, nullptr);
      EngineBlocks::Fork(sequence, *fork);
      sequences_.emplace(fork->id, std::move(fork));
    }
    const SequenceId end = item.id + (first ? group.sampling.choices : 1);
    for (SequenceId id = item.id; id < end; ++id) {
      Sequence& choice = *sequences_.at(id);
      choice.tokens.push_back(static_cast<int32_t>(dice_.Below(2)));
      if (choice.completion_tokens() >= choice.max_completion || dice_.Below(100) == 0) Finish(id);
    }
  }

  Dice dice_;
  const int64_t budget_;
  const Arrivals arrivals_;
  FingerprintCache cache_;
  BlockPool* const pool_ = cache_.pool();
  Admission admission_{pool_->layout(), kMaxSequences};
  EngineStats counters_;
  Heard heard_;
  int64_t matched_ = 0;
  EngineBlocks blocks_;
  EngineHedges hedges_{pool_->layout(), /*max_hedges=*/3, /*tokenizer=*/nullptr, &blocks_, &counters_};
  SequenceMap sequences_;
  SequenceId next_id_ = 1;
  FirstInRank first_;
  int64_t admitted_ = 0;
  int64_t ended_ = 0;
};

class EngineBlocksTest : public ::testing::TestWithParam<bool> {};

// A million events: arrivals (exact, handed over, out of the cache, with several choices, with priorities,
// prefills), landings, fall-backs, hedges, cancels and steps over a pool that is far too small for them.
TEST_P(EngineBlocksTest, LeakNothingShareNothingWronglyAndEndEveryRequest) {
  constexpr int kWorlds = 10;
  constexpr int kEvents = 100000;
  uint64_t preemptions = 0;
  uint64_t hits = 0;
  uint64_t hedges_won = 0;
  uint64_t hedges_lost = 0;
  uint64_t hedges_refused = 0;
  for (int seed = 0; seed < kWorlds && !HasFatalFailure(); ++seed) {
    World world(seed, GetParam(), /*token_budget=*/1 + seed * 3);
    for (int i = 0; i < kEvents && !HasFatalFailure(); ++i) world.RandomEvent();
    world.Drain();
    preemptions += world.counters().preemptions;
    hits += world.counters().prefix_hits;
    hedges_won += world.counters().hedges_won;
    hedges_lost += world.counters().hedges_lost;
    hedges_refused += world.counters().hedges_refused;
    EXPECT_GT(world.admitted(), 100);
    EXPECT_EQ(world.matched() > 1000, GetParam());
    EXPECT_EQ(world.heard().salted() > 100, GetParam());
  }
  RecordProperty("preemptions", static_cast<int>(preemptions));
  RecordProperty("cached_tokens", static_cast<int>(hits));
  EXPECT_GT(preemptions, 1000u);
  EXPECT_GT(hedges_won, 100u);
  EXPECT_GT(hedges_lost, 100u);
  EXPECT_GT(hedges_refused, 100u);
  EXPECT_EQ(hits > 1000, GetParam());
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutPrefixCache, EngineBlocksTest, ::testing::Bool());

}  // namespace
}  // namespace aludel
