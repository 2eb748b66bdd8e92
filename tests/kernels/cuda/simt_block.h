#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/context.h"
#include "tests/kernels/cuda/simt.h"

// What simt's own files share: the state of the block that runs.
namespace aludel::cuda::simt {

constexpr int kLanes = 32;
constexpr int kWarpgroupWarps = 4;
constexpr size_t kPiece = 16;  // bytes of a copy, and the grain of what the async proxy sees

// kCondition: until `ready` says so. kLate: until nobody else gets any further.
enum class Wait { kNothing, kWarp, kBlock, kCondition, kLate, kDone };

// Which lanes linger, drawn whenever all warps advance.
enum class Lateness { kNone, kSome, kAll };

struct AsyncCopy {
  char* shared;
  const void* global;  // null: zeros
};

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  Dim3 thread;
  int index = 0;  // in the block
  Wait wait = Wait::kNothing;
  const char* collective = nullptr;
  WarpWork work = nullptr;
  void* operands = nullptr;
  std::function<bool()> ready;
  std::string waits_for;                      // in words, where at a condition
  std::vector<AsyncCopy> open;                // since the last commit
  std::deque<std::vector<AsyncCopy>> groups;  // committed, oldest first
  std::vector<size_t> written;                // pieces of shared memory that the async proxy does not see yet
  bool has_fenced = false;                    // __threadfence
  int block_meetings = 0, warp_meetings = 0;  // __syncthreads and __syncwarp
  std::map<const char*, std::vector<char>> fenced;  // registers as they were at the last wgmma.fence
  void* fake_stack = nullptr;                       // ASan's, while the fiber is away
  void* tsan = nullptr;
};

// One product of a warp that has begun.
struct Product {
  int columns;
  bool accumulate;
  bool transposed;  // b, dimensions by rows
  bool a_in_registers;
  uint64_t a_matrix, b_matrix;  // descriptors
  const uint32_t* a[kLanes];    // registers
  float* d[kLanes];
  std::vector<uint16_t> a_seen, b_seen;  // shared operands when it began
  // What others of the warpgroup have to agree on.
  bool Same(const Product& other) const {
    return columns == other.columns && accumulate == other.accumulate && transposed == other.transposed &&
           a_in_registers == other.a_in_registers && a_matrix == other.a_matrix && b_matrix == other.b_matrix;
  }
};

// Sums that products under way will bring, by the first lane's registers.
struct Pending {
  int products = 0;
  std::vector<float> sums;  // [lanes, columns / 2]
};

struct Warp {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  std::map<float*, Pending> pending;
  std::vector<Product> finished;  // by the last wait
  size_t begun = 0;
  char meetings[2];  // as Block's
};

struct Barrier {
  int arrivals;
  int missing;
  int phase = 0;
};

struct NumberedBarrier {
  int threads = 0;
  int arrived = 0;
  int generation = 0;
};

struct Block {
  Context scheduler;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::map<int, std::vector<Product>> begun;  // by warpgroup, in order
  std::map<const void*, Barrier> barriers;
  std::map<int, NumberedBarrier> numbered;
  Dim3 index, size, grid;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  // What orders all threads at a barrier, in turn: who goes on late must not see what others do before the next one.
  char meetings[2];
  // What blocks of the launch have stored and counted, by counter.
  std::map<const void*, std::vector<std::pair<float*, float>>> counted;
  std::vector<char> async_view;  // shared memory as the async proxy sees it
  const std::function<void(char*)>* body = nullptr;
  Fiber* running = nullptr;
  int warp = -1;       // whose collective runs
  bool alone = false;  // LaunchAlone's
  Lateness lateness = Lateness::kNone;
  std::mt19937_64* random = nullptr;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  void* scheduler_tsan = nullptr;
};

extern Block* current;

[[noreturn]] void Fail(const std::string& what);

// Bytes of shared memory become what nobody has written, for both proxies.
void Undefine(char* shared, size_t bytes);
void CheckShared(const void* address, size_t bytes = kPiece);

// Blocks the running thread until `ready`; `what` for the message if that never comes.
void WaitUntil(const std::string& what, std::function<bool()> ready);
// Keeps the running thread until nobody else gets any further; Linger does so or not, as Lateness says.
void LetOthers();
void Linger();

// At a block's beginning: what others have stored and counted is NaN for it, until it has waited for the count.
void HideCounted();

// At the block's end: nothing is under way.
void CheckProductsDone();

// Element i of [0, 8) of a lane's share of an A [16, 16], and i of [0, 4) of its share of a result [16, 8].
inline int OperandRow(int lane, int i) { return i < 2 || (4 <= i && i < 6) ? lane / 4 : lane / 4 + 8; }
inline int OperandColumn(int lane, int i) { return lane % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8); }
inline int ResultRow(int lane, int i) { return i < 2 ? lane / 4 : lane / 4 + 8; }
inline int ResultColumn(int lane, int i) { return lane % 4 * 2 + (i & 1); }

}  // namespace aludel::cuda::simt
