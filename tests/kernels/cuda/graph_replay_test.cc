#include "kernels/cuda/graph_replay.h"

#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

using ::testing::HasSubstr;

using Work = std::vector<std::function<void()>>;

// A device whose queue runs when somebody waits for it, and whose graphs are lists of what was enqueued.
struct Machine {
  Work queue;
  std::vector<char> arena = std::vector<char>(Recording::kArenaBytes, 'h');
  std::vector<char> twin = std::vector<char>(Recording::kArenaBytes, 'd');
  Work* capture = nullptr;
  std::set<Work*> graphs;
  std::vector<int64_t> results;

  // What fails, by name: "open", "begin", "end", "launch".
  std::string fault;
  absl::Status StatusOf(const std::string& step) const {
    return fault == step ? absl::ResourceExhaustedError("no memory to " + step) : absl::OkStatus();
  }

  void Drain() {
    for (const auto& work : queue) work();
    queue.clear();
  }
};

class MachineGraphs final : public GraphBackend {
 public:
  explicit MachineGraphs(Machine* machine) : machine_(*machine) {}

  char* arena() override { return machine_.arena.data(); }
  absl::Status AwaitArena() override {
    machine_.Drain();
    return absl::OkStatus();
  }
  absl::Status BeginCapture() override {
    EXPECT_EQ(machine_.capture, nullptr);
    if (absl::Status status = machine_.StatusOf("begin"); !status.ok()) return status;
    machine_.capture = new Work;
    return absl::OkStatus();
  }
  absl::StatusOr<Graph> EndCapture() override {
    Work* const graph = std::exchange(machine_.capture, nullptr);
    EXPECT_NE(graph, nullptr);
    if (absl::Status status = machine_.StatusOf("end"); !status.ok()) {
      delete graph;
      return status;
    }
    machine_.graphs.insert(graph);
    return Graph{graph};
  }
  absl::Status Launch(Graph graph, size_t arena_bytes) override {
    if (absl::Status status = machine_.StatusOf("launch"); !status.ok()) return status;
    Work* const work = static_cast<Work*>(graph);
    EXPECT_EQ(machine_.graphs.count(work), 1);
    machine_.queue.push_back([&machine = machine_, arena_bytes] {
      std::memcpy(machine.twin.data(), machine.arena.data(), arena_bytes);
    });
    machine_.queue.insert(machine_.queue.end(), work->begin(), work->end());
    return absl::OkStatus();
  }
  void Destroy(Graph graph) override {
    machine_.Drain();
    EXPECT_EQ(machine_.graphs.erase(static_cast<Work*>(graph)), 1);
    delete static_cast<Work*>(graph);
  }

 private:
  Machine& machine_;
};

// Operations on that machine, as CudaOps are on CudaStream.
class GraphReplayTest : public ::testing::Test {
 protected:
  const void* InArena(std::optional<size_t> offset) {
    return offset.has_value() ? machine_.twin.data() + *offset : nullptr;
  }

  template <typename... Args>
  void Launch(const std::function<void()>& work, const Args&... args) {
    if (!replay_.Launches(absl::HashOf(args...))) return;
    ++launches_;
    (replay_.capturing() ? *machine_.capture : machine_.queue).push_back(work);
  }

  // Appends factor times the sum of the values to the results.
  void Sum(const std::vector<int32_t>& values, int64_t factor) {
    const size_t bytes = values.size() * sizeof(int32_t);
    const void* staged = nullptr;
    if (replay_.pass() != nullptr) {
      staged = InArena(replay_.pass()->Stage(values.data(), bytes));
      if (staged == nullptr) return;
    } else {
      staged = kept_.emplace_back(values).data();
    }
    const auto* const from = static_cast<const int32_t*>(staged);
    const size_t count = values.size();
    Launch([this, from, count,
            factor] { machine_.results.push_back(factor * std::accumulate(from, from + count, int64_t{0})); },
           replay_.pass() == nullptr ? nullptr : from, count, factor);
  }

  // Appends the sum of all values of a list that may have any length.
  void SumTable(const std::vector<int32_t>& values) {
    std::vector<int32_t> table = {static_cast<int32_t>(values.size())};
    table.insert(table.end(), values.begin(), values.end());
    const size_t bytes = table.size() * sizeof(int32_t);
    const void* staged = nullptr;
    if (replay_.pass() != nullptr) {
      const auto write = [&](char* to) {
        ++tables_written_;
        std::memcpy(to, table.data(), bytes);
      };
      staged = InArena(replay_.pass()->StageTable(values.data(), bytes, write));
      if (staged == nullptr) return;
    } else {
      staged = kept_.emplace_back(table).data();
    }
    const auto* const from = static_cast<const int32_t*>(staged);
    Launch([this,
            from] { machine_.results.push_back(std::accumulate(from + 1, from + 1 + from[0], int64_t{0})); },
           replay_.pass() == nullptr ? nullptr : from);
  }

  // Two layers of a step.
  void Step(const std::vector<int32_t>& ids, const std::vector<int32_t>& table, int64_t factor = 3) {
    for (int layer = 0; layer < 2; ++layer) {
      Sum(ids, factor);
      SumTable(table);
    }
  }

  // What `work` appends, however it is run.
  std::vector<int64_t> Replay(const ReplayKey& key, absl::FunctionRef<void()> work) {
    launches_ = 0;
    machine_.results.clear();
    replay_.Run(key, work);
    machine_.Drain();
    kept_.clear();
    return machine_.results;
  }
  std::vector<int64_t> Plainly(absl::FunctionRef<void()> work) {
    machine_.results.clear();
    work();
    machine_.Drain();
    kept_.clear();
    return machine_.results;
  }

  // Until a graph is there.
  void Remember(const ReplayKey& key, absl::FunctionRef<void()> work) {
    Replay(key, work);
    Replay(key, work);
    ASSERT_EQ(machine_.graphs.size(), 1) << replay_.stats().reason;
  }

  Machine machine_;
  GraphReplay replay_{[this]() -> absl::StatusOr<std::unique_ptr<GraphBackend>> {
    if (absl::Status status = machine_.StatusOf("open"); !status.ok()) return status;
    return std::make_unique<MachineGraphs>(&machine_);
  }};
  std::list<std::vector<int32_t>> kept_;  // of eager calls, until they have run
  int launches_ = 0;
  int tables_written_ = 0;
};

TEST_F(GraphReplayTest, WorkIsPlainOnceCapturedOnceAndThenMadeAsOne) {
  const std::vector<int32_t> ids = {1, 2, 3}, table = {10, 20};
  const auto work = [&] { Step(ids, table); };
  const std::vector<int64_t> expected = {18, 30, 18, 30};
  EXPECT_EQ(Replay({1, 10}, work), expected);
  EXPECT_EQ(launches_, 4);
  EXPECT_EQ(replay_.stats().eager, 1);
  EXPECT_EQ(Replay({1, 10}, work), expected);
  EXPECT_EQ(launches_, 4);
  EXPECT_EQ(replay_.stats().captured, 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Replay({1, 10}, work), expected);
  EXPECT_EQ(launches_, 0);
  EXPECT_EQ(replay_.stats().replayed, 3);
  EXPECT_EQ(replay_.stats().eager, 1);
  EXPECT_EQ(tables_written_, 4);  // once a pass
  EXPECT_EQ(replay_.stats().reason, "");
}

TEST_F(GraphReplayTest, ResultsFollowWhatHostArraysHoldAndHowLongTheTableIs) {
  std::vector<int32_t> ids = {1, 2, 3}, table;
  for (int round = 0; round < 40; ++round) {
    for (int32_t& id : ids) id = id * 7 % 1000 + round;
    table.assign(round < 20 ? 1 + 50 * round : 5, round);
    const auto work = [&] { Step(ids, table); };
    const std::vector<int64_t> expected = Plainly(work);
    EXPECT_EQ(Replay({1, 10}, work), expected) << round;
  }
  EXPECT_EQ(replay_.stats().replayed, 38);
}

TEST_F(GraphReplayTest, ArraysAreNotWrittenBeforeTheLastStepHasReadThem) {
  std::vector<int64_t> expected;
  for (int round = 0; round < 6; ++round) {
    const std::vector<int32_t> ids = {round, 2}, table = {round};
    replay_.Run({1, 10}, [&] { Step(ids, table); });
    for (int layer = 0; layer < 2; ++layer) expected.insert(expected.end(), {3 * (round + 2), round});
  }
  machine_.Drain();
  EXPECT_EQ(machine_.results, expected);
  EXPECT_EQ(replay_.stats().replayed, 4);
}

TEST_F(GraphReplayTest, GraphsOfOneArenaDoNotDisturbEachOther) {
  const std::vector<int32_t> few = {1}, many = {1, 2, 3, 4, 5, 6, 7, 8, 9}, table = {4};
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(Replay({1, 10}, [&] { Step(few, table); }), (std::vector<int64_t>{3, 4, 3, 4}));
    EXPECT_EQ(Replay({2, 10}, [&] { Step(many, table); }), (std::vector<int64_t>{135, 4, 135, 4}));
  }
  EXPECT_EQ(replay_.stats().replayed, 4);
}

// Each is told from the step that was remembered, runs as it is, and is remembered anew.
TEST_F(GraphReplayTest, WorkThatHasChangedUnderItsKeyIsNoticed) {
  const std::vector<int32_t> ids = {1, 2, 3}, longer = {1, 2, 3, 4}, table = {10, 20}, other = {5};
  const auto remembered = [&] {
    Sum(ids, 1);
    SumTable(table);
    Sum(ids, 2);
  };
  const std::vector<std::function<void()>> changed = {
      [&] { Sum(ids, 1), SumTable(table), Sum(ids, 5); },
      [&] { Sum(ids, 1), SumTable(table); },
      [&] { Sum(ids, 1), SumTable(table), Sum(ids, 2), Sum(ids, 2); },
      [&] { Sum(ids, 1), SumTable(table), SumTable(table), Sum(ids, 2); },
      [&] { SumTable(table), Sum(ids, 1), Sum(ids, 2); },
      [&] { Sum(longer, 1), SumTable(table), Sum(longer, 2); },
      [&] { Sum(ids, 1), SumTable(table), SumTable(other), Sum(ids, 2); },
      [&] {
        Sum(ids, 1), SumTable(table), Sum({3, 2, 2}, 2);
      },
      [] {},
  };
  for (size_t i = 0; i < changed.size(); ++i) {
    SCOPED_TRACE(i);
    const ReplayKey key{i, 10};
    Replay(key, remembered);
    Replay(key, remembered);
    EXPECT_EQ(Replay(key, remembered), (std::vector<int64_t>{6, 30, 12}));
    const std::vector<int64_t> expected = Plainly(changed[i]);
    const uint64_t before = replay_.stats().changed;
    EXPECT_EQ(Replay(key, changed[i]), expected);
    EXPECT_EQ(replay_.stats().changed, before + 1);
    EXPECT_EQ(Replay(key, remembered), (std::vector<int64_t>{6, 30, 12}));
    const uint64_t replayed = replay_.stats().replayed;
    EXPECT_EQ(Replay(key, remembered), (std::vector<int64_t>{6, 30, 12}));
    EXPECT_EQ(replay_.stats().replayed, replayed + 1);
  }
}

TEST_F(GraphReplayTest, ArraysThatWereEqualByChanceMayPart) {
  std::vector<int32_t> first = {1, 2}, second = {1, 2};
  const auto work = [&] { Sum(first, 1), Sum(second, 1); };
  Remember({1, 10}, work);
  second = {7, 8};
  EXPECT_EQ(Replay({1, 10}, work), (std::vector<int64_t>{3, 15}));
  EXPECT_EQ(replay_.stats().changed, 1);
  Replay({1, 10}, work);
  second = {7, 9};
  EXPECT_EQ(Replay({1, 10}, work), (std::vector<int64_t>{3, 16}));
  EXPECT_EQ(replay_.stats().replayed, 1);
}

TEST_F(GraphReplayTest, WorkThatKeepsChangingStaysPlain) {
  const std::vector<int32_t> ids = {1, 2};
  for (int64_t round = 0; round < 20; ++round) {
    EXPECT_EQ(Replay({1, 10}, [&] { Sum(ids, round); }), std::vector<int64_t>{3 * round});
  }
  EXPECT_EQ(replay_.stats().changed, GraphReplay::kMostChanges);
  EXPECT_EQ(replay_.stats().captured, GraphReplay::kMostChanges);
  EXPECT_EQ(machine_.graphs.size(), 0);
  EXPECT_THAT(replay_.stats().reason, HasSubstr("launch 0"));
}

TEST_F(GraphReplayTest, WhatCudaRefusesIsDonePlainly) {
  const std::vector<int32_t> ids = {1, 2}, table = {9};
  const auto work = [&] { Step(ids, table); };
  const std::vector<int64_t> expected = {9, 9, 9, 9};
  uint64_t key = 0;
  for (const char* fault : {"open", "begin", "end", "launch"}) {
    SCOPED_TRACE(fault);
    machine_.fault = fault;
    ++key;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(Replay({key, 10}, work), expected);
    EXPECT_EQ(replay_.stats().eager, 4 * key);
    EXPECT_EQ(replay_.stats().captured, 0);
    EXPECT_EQ(replay_.stats().reason, std::string("no memory to ") + fault);
    EXPECT_EQ(machine_.graphs.size(), 0);
    EXPECT_EQ(machine_.capture, nullptr);
  }
  // A graph that is there, but can be launched no more.
  machine_.fault = "";
  Remember({1000, 10}, work);
  machine_.fault = "launch";
  EXPECT_EQ(Replay({1000, 10}, work), expected);
  EXPECT_EQ(machine_.graphs.size(), 0);
}

TEST_F(GraphReplayTest, AnErrorInsideACaptureIsTheGraphsAlone) {
  const std::vector<int32_t> ids = {1, 2};
  const auto work = [&] {
    if (replay_.pass() != nullptr) replay_.pass()->Break("operation not permitted when stream is capturing");
    Sum(ids, 1);
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Replay({1, 10}, work), std::vector<int64_t>{3});
  EXPECT_EQ(replay_.stats().eager, 4);
  EXPECT_THAT(replay_.stats().reason, HasSubstr("not permitted"));
  EXPECT_EQ(machine_.graphs.size(), 0);
}

TEST_F(GraphReplayTest, WhatDoesNotFitTheArenaIsDonePlainly) {
  const std::vector<int32_t> large(Recording::kFrontBytes / sizeof(int32_t) + 1, 1), small = {1};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Replay({1, 10}, [&] { Sum(small, 1), Sum(large, 1); }),
              (std::vector<int64_t>{1, static_cast<int64_t>(large.size())}));
  }
  EXPECT_THAT(replay_.stats().reason, HasSubstr("arena"));
  // A table that outgrows it.
  const size_t room = (Recording::kArenaBytes - Recording::kFrontBytes) / sizeof(int32_t) - 1;
  std::vector<int32_t> table(room, 1);
  const auto work = [&] { SumTable(table); };
  Remember({2, 10}, work);
  EXPECT_EQ(Replay({2, 10}, work), std::vector<int64_t>{static_cast<int64_t>(room)});
  table.push_back(1);
  EXPECT_EQ(Replay({2, 10}, work), std::vector<int64_t>{static_cast<int64_t>(room) + 1});
  EXPECT_EQ(replay_.stats().replayed, 1);
}

TEST_F(GraphReplayTest, ThereAreNeverMoreGraphsThanItsBoundAndTheLeastRecentlyUsedGoes) {
  const std::vector<int32_t> ids = {1, 2};
  const auto work = [&] { Sum(ids, 1); };
  for (uint64_t key = 0; key < GraphReplay::kMostGraphs + 10; ++key) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Replay({key, 10}, work), std::vector<int64_t>{3});
    Replay({0, 10}, work);  // stays in use
    EXPECT_LE(machine_.graphs.size(), GraphReplay::kMostGraphs);
  }
  EXPECT_EQ(machine_.graphs.size(), GraphReplay::kMostGraphs);
  Replay({0, 10}, work);
  EXPECT_EQ(launches_, 0);
  Replay({1, 10}, work);
  EXPECT_EQ(launches_, 1);
  EXPECT_EQ(replay_.stats().reason, "");
}

TEST_F(GraphReplayTest, WorkThatIsMetOnceDrivesNoGraphAway) {
  const std::vector<int32_t> ids = {1, 2};
  const auto work = [&] { Sum(ids, 1); };
  for (int i = 0; i < 2; ++i) Replay({0, 10}, work);
  for (uint64_t key = 1; key < 3 * GraphReplay::kMostGraphs; ++key) Replay({key, 10}, work);
  Replay({0, 10}, work);
  EXPECT_EQ(launches_, 0);
  EXPECT_EQ(machine_.graphs.size(), 1);
}

TEST_F(GraphReplayTest, AGraphServesABucketOfPositions) {
  const std::vector<int32_t> ids = {1, 2};
  const auto work = [&] { Sum(ids, replay_.positions()); };
  EXPECT_EQ(replay_.positions(), 0);
  Replay({1, 1}, work);
  Replay({1, 512}, work);
  EXPECT_EQ(Replay({1, 300}, work), std::vector<int64_t>{3 * 512});
  EXPECT_EQ(launches_, 0);
  EXPECT_EQ(Replay({1, 513}, work), std::vector<int64_t>{3 * 4096});
  EXPECT_EQ(launches_, 1);
  EXPECT_EQ(replay_.positions(), 0);
  EXPECT_EQ(replay_.stats().changed, 0);
}

TEST_F(GraphReplayTest, WithoutABackendWorkIsPlainForTheSameBucket) {
  GraphReplay eager(nullptr);
  int64_t positions = 0;
  for (int i = 0; i < 3; ++i) eager.Run({1, 700}, [&] { positions = eager.positions(); });
  EXPECT_EQ(positions, 4096);
  EXPECT_EQ(eager.stats().eager, 3);
  EXPECT_TRUE(eager.Launches(7));
}

TEST_F(GraphReplayTest, ClosingDestroysEveryGraph) {
  const std::vector<int32_t> ids = {1, 2};
  Remember({1, 10}, [&] { Sum(ids, 1); });
  replay_.Close();
  EXPECT_EQ(machine_.graphs.size(), 0);
}

TEST(PositionBucket, HoldsThePositionsAndThereAreFew) {
  EXPECT_EQ(PositionBucket(1), 512);
  EXPECT_EQ(PositionBucket(512), 512);
  EXPECT_EQ(PositionBucket(513), 4096);
  EXPECT_EQ(PositionBucket(32'769), 262'144);
}

TEST(Recording, SendsTheFrontAloneOrWithTheTableBehindIt) {
  std::vector<char> arena(Recording::kArenaBytes);
  Recording recording(arena.data());
  recording.Begin();
  EXPECT_EQ(recording.Stage("abc", 3), 0);
  EXPECT_EQ(recording.Stage("defg", 4), 16);
  EXPECT_EQ(recording.Stage("abc", 3), 0);
  EXPECT_EQ(recording.used(), 32);
  const auto write = [](char* to) { std::memcpy(to, "0123456789", 10); };
  EXPECT_EQ(recording.StageTable(&arena, 10, write), Recording::kFrontBytes);
  EXPECT_EQ(recording.used(), Recording::kFrontBytes + 10);
  EXPECT_EQ(std::memcmp(arena.data(), "abc", 3), 0);
  EXPECT_EQ(std::memcmp(arena.data() + 16, "defg", 4), 0);
  EXPECT_EQ(std::memcmp(arena.data() + Recording::kFrontBytes, "0123456789", 10), 0);
  EXPECT_TRUE(recording.End());
}

}  // namespace
}  // namespace aludel::cuda
