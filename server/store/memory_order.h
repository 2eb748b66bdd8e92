#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/store/placement/placement.h"
#include "server/store/placement/use_history.h"
#include "server/store/store_index.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// Chunks by the logarithm of their uses (DecayedCount), least first. Uses only grow, so that a key that was left as it
// was is a lower bound, and is put right when it is the least: a look-up moves nothing here.
class UtilityHeap {
 public:
  using Node = StoreIndex::Node;

  void Add(Node* node, double now);
  void Remove(Node* node, double now);
  // One of its nodes was used.
  void Used(const Node& node, double now) { Weigh(node.tokens, now); }
  // Null: it is empty. Nearly the least where more keys than a few must be put right: the next calls go on with that.
  Node* Least();
  // Its key, by which it is compared with those of other heaps.
  static double KeyOf(const Node& node);
  // Uses of tokens, of all nodes, that still count now.
  double Weight(double now) const;

 private:
  struct Item {
    double key = 0;
    Node* node = nullptr;
  };
  void Weigh(double tokens, double now);
  void Put(size_t index, const Item& item);
  void Up(size_t index);
  void Down(size_t index);

  std::vector<Item> items_;
  double weight_ = 0;   // as it was
  double weighed_ = 0;  // at this time
};

// Which chunk of the memory tier is demoted next, and how: cut to the planes of a format that is offered (NAME@N), or
// dropped. It is the move that costs the fewest expected seconds a byte (NextDemotion): the chunk's decayed count of
// uses, times what its bytes save; of what the disk has too, that is reading it, and all where it goes from there before it
// is used. A chunk that comes back counts its uses before it had gone, too (UseHistory, 1 MiB). Chunks of one format, in one
// number of planes here and on disk, save alike a byte, and are a class with a heap of its own, so that measured rates and
// what is asked for may change at any time. Within a class, of a prompt's chunks that are used equally often the last goes
// first. A chunk of fewer planes serves only those who ask for them: its worth is their share of the requests for the
// format. Times are seconds of one clock. Not thread-safe.
class MemoryOrder {
 public:
  using Node = StoreIndex::Node;

  static constexpr double kHalfLife = 300;  // seconds

  // A format's cut that requests may ask for.
  struct Cut {
    StoreTag encoder = {};
    uint8_t planes = 0;  // 0: none
  };
  struct Costs {
    double prefill_seconds = 1e-4;                                  // of a token
    double disk_bytes_per_second = 1e9;                             // that are read
    double disk_seconds = std::numeric_limits<double>::infinity();  // that the disk keeps what it takes
  };
  struct Move {
    Node* node = nullptr;
    uint8_t planes = 0;  // 0: away
  };

  // Of the monotonic clock.
  static double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }
  static double Now() { return Seconds(MonotonicNow()); }

  explicit MemoryOrder(const std::vector<Cut>& cuts);
  // Cuts of encoders that have come since; those that are known stay.
  void AddCuts(const std::vector<Cut>& cuts);

  // A request for so many planes (Serves) asked for the chunk, which may be in memory or not.
  void Used(Node* node, uint8_t wanted, double now);
  // The chunk came into memory, leaves it, or has changed: its planes, or what the disk has of it.
  void Add(Node* node, double now);
  void Remove(Node* node, double now);
  void Moved(Node* node, double now);

  // A row of moves: costs are those of its begin. Next tells the next one and leaves it to the caller, who makes it, or
  // passes the chunk over: for this row and until then. It is not told of before, unless it has changed (Moved).
  void Begin(const Costs& costs, double now);
  Move Next(double now);  // without a node: there is none
  void PassOver(Node* node, double until, double now);
  // `slack`: bytes that the row has freed beyond its mark. How much the last move took that a part of it would have left
  // (the linear relaxation), as a share of what all chunks but those passed over are worth, at each format's mean bytes a
  // token: what was lost before, and what the mark keeps free, is not in it.
  double End(double slack, double now);

  void Clear();

 private:
  static constexpr int kForms = kMaxPlanes + 1;  // by planes; 0: whole
  // Chunks that have gone whose uses are known: with 50 a second that go, those of some 20 minutes.
  static constexpr size_t kRemembered = 1 << 16;

  struct Family {
    std::array<DecayedCount, kForms> asked;
    // What chunks that were seen took in memory, and their tokens; cut, what they would take.
    std::array<double, kForms> bytes = {};
    std::array<double, kForms> tokens = {};
    std::vector<uint8_t> cuts;  // most planes first

    double PerToken(int planes) const { return tokens[planes] > 0 ? bytes[planes] / tokens[planes] : 0; }
    // Of uses, those that so many planes serve.
    double Share(int planes, double now) const;
  };
  struct Class {
    Family* family = nullptr;
    uint8_t planes = 0;
    int on_disk = kNotOnDisk;  // planes there
    UtilityHeap heap;
    // Of a row of moves:
    double seconds = 0;  // saved by a use of a token
    double price = 0;    // of the next move
    uint8_t next = 0;    // its planes
  };
  using Name = std::tuple<StoreTag, uint8_t, int>;
  static constexpr int kNotOnDisk = -1;

  // Out of its heap, or of those passed over.
  void TakeOut(Node* node, double now);
  void ComeBack(double now);
  void Measure(const Node& node);
  void Plan(Class* of, double now) const;

  std::map<StoreTag, Family> families_;
  std::map<Name, Class> classes_;
  Costs costs_;
  std::set<std::pair<double, Node*>> passed_over_;  // in no heap, by when that ends
  double last_price_ = 0;                           // seconds a byte, of the last move of the row
  UseHistory gone_{kRemembered};
};

}  // namespace aludel
