#include "server/store/memory_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "server/store/cut_frames.h"

namespace aludel {
namespace {

// By how much less a token is worth than the one in front of it, as a logarithm: 1e5 tokens further on, less than one use
// among a hundred makes.
constexpr double kBehind = 1e-7;
// Of a format in each number of planes, so many tokens tell what one takes.
constexpr double kTokensMeasured = 1 << 20;
// Keys that are put right in one look: others wait for the store's lock.
constexpr int kRepairs = 64;

}  // namespace

double UtilityHeap::KeyOf(const Node& node) { return node.uses.Log2AtEpoch() - kBehind * node.token_begin; }

void UtilityHeap::Weigh(double tokens, double now) {
  weight_ = std::max(0.0, Weight(now) + tokens);
  weighed_ = now;
}

double UtilityHeap::Weight(double now) const {
  return weight_ * std::exp2((weighed_ - now) / MemoryOrder::kHalfLife);
}

void UtilityHeap::Add(Node* node, double now) {
  Weigh(node->tokens * node->uses.At(now, MemoryOrder::kHalfLife), now);
  node->heap = this;
  items_.push_back({KeyOf(*node), node});
  node->heap_index = items_.size() - 1;
  Up(node->heap_index);
}

void UtilityHeap::Remove(Node* node, double now) {
  Weigh(-(node->tokens * node->uses.At(now, MemoryOrder::kHalfLife)), now);
  const size_t index = node->heap_index;
  const Item last = items_.back();
  items_.pop_back();
  node->heap = nullptr;
  if (last.node == node) return;
  Put(index, last);
  Up(index);
  Down(last.node->heap_index);
}

UtilityHeap::Node* UtilityHeap::Least() {
  Node* least = nullptr;
  double least_key = 0;
  for (int repairs = 0; repairs <= kRepairs && !items_.empty(); ++repairs) {
    Item& top = items_.front();
    const double key = KeyOf(*top.node);
    if (least == nullptr || key < least_key) {
      least = top.node;
      least_key = key;
    }
    if (key <= top.key) break;
    top.key = key;
    Down(0);
  }
  return least;
}

void UtilityHeap::Put(size_t index, const Item& item) {
  items_[index] = item;
  item.node->heap_index = index;
}

void UtilityHeap::Up(size_t index) {
  const Item item = items_[index];
  while (index > 0 && item.key < items_[(index - 1) / 2].key) {
    Put(index, items_[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  Put(index, item);
}

void UtilityHeap::Down(size_t index) {
  const Item item = items_[index];
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= items_.size()) break;
    if (child + 1 < items_.size() && items_[child + 1].key < items_[child].key) ++child;
    if (items_[child].key >= item.key) break;
    Put(index, items_[child]);
    index = child;
  }
  Put(index, item);
}

double MemoryOrder::Family::Share(int planes, double now) const {
  if (planes == 0) return 1;
  double all = 0, served = 0;
  for (int wanted = 0; wanted < kForms; ++wanted) {
    const double uses = asked[wanted].At(now, kHalfLife);
    all += uses;
    if (wanted > 0 && wanted <= planes) served += uses;
  }
  return all > 0 ? served / all : 0;
}

MemoryOrder::MemoryOrder(const std::vector<Cut>& cuts) { AddCuts(cuts); }

void MemoryOrder::AddCuts(const std::vector<Cut>& cuts) {
  for (const Cut& cut : cuts) {
    if (cut.planes == 0) continue;
    std::vector<uint8_t>& known = families_[cut.encoder].cuts;
    if (std::find(known.begin(), known.end(), cut.planes) == known.end()) known.push_back(cut.planes);
  }
  for (auto& [encoder, family] : families_) std::sort(family.cuts.rbegin(), family.cuts.rend());
}

void MemoryOrder::Used(Node* node, uint8_t wanted, double now) {
  if (node->uses.empty()) node->uses = gone_.Find(ChunkKeyHash()(node->key));
  node->uses.Add(now, kHalfLife);
  families_[node->encoder].asked[wanted].Add(now, kHalfLife);
  if (node->heap != nullptr) node->heap->Used(*node, now);
}

void MemoryOrder::Add(Node* node, double now) {
  // What was read unasked is expected to be asked for.
  if (node->uses.At(now, kHalfLife) == 0) node->uses.Add(now, kHalfLife);
  Measure(*node);
  const int on_disk = node->disk.exists() ? node->disk.planes : kNotOnDisk;
  const auto [place, added] = classes_.try_emplace(Name(node->encoder, node->memory_planes, on_disk));
  Class& of = place->second;
  if (added) {
    of.family = &families_[node->encoder];
    of.planes = node->memory_planes;
    of.on_disk = on_disk;
    Plan(&of, now);  // a row may be under way
  }
  of.heap.Add(node, now);
}

void MemoryOrder::Remove(Node* node, double now) {
  if (!node->uses.empty()) gone_.Put(ChunkKeyHash()(node->key), node->uses);
  TakeOut(node, now);
}

void MemoryOrder::TakeOut(Node* node, double now) {
  if (node->heap != nullptr) {
    node->heap->Remove(node, now);
  } else {
    passed_over_.erase({node->passed_over_until, node});
  }
}

void MemoryOrder::Moved(Node* node, double now) {
  if (node->heap == nullptr && !passed_over_.contains({node->passed_over_until, node})) return;
  TakeOut(node, now);
  Add(node, now);
}

void MemoryOrder::Measure(const Node& node) {
  Family& family = families_[node.encoder];
  const auto add = [&](uint8_t planes, size_t bytes) {
    family.bytes[planes] += static_cast<double>(bytes);
    family.tokens[planes] += node.tokens;
  };
  if (family.tokens[node.memory_planes] >= kTokensMeasured) return;
  add(node.memory_planes, node.memory_bytes);
  size_t payload = 0;
  for (const StoredFrame& frame : *node.memory) payload += frame.payload.size();
  for (const uint8_t planes : family.cuts) {
    if (planes == node.memory_planes || !Serves(node.memory_planes, planes)) continue;
    const size_t cut = CutBytes(*node.memory, planes);
    if (cut > 0) add(planes, node.memory_bytes - payload + cut);
  }
}

void MemoryOrder::Plan(Class* of, double now) const {
  const Family& family = *of->family;
  const double from_memory = costs_.prefill_seconds;
  double on_disk_share = 0, from_disk = 0;
  if (of->on_disk != kNotOnDisk) {
    on_disk_share = family.Share(of->on_disk, now);
    // As if all were written just now.
    from_disk = UsedWithin(costs_.disk_seconds, kHalfLife) *
                std::max(0.0, SecondsSaved(costs_.prefill_seconds, family.PerToken(of->on_disk),
                                           costs_.disk_bytes_per_second, 0, 0, 0));
  }
  // The disk serves those for whom it has more planes.
  const auto seconds = [&](double share) {
    return share * from_memory + std::max(0.0, on_disk_share - share) * from_disk;
  };
  std::vector<KeptForm> forms = {{family.PerToken(of->planes), seconds(family.Share(of->planes, now))}};
  std::vector<uint8_t> planes = {of->planes};
  for (const uint8_t cut : family.cuts) {
    if (cut == of->planes || !Serves(of->planes, cut) || family.PerToken(cut) == 0) continue;
    forms.push_back({family.PerToken(cut), seconds(family.Share(cut, now))});
    planes.push_back(cut);
  }
  const Demotion next = NextDemotion(forms, 0, seconds(0));
  of->seconds = forms.front().seconds;
  of->price = next.price;
  of->next = next.to == Demotion::kAway ? uint8_t{0} : planes[next.to];
}

void MemoryOrder::Begin(const Costs& costs, double now) {
  last_price_ = 0;
  costs_ = costs;
  ComeBack(now);
  for (auto& [name, of] : classes_) Plan(&of, now);
}

MemoryOrder::Move MemoryOrder::Next(double now) {
  Move move;
  double least = std::numeric_limits<double>::infinity();
  double price = 0;
  for (auto& [name, of] : classes_) {
    Node* const node = of.heap.Least();
    if (node == nullptr) continue;
    const double cost = of.price > 0 ? UtilityHeap::KeyOf(*node) + std::log2(of.price)
                                     : -std::numeric_limits<double>::infinity();
    if (move.node != nullptr && cost >= least) continue;
    least = cost;
    move = {node, of.next};
    price = of.price;
  }
  if (move.node != nullptr) last_price_ = std::max(0.0, price) * move.node->uses.At(now, kHalfLife);
  return move;
}

void MemoryOrder::PassOver(Node* node, double until, double now) {
  TakeOut(node, now);
  node->passed_over_until = until;
  passed_over_.insert({until, node});
}

void MemoryOrder::ComeBack(double now) {
  while (!passed_over_.empty() && passed_over_.begin()->first <= now) {
    Node* const node = passed_over_.begin()->second;
    passed_over_.erase(passed_over_.begin());
    Add(node, now);
  }
}

double MemoryOrder::End(double slack, double now) {
  ComeBack(now);
  double kept = 0;
  for (const auto& [name, of] : classes_) kept += of.heap.Weight(now) * of.seconds;
  const double lost = last_price_ * std::max(0.0, slack);
  return lost > 0 ? lost / (kept + lost) : 0;
}

void MemoryOrder::Clear() {
  passed_over_.clear();
  classes_.clear();
  gone_.Clear();
}

}  // namespace aludel
