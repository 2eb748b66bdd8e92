#include "server/rpc/cache_events/key_log.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/rpc/cache_events/cache_mirror.h"

namespace aludel {
namespace {

using Heard = CacheMirror::Heard;
using Keys = std::set<uint64_t>;

KeyChange Stored(uint64_t key) { return {key, 0}; }
KeyChange Removed(uint64_t key) { return {key, KeyChange::kRemoved}; }

// A reader of a log, and what its mirror makes of the events.
class Watcher {
 public:
  explicit Watcher(size_t max_keys = 1 << 20) : mirror_(max_keys) {}

  Heard Hear(const v1::CacheEvent& event) {
    const Heard heard = mirror_.Hear(event);
    if (heard == Heard::kSnapshot) keys_.clear();
    for (const KeyChange& change : mirror_.changes()) {
      if (change.removed()) {
        EXPECT_EQ(keys_.erase(change.key), 1u);
      } else {
        EXPECT_TRUE(keys_.insert(change.key).second);
      }
    }
    return heard;
  }
  // True: there was an event.
  bool Read(const KeyLog& log) {
    v1::CacheEvent event;
    if (!log.Read(&reader_, &event)) return false;
    if (event.has_piece() && event.complete()) ++snapshots_;
    Hear(event);
    return true;
  }
  void ReadAll(const KeyLog& log) {
    while (Read(log)) {
    }
  }
  const Keys& keys() const { return keys_; }
  const CacheMirror& mirror() const { return mirror_; }
  int snapshots() const { return snapshots_; }

 private:
  KeyLog::Reader reader_;
  CacheMirror mirror_;
  Keys keys_;
  int snapshots_ = 0;
};

TEST(KeyLog, AReaderHasASnapshotAndThenTheChanges) {
  KeyLog log({.epoch = 7});
  log.Add(Stored(1));
  log.Add(Stored(2));
  Watcher watcher;
  watcher.ReadAll(log);
  EXPECT_EQ(watcher.keys(), Keys({1, 2}));
  log.Add(Removed(1));
  log.Add(Stored(3));
  watcher.ReadAll(log);
  EXPECT_EQ(watcher.keys(), Keys({2, 3}));
  EXPECT_EQ(watcher.snapshots(), 1);
}

TEST(KeyLog, AnEmptyCacheIsKnownToBeEmpty) {
  const KeyLog log({.epoch = 7});
  Watcher watcher;
  watcher.ReadAll(log);
  EXPECT_TRUE(watcher.mirror().current());
  EXPECT_TRUE(watcher.keys().empty());
}

TEST(KeyLog, WhatWasStoredTwiceIsThereUntilItWasRemovedTwice) {
  KeyLog log({.epoch = 7});
  log.Add(Stored(1));
  log.Add(Stored(1));
  log.Add(Removed(1));
  Watcher watcher;
  watcher.ReadAll(log);
  EXPECT_EQ(watcher.keys(), Keys({1}));
  log.Add(Removed(1));
  log.Add(Removed(1));  // of nothing
  watcher.ReadAll(log);
  EXPECT_TRUE(watcher.keys().empty());
}

TEST(KeyLog, AReaderThatWasLeftBehindHasAnotherSnapshot) {
  KeyLog log({.epoch = 7, .max_changes = 8});
  Watcher slow, fast;
  slow.ReadAll(log);
  fast.ReadAll(log);
  for (uint64_t key = 0; key < 100; ++key) {
    log.Add(Stored(key));
    if (key > 0) log.Add(Removed(key - 1));
    fast.ReadAll(log);
  }
  slow.ReadAll(log);
  EXPECT_EQ(slow.snapshots(), 2);
  EXPECT_EQ(fast.snapshots(), 1);
  EXPECT_EQ(slow.keys(), Keys({99}));
  EXPECT_EQ(fast.keys(), Keys({99}));
}

TEST(KeyLog, ReadersThatBeginOneAfterTheOtherShareASnapshot) {
  KeyLog log({.epoch = 7, .max_changes = 8, .max_event_keys = 2});
  for (uint64_t key = 0; key < 5; ++key) log.Add(Stored(key));
  Watcher first, second;
  ASSERT_TRUE(first.Read(log));
  log.Add(Stored(5));
  log.Add(Removed(0));
  KeyLog::Reader reader;
  v1::CacheEvent event;
  ASSERT_TRUE(log.Read(&reader, &event));
  EXPECT_EQ(event.sequence(), 5u);
  second.ReadAll(log);
  first.ReadAll(log);
  EXPECT_EQ(first.keys(), Keys({1, 2, 3, 4, 5}));
  EXPECT_EQ(second.keys(), Keys({1, 2, 3, 4, 5}));
  // Its readers have it all: the next one has what is there now.
  while (log.Read(&reader, &event)) {
  }
  KeyLog::Reader late;
  ASSERT_TRUE(log.Read(&late, &event));
  EXPECT_EQ(event.sequence(), 7u);
  // The changes since are not all kept: another one.
  for (uint64_t key = 10; key < 20; ++key) log.Add(Stored(key));
  KeyLog::Reader last;
  ASSERT_TRUE(log.Read(&last, &event));
  EXPECT_EQ(event.sequence(), 17u);
}

TEST(KeyLog, WhatIsClearedIsReadAsGone) {
  KeyLog log({.epoch = 7});
  Watcher watcher;
  log.Add(Stored(1));
  watcher.ReadAll(log);
  log.Clear();
  watcher.ReadAll(log);
  EXPECT_TRUE(watcher.mirror().current());
  EXPECT_TRUE(watcher.keys().empty());
  log.Add(Stored(2));
  watcher.ReadAll(log);
  EXPECT_EQ(watcher.keys(), Keys({2}));
}

TEST(KeyLog, TellsOfTheFirstChangeAfterEachLook) {
  KeyLog log({.epoch = 7});
  int told = 0;
  log.OnChange([&told] { ++told; });
  log.Add(Stored(1));
  log.Add(Stored(2));
  EXPECT_EQ(told, 1);
  log.OnRead();
  EXPECT_EQ(told, 1);
  log.Add(Removed(2));
  EXPECT_EQ(told, 2);
}

v1::CacheEvent Event(uint64_t epoch, uint64_t sequence, const std::vector<KeyChange>& changes) {
  v1::CacheEvent event;
  event.set_epoch(epoch);
  event.set_sequence(sequence);
  for (const KeyChange& change : changes) {
    event.add_keys(change.key);
    event.mutable_kinds()->push_back(static_cast<char>(change.kind));
  }
  return event;
}
v1::CacheEvent Piece(uint32_t number, bool complete, uint64_t sequence, const std::vector<KeyChange>& keys) {
  v1::CacheEvent event = Event(7, sequence, keys);
  event.set_piece(number);
  event.set_complete(complete);
  event.set_key_tokens(16);
  return event;
}

TEST(CacheMirror, ASnapshotCountsOnceItIsWhole) {
  Watcher watcher;
  EXPECT_EQ(watcher.Hear(Piece(0, false, 5, {Stored(1)})), Heard::kNothing);
  EXPECT_FALSE(watcher.mirror().current());
  EXPECT_EQ(watcher.Hear(Piece(1, true, 5, {Stored(2)})), Heard::kSnapshot);
  EXPECT_EQ(watcher.keys(), Keys({1, 2}));
  EXPECT_EQ(watcher.mirror().key_tokens(), 16);
  // It begins again whenever the server likes.
  EXPECT_EQ(watcher.Hear(Piece(0, false, 9, {Stored(3)})), Heard::kNothing);
  EXPECT_EQ(watcher.Hear(Piece(0, true, 10, {Stored(4)})), Heard::kSnapshot);
  EXPECT_EQ(watcher.keys(), Keys({4}));
}

TEST(CacheMirror, NothingHoldsAfterAGap) {
  const auto ready = [] {
    auto watcher = std::make_unique<Watcher>();
    EXPECT_EQ(watcher->Hear(Piece(0, true, 5, {Stored(1)})), Heard::kSnapshot);
    return watcher;
  };
  EXPECT_EQ(ready()->Hear(Event(7, 6, {Stored(2)})), Heard::kBroken);        // the change at 5 is missing
  EXPECT_EQ(ready()->Hear(Event(8, 5, {Stored(2)})), Heard::kBroken);        // another process
  EXPECT_EQ(ready()->Hear(Piece(1, true, 5, {Stored(2)})), Heard::kBroken);  // no first piece
  v1::CacheEvent uneven = Event(7, 5, {Stored(2)});
  uneven.clear_kinds();
  EXPECT_EQ(ready()->Hear(uneven), Heard::kBroken);
  const auto watcher = ready();
  EXPECT_EQ(watcher->Hear(Piece(0, false, 6, {Stored(2)})), Heard::kNothing);
  EXPECT_EQ(watcher->Hear(Piece(2, true, 6, {Stored(3)})), Heard::kBroken);
  // Only a snapshot makes it whole again.
  EXPECT_EQ(watcher->Hear(Event(7, 6, {Stored(4)})), Heard::kBroken);
  EXPECT_EQ(watcher->Hear(Piece(0, true, 6, {Stored(5)})), Heard::kSnapshot);
  EXPECT_EQ(watcher->keys(), Keys({5}));
}

TEST(CacheMirror, WhatWasHeardBeforeIsNotHeardTwice) {
  Watcher watcher;
  watcher.Hear(Piece(0, true, 5, {Stored(1)}));
  EXPECT_EQ(watcher.Hear(Event(7, 5, {Stored(2), Removed(1)})), Heard::kChanges);
  EXPECT_EQ(watcher.Hear(Event(7, 5, {Stored(2), Removed(1)})), Heard::kNothing);
  EXPECT_EQ(watcher.Hear(Event(7, 6, {Removed(1), Stored(3)})),
            Heard::kChanges);  // the second of them is new
  EXPECT_EQ(watcher.keys(), Keys({2, 3}));
}

TEST(CacheMirror, KeepsNoMemoryOfWhatWasHeard) {
  KeyLog log({.epoch = 7, .max_event_keys = 100});
  for (uint64_t key = 0; key < 1000; ++key) log.Add(Stored(key));
  CacheMirror mirror(1 << 20);
  KeyLog::Reader reader;
  v1::CacheEvent event;
  while (log.Read(&reader, &event)) mirror.Hear(event);
  EXPECT_EQ(mirror.changes().size(), 1000u);
  EXPECT_GE(mirror.held(), 1000u);
  mirror.Drop();
  EXPECT_EQ(mirror.held(), 0u);
  // Nor of one that breaks off.
  KeyLog::Reader other;
  log.Read(&other, &event);
  mirror.Hear(event);
  EXPECT_GE(mirror.held(), 100u);
  event.set_piece(9);
  EXPECT_EQ(mirror.Hear(event), Heard::kBroken);
  EXPECT_EQ(mirror.held(), 0u);
}

TEST(CacheMirror, AServerThatHoldsTooMuchIsNotKnown) {
  Watcher watcher(/*max_keys=*/2);
  EXPECT_EQ(watcher.Hear(Piece(0, false, 5, {Stored(1), Stored(2)})), Heard::kNothing);
  EXPECT_EQ(watcher.Hear(Piece(1, true, 5, {Stored(3)})), Heard::kTooMany);
}

// Caches that change, are cleared and start again, and watchers of any pace whose events are lost and come twice: one that
// believes to be current, and has nothing left to read, has what is there.
TEST(CacheMirror, WhatItHoldsIsWhatIsThere) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    uint64_t epoch = 1;
    const auto start = [&] {
      return std::make_unique<KeyLog>(KeyLog::Options{
          .epoch = epoch++, .max_changes = 1 + random() % 40, .max_event_keys = 1 + random() % 10});
    };
    std::unique_ptr<KeyLog> log = start();
    std::map<uint64_t, int> held;
    struct Watched {
      std::unique_ptr<Watcher> watcher = std::make_unique<Watcher>();
      KeyLog::Reader reader;
      bool lost = false;  // an event, since all was well
    };
    std::vector<Watched> watched(3);
    int compared = 0;
    for (int step = 0; step < 2000; ++step) {
      const uint64_t key = random() % 50;
      if (random() % 400 == 0) {
        log = start();
        held.clear();
        // Their streams broke.
        for (Watched& one : watched) one = Watched();
      } else if (random() % 300 == 0) {
        log->Clear();
        held.clear();
      } else if (random() % 2 == 0) {
        ++held[key];
        log->Add(Stored(key));
      } else {
        if (--held[key] <= 0) held.erase(key);
        log->Add(Removed(key));
      }
      for (Watched& one : watched) {
        if (random() % 8 != 0) continue;
        v1::CacheEvent event;
        bool more = true;
        for (size_t turns = random() % 30; turns > 0 && more; --turns) {
          more = log->Read(&one.reader, &event);
          if (!more) break;
          if (random() % 100 == 0) {
            one.lost = true;
            continue;
          }
          Heard heard = one.watcher->Hear(event);
          if (heard != Heard::kBroken && !event.has_piece() && random() % 10 == 0) {
            EXPECT_EQ(one.watcher->Hear(event), Heard::kNothing);
          }
          if (heard == Heard::kSnapshot) one.lost = false;
          if (heard == Heard::kBroken) {
            EXPECT_TRUE(one.lost);
            one = Watched();
            break;
          }
        }
        if (more || one.lost || !one.watcher->mirror().current()) continue;
        Keys expected;
        for (const auto& [there, times] : held) expected.insert(there);
        ASSERT_EQ(one.watcher->keys(), expected) << "seed " << seed << " step " << step;
        ++compared;
      }
    }
    EXPECT_GT(compared, 20) << seed;
  }
}

}  // namespace
}  // namespace aludel
