#include "tests/kernels/cuda/attention/simt_warpgroup.h"

#include <cstring>
#include <limits>

#include "kernels/tensor.h"
#include "tests/kernels/cuda/races.h"
#include "tests/kernels/cuda/simt_block.h"

namespace aludel::cuda::simt {
namespace {

// Shared memory begins here for the program, as on Hopper.
constexpr uint32_t kFirstAddress = 1024;

double ValueOf(uint16_t bits) { return ToFloat(Bf16{bits}); }

// A descriptor's fields (PTX ISA, "Matrix Descriptor Format").
struct Matrix {
  explicit Matrix(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3fff) << 4),
        leading(static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4),
        base_offset(static_cast<uint32_t>(bits >> 49 & 7)),
        swizzle(static_cast<int>(bits >> 62)) {}

  uint32_t start, leading, stride, base_offset;
  int swizzle;
};

// Element (i, k) of a matrix whose longer side i is M or N and whose k of [0, 16) is summed over. "Canonical
// Layouts" of the PTX ISA, for 16-bit elements, T = 8 to a chunk of 16 bytes, w chunks to a swizzle:
//   K-major   ((8,m),(T,2k)) : ((wT,SBO),(1,T)), unswizzled ((1T,SBO),(1,LBO))
//   MN-major  ((T,w,m),(8,k)) : ((1,T,LBO),(wT,SBO)), unswizzled ((T,1,m),(8,k)) : ((1,T,SBO),(1T,LBO))
// and then address bits from 4 on are XORed with those from 7 on, log2(w) of them, counted from where the
// pattern starts.
uint32_t AddressOf(const Matrix& matrix, bool transposed, int i, int k) {
  static constexpr uint32_t kChunks[] = {1, 8, 4, 2};
  const uint32_t w = kChunks[matrix.swizzle];
  const uint32_t row = i % 8, rows = i / 8, in_chunk = k % 8, chunk = k / 8;
  uint32_t offset;
  if (!transposed) {
    offset = row * w * 16 + rows * matrix.stride + in_chunk * 2 + chunk * (w == 1 ? matrix.leading : 16);
  } else if (w == 1) {
    offset = row * 2 + rows * matrix.stride + in_chunk * 16 + chunk * matrix.leading;
  } else {
    offset = row * 2 + rows % w * 16 + rows / w * matrix.leading + in_chunk * w * 16 + chunk * matrix.stride;
  }
  uint32_t address = matrix.start + offset;
  return address ^ (((address >> 7) - matrix.base_offset) & (w - 1)) << 4;
}

uint16_t ElementOf(const Matrix& matrix, bool transposed, int i, int k) {
  const uint32_t address = AddressOf(matrix, transposed, i, k);
  if (address < kFirstAddress || address + 2 > kFirstAddress + current->shared_bytes) {
    Fail("a product's operand lies outside of shared memory");
  }
  uint16_t bits;
  std::memcpy(&bits, current->async_view.data() + address - kFirstAddress, sizeof(bits));
  return bits;
}

std::vector<uint16_t> Operand(uint64_t descriptor, bool transposed, int first, int count) {
  const Matrix matrix(descriptor);
  std::vector<uint16_t> elements;
  for (int i = first; i < first + count; ++i) {
    for (int k = 0; k < 16; ++k) elements.push_back(ElementOf(matrix, transposed, i, k));
  }
  return elements;
}

// The rows of A in shared memory that are this warp's.
std::vector<uint16_t> SharedA(const Product& product, int warp) {
  if (product.a_in_registers) return {};
  return Operand(product.a_matrix, /*transposed=*/false, warp % kWarpgroupWarps * 16, 16);
}
std::vector<uint16_t> SharedB(const Product& product) {
  return Operand(product.b_matrix, product.transposed, 0, product.columns);
}

// Says that the running thread reads what a product of its warp does: whole pieces, along the side that is contiguous.
void SayReads(uint64_t descriptor, bool transposed, int first, int count) {
  const Matrix matrix(descriptor);
  constexpr int kElements = kPiece / sizeof(uint16_t);
  for (int i = first; i < first + count; i += transposed ? kElements : 1) {
    for (int k = 0; k < 16; k += transposed ? 1 : kElements) {
      Reads16(current->shared + AddressOf(matrix, transposed, i, k) - kFirstAddress);
    }
  }
}

// A product's reads end for all lanes at once, and which of them says so to others is the program's choice: the first one
// does in every kernel, and so it is the one that reads. A program in which another lane does is reported as a race.
void SayOperandsRead(const Product& product) {
  if (!kSeesRaces || Lane() != 0) return;
  const int warp = current->running->index / kLanes;
  if (!product.a_in_registers) SayReads(product.a_matrix, false, warp % kWarpgroupWarps * 16, 16);
  SayReads(product.b_matrix, product.transposed, 0, product.columns);
}

struct ProductOperands {
  int thread;
  Product product;
  const uint32_t* a;
  float* d;
};

// Whether the thread has fenced these registers and not changed them since.
void CheckFenced(const Fiber& fiber, const void* registers, size_t bytes) {
  const char* const begin = static_cast<const char*>(registers);
  auto range = fiber.fenced.upper_bound(begin);
  if (range != fiber.fenced.begin()) {
    --range;
    const size_t at = begin - range->first;
    if (at + bytes <= range->second.size()) {
      if (std::memcmp(range->second.data() + at, begin, bytes) == 0) return;
      Fail("a product's registers have changed since wgmma.fence");
    }
  }
  Fail("a product's registers have not been fenced");
}

void BeginProduct(void* const* lanes) {
  Warp& warp = current->warps[current->warp];
  Product product = static_cast<ProductOperands*>(lanes[0])->product;
  float* const key = static_cast<ProductOperands*>(lanes[0])->d;
  Pending& pending = warp.pending[key];
  const int values = product.columns / 2;
  if (pending.products++ == 0) pending.sums.clear();
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<ProductOperands*>(lanes[lane]);
    if (!own.product.Same(product)) Fail("the lanes of a warp begin different products");
    const Fiber& fiber = current->fibers[own.thread];
    product.a[lane] = own.a;
    product.d[lane] = own.d;
    if (own.a != nullptr) CheckFenced(fiber, own.a, 4 * sizeof(*own.a));
    if (pending.products > 1) continue;
    CheckFenced(fiber, own.d, values * sizeof(float));
    pending.sums.insert(pending.sums.end(), own.d, own.d + values);
    std::fill_n(own.d, values, std::numeric_limits<float>::quiet_NaN());
  }
  product.a_seen = SharedA(product, current->warp);
  product.b_seen = SharedB(product);
  auto& begun = current->begun[current->warp / kWarpgroupWarps];
  if (warp.begun == begun.size()) {
    begun.push_back(product);
  } else if (!begun[warp.begun].Same(product)) {
    Fail("the warps of a warpgroup begin different products");
  }
  ++warp.begun;
  warp.open.push_back(std::move(product));
}

// PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16": a warp has 16 rows of A and of D, laid out in its
// lanes as mma's fragments are, D in runs of 8 columns.
void Execute(const Product& product, Warp& warp) {
  const std::vector<uint16_t> b = SharedB(product), shared_a = SharedA(product, current->warp);
  if (b != product.b_seen || shared_a != product.a_seen) {
    Fail("shared memory has changed under a product that reads it");
  }
  double a[16][16];
  for (int lane = 0; lane < kLanes && product.a_in_registers; ++lane) {
    for (int i = 0; i < 8; ++i) {
      a[OperandRow(lane, i)][OperandColumn(lane, i)] =
          ValueOf(static_cast<uint16_t>(product.a[lane][i / 2] >> (i % 2 * 16)));
    }
  }
  for (size_t i = 0; i < shared_a.size(); ++i) a[i / 16][i % 16] = ValueOf(shared_a[i]);
  std::vector<double> factors(b.size());
  for (size_t i = 0; i < b.size(); ++i) factors[i] = ValueOf(b[i]);

  Pending& pending = warp.pending[product.d[0]];
  const int values = product.columns / 2;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < values; ++i) {
      float& to = pending.sums[lane * values + i];
      const double* const row = a[ResultRow(lane, i % 4)];
      const double* const column = &factors[(i / 4 * 8 + ResultColumn(lane, i % 4)) * 16];
      double sum = product.accumulate ? to : 0.0;
      for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
      to = static_cast<float>(sum);
    }
  }
  if (--pending.products > 0) return;
  for (int lane = 0; lane < kLanes; ++lane) {
    std::copy_n(&pending.sums[lane * values], values, product.d[lane]);
  }
  warp.pending.erase(product.d[0]);
}

void DecideTogether(void* const* lanes) {
  const bool late = current->lateness != Lateness::kNone;
  for (int lane = 0; lane < kLanes; ++lane) *static_cast<bool*>(lanes[lane]) = late;
}

struct WaitOperands {
  int pending;
  const Registers* begin;
  const Registers* end;
};

void FinishProducts(void* const* lanes) {
  Warp& warp = current->warps[current->warp];
  const auto& wait = *static_cast<WaitOperands*>(lanes[0]);
  warp.finished.clear();
  for (; static_cast<int>(warp.groups.size()) > wait.pending; warp.groups.pop_front()) {
    for (Product& product : warp.groups.front()) {
      bool named = false;
      for (const Registers* r = wait.begin; r != wait.end; ++r) {
        const char* const d = reinterpret_cast<const char*>(product.d[0]);
        const char* const begin = static_cast<const char*>(r->begin);
        named = named || (begin <= d && d < begin + r->bytes);
      }
      if (!named) Fail("sums are there that the wait for them does not name");
      Execute(product, warp);
      warp.finished.push_back(std::move(product));
    }
  }
}

void Commit(void* const*) {
  Warp& warp = current->warps[current->warp];
  warp.groups.push_back(std::move(warp.open));
  warp.open.clear();
}

Barrier& BarrierAt(const uint64_t* barrier) {
  CheckShared(barrier, sizeof(*barrier));
  const auto found = current->barriers.find(barrier);
  if (found == current->barriers.end()) Fail("uses a barrier that was not initialized");
  return found->second;
}

}  // namespace

void FenceRegisters(std::initializer_list<Registers> registers) {
  {
    const Unseen copies;
    auto& fenced = current->running->fenced;
    fenced.clear();
    for (const Registers& r : registers) {
      const char* const begin = static_cast<const char*>(r.begin);
      fenced[begin].assign(begin, begin + r.bytes);
    }
  }
  Collective(
      "wgmma.fence", [](void* const*) {}, nullptr);
}

void StartProduct(float* d, int columns, bool accumulate, const uint32_t* a, uint64_t a_matrix,
                  uint64_t b_matrix, bool transposed) {
  ProductOperands operands{current->running->index, {}, a, d};
  operands.product.columns = columns;
  operands.product.accumulate = accumulate;
  operands.product.transposed = transposed;
  operands.product.a_in_registers = a != nullptr;
  operands.product.a_matrix = a_matrix;
  operands.product.b_matrix = b_matrix;
  Collective("wgmma", BeginProduct, &operands);
  SayOperandsRead(operands.product);
}

void WaitForProducts(int pending, std::initializer_list<Registers> registers) {
  bool late = false;
  Collective("wgmma.wait_group", DecideTogether, &late);
  if (late) LetOthers();
  WaitOperands operands{pending, registers.begin(), registers.end()};
  Collective("wgmma.wait_group", FinishProducts, &operands);
  // They may have been read until now.
  for (const Product& product : current->warps[current->running->index / kLanes].finished)
    SayOperandsRead(product);
}

void Numbered(int id, int threads, bool wait) {
  if (id < 1 || id > 15 || threads % kLanes != 0) Fail("there is no such numbered barrier");
  NumberedBarrier& barrier = current->numbered[id];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) Fail("others expect another number of threads at a numbered barrier");
  const int generation = barrier.generation;
  Release(&barrier);
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  if (!wait) return Linger();
  WaitUntil("numbered barrier " + std::to_string(id),
            [&barrier, generation] { return barrier.generation != generation; });
  Acquire(&barrier);
}

void CheckProductsDone() {
  for (size_t w = 0; w < current->warps.size(); ++w) {
    const Warp& warp = current->warps[w];
    if (!warp.open.empty() || !warp.pending.empty()) {
      Fail("warp " + std::to_string(w) + " has ended with products that it has not waited for");
    }
    if (warp.begun != current->begun[static_cast<int>(w) / kWarpgroupWarps].size()) {
      Fail("warp " + std::to_string(w) + " has begun fewer products than its warpgroup");
    }
  }
  for (const auto& [id, barrier] : current->numbered) {
    if (barrier.arrived != 0) Fail("numbered barrier " + std::to_string(id) + " still has arrivals");
  }
}

}  // namespace aludel::cuda::simt

namespace aludel::cuda {

using simt::current;

uint32_t SharedAddress(const void* shared) {
  return simt::kFirstAddress + static_cast<uint32_t>(static_cast<const char*>(shared) - current->shared);
}

void StoreShared(void* shared, const uint4& value) {
  simt::CheckShared(shared);
  simt::Undefine(static_cast<char*>(shared), sizeof(value));
  std::memcpy(shared, &value, sizeof(value));
  simt::Writes16(shared);
  current->running->written.push_back(static_cast<char*>(shared) - current->shared);
}

void FenceProxyAsync() {
  auto& written = current->running->written;
  for (const size_t at : written) {
    std::memcpy(current->async_view.data() + at, current->shared + at, simt::kPiece);
  }
  written.clear();
}

void BarrierInit(uint64_t* barrier, int arrivals) {
  simt::CheckShared(barrier, sizeof(*barrier));
  if (!current->barriers.insert({barrier, {arrivals, arrivals}}).second) {
    simt::Fail("initializes a barrier that is in use");
  }
}

void BarrierArrive(uint64_t* barrier) {
  simt::Barrier& state = simt::BarrierAt(barrier);
  simt::Release(&state);
  if (--state.missing == 0) {
    state.missing = state.arrivals;
    ++state.phase;
  }
  simt::Linger();
}

void BarrierWait(uint64_t* barrier, uint32_t parity) {
  const simt::Barrier& state = simt::BarrierAt(barrier);
  const auto at = reinterpret_cast<const char*>(barrier) - current->shared;
  simt::WaitUntil("parity " + std::to_string(parity) + " of the barrier at byte " + std::to_string(at),
                  [&state, parity] { return (state.phase & 1) != static_cast<int>(parity); });
  simt::Acquire(&state);
}

void WgmmaCommit() { simt::Collective("wgmma.commit_group", simt::Commit, nullptr); }

}  // namespace aludel::cuda
