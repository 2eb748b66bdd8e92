#include "tests/kernels/cuda/simt.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/tensor.h"
#include "tests/kernels/cuda/races.h"
#include "tests/kernels/cuda/simt_block.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace aludel::cuda::simt {

Block* current = nullptr;

void Fail(const std::string& what) {
  const std::string who = current->running != nullptr ? "thread " + std::to_string(current->running->index)
                          : current->warp >= 0        ? "warp " + std::to_string(current->warp)
                                                      : "";
  std::fprintf(stderr, "simt: block (%u, %u, %u) %s: %s\n", current->index.x, current->index.y,
               current->index.z, who.c_str(), what.c_str());
  std::abort();
}

namespace {

uint64_t fences = 0;
uint64_t awaits = 0;
bool allowed = false;  // the next kernel

constexpr size_t kStackBytes = 256 << 10;

using Stack = std::unique_ptr<char[]>;

// Of launches before this one: mapping them anew would cost more than most kernels.
std::vector<Stack>& Stacks() {
  static std::vector<Stack> stacks;
  return stacks;
}

Stack TakeStack() {
  std::vector<Stack>& stacks = Stacks();
  if (stacks.empty()) return Stack(new char[kStackBytes]);
  Stack stack = std::move(stacks.back());
  stacks.pop_back();
  return stack;
}

void ArriveFromScheduler() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(current->running->fake_stack, &current->scheduler_stack,
                                  &current->scheduler_stack_bytes);
#endif
}

void ToScheduler(bool forever) {
  if (current->alone) Fail("meets other threads, and was launched as a kernel whose threads never do");
  Fiber& fiber = *current->running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(forever ? nullptr : &fiber.fake_stack, current->scheduler_stack,
                                 current->scheduler_stack_bytes);
#endif
#if defined(ALUDEL_RACES)
  __tsan_switch_to_fiber(current->scheduler_tsan, __tsan_switch_to_fiber_no_sync);
#endif
  static_cast<void>(forever);
  SwitchContext(&fiber.context, &current->scheduler);
  ArriveFromScheduler();
}

void Main() {
  ArriveFromScheduler();
  Acquire(&current->index);
  (*current->body)(current->shared);
  Release(&current->size);
  Fiber& fiber = *current->running;
  for (const auto& group : fiber.groups) {
    if (!group.empty()) Fail("ends with an asynchronous copy that it has not waited for");
  }
  if (!fiber.open.empty()) Fail("ends with an asynchronous copy that it has not committed");
  fiber.wait = Wait::kDone;
  ToScheduler(/*forever=*/true);
}

void Resume(Fiber& fiber) {
  current->running = &fiber;
  fiber.wait = Wait::kNothing;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&current->scheduler_fake_stack, fiber.stack.get(), kStackBytes);
#endif
#if defined(ALUDEL_RACES)
  __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
#endif
  SwitchContext(&current->scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(current->scheduler_fake_stack, nullptr, nullptr);
#endif
  current->running = nullptr;
}

// Runs the lanes of one warp until all wait for something other than each other, or else until they wait for
// what has not come: so that warps may keep step or be far ahead. Whether any has run.
bool AdvanceWarp(int warp) {
  Fiber* const lanes = &current->fibers[warp * kLanes];
  const bool far = (*current->random)() % 2 != 0;
  for (bool ran = false;; ran = true) {
    bool resumed = false, may_come = false;
    int at_collective = 0;
    for (int i = 0; i < kLanes; ++i) {
      if (lanes[i].wait == Wait::kCondition && lanes[i].ready()) lanes[i].wait = Wait::kNothing;
      if (lanes[i].wait == Wait::kNothing) {
        Resume(lanes[i]);
        resumed = true;
      }
      at_collective += lanes[i].wait == Wait::kWarp;
      may_come = may_come || lanes[i].wait == Wait::kCondition || lanes[i].wait == Wait::kLate;
    }
    if (at_collective == 0 || may_come) {
      if (far && resumed) continue;
      return ran || resumed;
    }
    void* operands[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      current->running = &lanes[i];
      if (lanes[i].wait != Wait::kWarp) Fail("its warp waits at a collective instruction");
      if (lanes[i].collective != lanes[0].collective &&
          std::strcmp(lanes[i].collective, lanes[0].collective) != 0) {
        Fail(std::string("is at ") + lanes[i].collective + ", lane 0 at " + lanes[0].collective);
      }
      operands[i] = lanes[i].operands;
    }
    current->running = nullptr;
    current->warp = warp;
    lanes[0].work(operands);
    current->warp = -1;
    for (int i = 0; i < kLanes; ++i) lanes[i].wait = Wait::kNothing;
  }
}

void Start(Fiber& fiber, int index) {
  fiber.index = index;
  fiber.thread = {index % current->size.x, index / current->size.x % current->size.y,
                  index / current->size.x / current->size.y};
  if (fiber.stack == nullptr) fiber.stack = TakeStack();
#if defined(__SANITIZE_ADDRESS__)
  // The fiber that had it has ended without going back through its calls.
  __asan_unpoison_memory_region(fiber.stack.get(), kStackBytes);
#endif
#if defined(ALUDEL_RACES)
  // Making one takes longer than most threads. Blocks are ordered, so that one thread may go on as that of another block.
  static std::vector<void*> threads;
  if (index == static_cast<int>(threads.size())) threads.push_back(__tsan_create_fiber(0));
  fiber.tsan = threads[index];
#endif
  fiber.wait = Wait::kNothing;
  fiber.groups.clear();
  fiber.open.clear();
  fiber.written.clear();
  fiber.fenced.clear();
  fiber.has_fenced = false;
  fiber.block_meetings = fiber.warp_meetings = 0;
  MakeContext(&fiber.context, fiber.stack.get(), kStackBytes, Main);
}

// Nobody can go on: lets those go on who wait for just that, or else everyone past the block's barrier.
void Unblock() {
  std::vector<Fiber*> late;
  size_t at_barrier = 0, done = 0;
  Fiber* stuck = nullptr;
  for (Fiber& fiber : current->fibers) {
    if (fiber.wait == Wait::kLate) late.push_back(&fiber);
    if (fiber.wait == Wait::kCondition) stuck = &fiber;
    at_barrier += fiber.wait == Wait::kBlock;
    done += fiber.wait == Wait::kDone;
  }
  if (!late.empty()) {
    // One warp's, so that the others stay late.
    const int warp = late[(*current->random)() % late.size()]->index / kLanes;
    for (Fiber* const fiber : late) {
      if (fiber->index / kLanes == warp) fiber->wait = Wait::kNothing;
    }
    return;
  }
  if (stuck != nullptr) {
    current->running = stuck;
    Fail("waits for ever for " + stuck->waits_for);
  }
  if (done != 0) Fail("some threads have ended and others wait at a barrier");
  ALUDEL_CHECK(at_barrier == current->fibers.size());
  for (Fiber& fiber : current->fibers) fiber.wait = Wait::kNothing;
}

void RunBlock() {
  const Unseen scheduler;
  const uint64_t awaited = awaits;
  std::fill_n(current->shared, current->shared_bytes, static_cast<char>(0xff));  // NaN, as bf16 and as f32
  current->async_view.assign(current->shared_bytes, static_cast<char>(0xff));
  current->barriers.clear();
  current->numbered.clear();
  current->begun.clear();
  HideCounted();
  for (size_t i = 0; i < current->fibers.size(); ++i) Start(current->fibers[i], static_cast<int>(i));
  current->warps.assign(current->fibers.size() / kLanes, {});
  std::vector<int> warps(current->warps.size());
  for (size_t i = 0; i < warps.size(); ++i) warps[i] = static_cast<int>(i);
  Release(&current->index);
  while (true) {
    std::shuffle(warps.begin(), warps.end(), *current->random);
    current->lateness = static_cast<Lateness>((*current->random)() % 3);
    bool ran = false;
    for (const int warp : warps) ran = AdvanceWarp(warp) || ran;
    if (ran) continue;
    size_t done = 0;
    for (const Fiber& fiber : current->fibers) done += fiber.wait == Wait::kDone;
    if (done == current->fibers.size()) break;
    Unblock();
  }
  Acquire(&current->size);
  CheckProductsDone();
  if ((awaits - awaited) % current->fibers.size() != 0) {
    Fail("awaits the kernels before it with some of its threads");
  }
}

// Bits i and i + 1 of a register's two halves.
uint32_t Pair(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }
double HalfOf(uint32_t word, int half) {
  return ToFloat(Bf16{static_cast<uint16_t>(half == 0 ? word : word >> 16)});
}

struct LdMatrixOperands {
  const void* row;
  uint32_t* to;
};

// PTX ISA 9.7.14.5.15: row r of matrix i lies where lane 8 i + r says; lane l receives of it the elements
// 2 (l % 4) and the next of row l / 4, or with .trans of column l / 4.
template <bool kTransposed>
void RunLdMatrix(void* const* lanes) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t elements[8][8];
    for (int r = 0; r < 8; ++r) {
      const void* const row = static_cast<LdMatrixOperands*>(lanes[8 * matrix + r])->row;
      CheckShared(row);
      std::memcpy(elements[r], row, sizeof(elements[r]));
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      static_cast<LdMatrixOperands*>(lanes[lane])->to[matrix] =
          kTransposed ? Pair(elements[j][i], elements[j + 1][i]) : Pair(elements[i][j], elements[i][j + 1]);
    }
  }
}

struct MmaOperands {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

// PTX ISA 9.7.14.5.8 ("Matrix fragments for mma.m16n8k16 with floating point type"), its formulas for element
// i of a lane's eight of A, four of B and four of D, with group = lane / 4 and thread = lane % 4.
void RunMma(void* const* lanes) {
  double a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<MmaOperands*>(lanes[lane]);
    for (int i = 0; i < 8; ++i) {
      a[OperandRow(lane, i)][OperandColumn(lane, i)] = HalfOf(own.a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8);
      b[row][lane / 4] = HalfOf(own.b[i / 2], i % 2);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<MmaOperands*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      double sum = own.d[i];
      for (int k = 0; k < 16; ++k) sum += a[ResultRow(lane, i)][k] * b[k][ResultColumn(lane, i)];
      own.d[i] = static_cast<float>(sum);
    }
  }
}

struct MmaInt8Operands {
  int32_t* d;
  const uint32_t* a;
  uint32_t b[2];
};

int ByteOf(uint32_t word, int byte) { return static_cast<int8_t>(word >> (8 * byte)); }

// "Matrix fragments for mma.m16n8k32": element i of a lane's sixteen of A, eight of B and four of D.
void RunMmaInt8(void* const* lanes) {
  int a[16][32], b[32][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<MmaInt8Operands*>(lanes[lane]);
    const int group = lane / 4, thread = lane % 4;
    for (int i = 0; i < 16; ++i) {
      const int row = (0 <= i && i < 4) || (8 <= i && i < 12) ? group : group + 8;
      const int col = thread * 4 + (i & 3) + (i < 8 ? 0 : 16);
      a[row][col] = ByteOf(own.a[i / 4], i % 4);
    }
    for (int i = 0; i < 8; ++i) {
      const int row = thread * 4 + (i & 3) + (i < 4 ? 0 : 16);
      b[row][group] = ByteOf(own.b[i / 4], i % 4);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<MmaInt8Operands*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 32; ++k) own.d[i] += a[ResultRow(lane, i)][k] * b[k][ResultColumn(lane, i)];
    }
  }
}

}  // namespace

void CheckShared(const void* address, size_t bytes) {
  const char* const at = static_cast<const char*>(address);
  if (at < current->shared || at + bytes > current->shared + current->shared_bytes) {
    Fail("address outside of shared memory");
  }
  if ((at - current->shared) % bytes != 0) Fail("misaligned address in shared memory");
}

void Undefine(char* shared, size_t bytes) {
  std::memset(shared, 0xff, bytes);
  std::memset(current->async_view.data() + (shared - current->shared), 0xff, bytes);
}

void WaitUntil(const std::string& what, std::function<bool()> ready) {
  Fiber& fiber = *current->running;
  fiber.wait = Wait::kCondition;
  fiber.waits_for = what;
  fiber.ready = std::move(ready);
  ToScheduler(/*forever=*/false);
}

void LetOthers() {
  current->running->wait = Wait::kLate;
  ToScheduler(/*forever=*/false);
}

void Linger() {
  const Unseen draw;
  const bool late = current->lateness == Lateness::kSome ? (*current->random)() % 2 != 0
                                                         : current->lateness == Lateness::kAll;
  if (late) LetOthers();
}

void Launch(Dim3 grid, Dim3 block, size_t shared_bytes, uint64_t seed,
            const std::function<void(char*)>& body) {
  ALUDEL_CHECK(current == nullptr && block.x * block.y * block.z % kLanes == 0);
  fences = awaits = 0;
  allowed = false;
  Block state;
  std::vector<char> shared(shared_bytes + 128);
  state.shared = shared.data() + (128 - reinterpret_cast<uintptr_t>(shared.data()) % 128) % 128;
  state.shared_bytes = shared_bytes;
  state.fibers = std::vector<Fiber>(block.x * block.y * block.z);
  state.size = block;
  state.grid = grid;
  state.body = &body;
#if defined(ALUDEL_RACES)
  state.scheduler_tsan = __tsan_get_current_fiber();
#endif
  current = &state;
  std::mt19937_64 random(seed);
  state.random = &random;
  std::vector<Dim3> blocks;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const Dim3& index : blocks) {
    state.index = index;
    RunBlock();
  }
  // A block without work may end without.
  if (allowed && awaits == 0) Fail("lets the next kernel begin, and has not awaited those before it");
  for (Fiber& fiber : state.fibers) Stacks().push_back(std::move(fiber.stack));
  current = nullptr;
}

void Fence() {
  current->running->has_fenced = true;
  ++fences;
}

void Await() { ++awaits; }
void Allow() { allowed = true; }

void CheckAddition(const void* address) {
  const char* const at = static_cast<const char*>(address);
  if (at >= current->shared && at < current->shared + current->shared_bytes) return;
  for (const Fiber& fiber : current->fibers) {
    if (!fiber.has_fenced)
      Fail("counts its block before thread " + std::to_string(fiber.index) + " has fenced");
  }
}

uint64_t FenceCount() { return fences; }
uint64_t AwaitCount() { return awaits; }

const Dim3& ThreadIndex() { return current->running->thread; }
const Dim3& BlockIndex() { return current->index; }
const Dim3& BlockSize() { return current->size; }
const Dim3& GridSize() { return current->grid; }
int Lane() { return current->running->index % kLanes; }

void LaunchAlone(Dim3 grid, Dim3 block, const std::function<void(char* shared)>& body) {
  Block state;
  state.alone = true;
  state.size = block;
  state.grid = grid;
  state.fibers.resize(1);
  state.running = state.fibers.data();
  current = &state;
  const unsigned threads = block.x * block.y * block.z;
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
    state.index = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    for (unsigned t = 0; t < threads; ++t) {
      state.running->index = static_cast<int>(t);
      state.running->thread = {t % block.x, t / block.x % block.y, t / block.x / block.y};
      body(nullptr);
    }
  }
  current = nullptr;
}

void SyncThreads() {
  Fiber& fiber = *current->running;
  fiber.wait = Wait::kBlock;
  const char* const meeting = &current->meetings[fiber.block_meetings++ % 2];
  Release(meeting);
  ToScheduler(/*forever=*/false);
  Acquire(meeting);
}

void Collective(const char* name, WarpWork work, void* operands) {
  Fiber& fiber = *current->running;
  fiber.wait = Wait::kWarp;
  fiber.collective = name;
  fiber.work = work;
  fiber.operands = operands;
  const bool orders = std::strcmp(name, "syncwarp") == 0;
  const char* const meeting = &current->warps[fiber.index / kLanes].meetings[fiber.warp_meetings % 2];
  fiber.warp_meetings += orders;
  if (orders) Release(meeting);
  ToScheduler(/*forever=*/false);
  if (orders) Acquire(meeting);
}

}  // namespace aludel::cuda::simt

namespace aludel::cuda {

using simt::Collective;

void CpAsync16(void* shared, const void* global, bool there) {
  simt::CheckShared(shared);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) simt::Fail("misaligned address in global memory");
  simt::Undefine(static_cast<char*>(shared), simt::kPiece);
  simt::Writes16(shared);
  if (there) simt::Reads16(global);
  simt::current->running->open.push_back({static_cast<char*>(shared), there ? global : nullptr});
}

void CpAsyncCommit() {
  simt::Fiber& fiber = *simt::current->running;
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void CpAsyncWaitFor(int pending) {
  simt::Linger();
  simt::Fiber& fiber = *simt::current->running;
  auto& groups = fiber.groups;
  for (; static_cast<int>(groups.size()) > pending; groups.pop_front()) {
    for (const simt::AsyncCopy& copy : groups.front()) {
      fiber.written.push_back(copy.shared - simt::current->shared);
      if (copy.global == nullptr) {
        std::memset(copy.shared, 0, simt::kPiece);
      } else {
        std::memcpy(copy.shared, copy.global, simt::kPiece);
      }
    }
  }
}

void LdMatrix(uint32_t (&to)[4], const void* row) {
  simt::LdMatrixOperands operands{row, to};
  simt::Reads16(row);
  Collective("ldmatrix", simt::RunLdMatrix<false>, &operands);
}

void LdMatrixTransposed(uint32_t (&to)[4], const void* row) {
  simt::LdMatrixOperands operands{row, to};
  simt::Reads16(row);
  Collective("ldmatrix.trans", simt::RunLdMatrix<true>, &operands);
}

void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  simt::MmaOperands operands{d, a, {b0, b1}};
  Collective("mma", simt::RunMma, &operands);
}

void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  simt::MmaInt8Operands operands{d, a, {b0, b1}};
  Collective("mma of bytes", simt::RunMmaInt8, &operands);
}

uint4 LoadOnce(const void* global) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) simt::Fail("misaligned address in global memory");
  simt::Reads16(global);
  uint4 value;
  std::memcpy(&value, global, sizeof(value));
  return value;
}

uint32_t PackBf16(float first, float second) { return simt::Pair(ToBf16(first).bits, ToBf16(second).bits); }

uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
  const auto product = [&](int shift) {
    const auto half = [&](uint32_t pair) { return ToFloat(Bf16{static_cast<uint16_t>(pair >> shift)}); };
    return half(a) * half(b);
  };
  return PackBf16(product(0), product(16));
}

}  // namespace aludel::cuda
