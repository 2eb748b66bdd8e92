#pragma once

#include "kernels/cuda/attention/mma_attention.cuh"
#include "kernels/cuda/attention/warpgroup.cuh"
#include "kernels/cuda/attention/wgmma_index.h"

// Prefill attention on Hopper's warpgroup products (after FlashAttention-3, Shah et al. 2024). It computes
// what mma_attention.cuh does and shares its units, mask, softmax and results. A block takes units of 128
// queries, one after the other, and has three warpgroups. The first one fetches: two of its warps copy keys, two copy values, from the
// pages into a ring of kStages tiles of each. The two others own 64 queries each. While the tensor cores work
// on the scores of a tile and on the values of the tile before, a warpgroup turns the scores that it has
// into probabilities, which stay in registers as the A of their product with the values; and the two
// warpgroups take turns in starting products, so that one's softmax falls into the other's products.
//
// The ring knows nothing of units: the first tiles of the next one are fetched while the warpgroups with queries end theirs.
// Where as many blocks are launched as run at once, what sets a block up and what it waits for first is paid once. Which
// units a block takes follows from its number alone: they come by their keys, most first, and blocks take them in turn, every
// other time the other way round, so that who had most has least of the next. For a prompt of 2,048 tokens of 8 kv heads on
// 132 SMs the longest block has 1.03 times the mean of all, for one of 8,192 1.001, as if each took the next when it is free.
//
// Barriers. Every slot of the ring has a `full`, at which the two warps that filled it arrive, and an
// `empty`, at which the eight warps that have read it do. Both count phases from 0 on; parity tells one from
// the next, as no warp can be two phases ahead. Of the numbered ones, a warpgroup's own waits for its queries,
// and the turns are one each.
//
// What wgmma reads it reads through the async proxy, which ordinary stores and cp.async do not write through.
// Hence a warp that has written waits for its copies, fences, and only then arrives.
//
// Bound by the products; a tile of keys and values is read from L2 for each 128 queries, 32 bytes per clock
// and SM at the tensor cores' full rate with heads of 128.
namespace aludel::cuda {

template <int kDim_>
struct WgmmaShape {
  static constexpr int kDim = kDim_;  // head_dim, exactly
  static_assert(kDim == 64 || kDim == 128);
  static constexpr int kGroups = 2;  // warpgroups with queries
  static constexpr int kGroupQueries = 64;
  static constexpr int kKeys = 128;
  static constexpr int kStages = 3;
  // A tile is published once the copies of so many after it have begun, the last of which has waited for a
  // slot. With one more than this the tile that comes next would wait for the slot of the one being read.
  static constexpr int kUnderWay = kStages - 2;

  // As MmaShape's: a warp has one row tile and all keys.
  static constexpr int kRowTiles = 1;
  static constexpr int kWarpKeys = kKeys;
  static constexpr int kQueries = kGroups * kGroupQueries;
  static constexpr int kChunks = kDim / kChunkElements;

  static constexpr int kThreads = (kGroups + 1) * kWarpgroupThreads;
  static constexpr int kGroupBytes = kGroupQueries * kDim * 2;
  static constexpr int kTileBytes = kKeys * kDim * 2;
  static constexpr int kRingAt = kGroups * kGroupBytes;
  static constexpr int kBarriersAt = kRingAt + kStages * 2 * kTileBytes;
  // [queries of each group | kStages of (keys, values) | full and empty of each slot]
  static constexpr int kSharedBytes = kBarriersAt + kStages * 2 * 2 * static_cast<int>(sizeof(uint64_t));
  static constexpr int kAlignment = kPatternBytes;

  // Of a thread. What the kernel starts with, three times 168, is what these add up to.
  static constexpr int kFetchRegisters = 56;
  static constexpr int kGroupRegisters = 224;
  static_assert(kWarpgroupThreads * (kFetchRegisters + kGroups * kGroupRegisters) <= 65536);
};

// Of a slot, keys and values.
enum Plane { kKeyPlane = 0, kValuePlane = 1 };

// Where a warp is in the ring.
template <typename Shape>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage < Shape::kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <typename Shape>
struct Ring {
  static constexpr int kSlots = Shape::kStages * 2;

  char* shared;  // the block's

  __device__ char* Tile(int stage, int plane) const {
    return shared + Shape::kRingAt + (stage * 2 + plane) * Shape::kTileBytes;
  }
  __device__ uint64_t* Full(int stage, int plane) const {
    return reinterpret_cast<uint64_t*>(shared + Shape::kBarriersAt) + stage * 2 + plane;
  }
  __device__ uint64_t* Empty(int stage, int plane) const { return Full(stage, plane) + kSlots; }

  // By one thread, before all meet.
  __device__ void Init() const {
    for (int slot = 0; slot < kSlots; ++slot) {
      BarrierInit(Full(0, slot), 2);
      BarrierInit(Empty(0, slot), Shape::kGroups * 4);
    }
  }
};

// Begins to copy this warp's half of a tile of keys or values: positions of [tile, tile + kKeys) that are
// within [begin, end), and zeros for the others, as in LoadKeyTile.
template <typename Shape>
__device__ void FetchTile(const KvPlanes& kv, const void* plane, const AttentionUnit& unit, int64_t tile,
                          const KeyRun& run, int first_row, char* to) {
  constexpr int kRows = Shape::kKeys / 2;
  const int lane = threadIdx.x % 32;
  long long page[kRows / 32];
#pragma unroll
  for (int part = 0; part < kRows / 32; ++part) {
    const int64_t position = tile + first_row + part * 32 + lane;
    page[part] = -1;
    if (position >= run.begin && position < run.end) {
      const auto narrow = static_cast<uint32_t>(position);
      const uint32_t index = narrow / static_cast<uint32_t>(kv.block_tokens);
      const uint32_t slot = narrow - index * static_cast<uint32_t>(kv.block_tokens);
      page[part] = PageOffset(unit.blocks[index], kv.kv_heads, unit.kv_head, kv.block_tokens,
                              static_cast<int>(slot), Shape::kDim);
    }
  }
  constexpr int kRowsAtOnce = 32 / Shape::kChunks;
  const int chunk = lane % Shape::kChunks;
#pragma unroll
  for (int part = 0; part < kRows / 32; ++part) {
#pragma unroll 4
    for (int i = 0; i < 32 / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + lane / Shape::kChunks;
      const long long from = __shfl_sync(kAllLanes, page[part], row);
      const int64_t element = from >= 0 ? from + chunk * kChunkElements : 0;
      CpAsync16(to + SwizzledByte<Shape::kKeys>(first_row + part * 32 + row, chunk),
                static_cast<const Bf16*>(plane) + element, from >= 0);
    }
  }
}

// What a block does in one of its rounds.
struct GroupWork {
  int64_t unit_index;
  AttentionUnit unit;
  KeyRun run;
  int tiles;
};

// That of round `round`, counted from 0. False: the block has done all that it does of the launch.
template <typename Shape>
__device__ bool FindWork(const AttentionArgs& args, unsigned round, GroupWork& work) {
  const int64_t units = args.work.first_unit[args.table.count];
  const unsigned turn = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  const unsigned index = round * gridDim.x + turn;
  if (index >= static_cast<unsigned>(units) * static_cast<unsigned>(args.kv.kv_heads)) return false;
  const AttentionPiece piece = PieceAt(args, units, index);
  work.unit_index = piece.unit;
  work.unit = UnitAt(args, piece.unit, piece.kv_head);
  work.run = KeysOf(work.unit.entry, work.unit.tile, args.window, Shape::kKeys, work.unit.splits,
                    *args.work.split_keys, work.unit.split);
  const int keys = static_cast<int>(work.run.end - work.run.tile_begin);
  work.tiles = keys > 0 ? (keys + Shape::kKeys - 1) / Shape::kKeys : 0;
  return true;
}

// The work of a fetching warp: one plane of all tiles, of all that the block does.
template <typename Shape>
__device__ void Fetch(const AttentionArgs& args, const Ring<Shape>& ring) {
  const int warp = threadIdx.x / 32;
  const int plane = warp / 2;
  const void* const from = plane == kKeyPlane ? args.kv.k : args.kv.v;
  RingPlace<Shape> begun, come;
  int under_way = 0;  // tiles that are begun and not published
  const auto publish = [&] {
    CpAsyncWait<Shape::kUnderWay>();
    FenceProxyAsync();
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(ring.Full(come.stage, plane));
    come.Advance();
  };
  GroupWork work;
  for (unsigned round = 0; FindWork<Shape>(args, round, work); ++round) {
    for (int t = 0; t < work.tiles; ++t) {
      BarrierWait(ring.Empty(begun.stage, plane), begun.parity ^ 1);
      FetchTile<Shape>(args.kv, from, work.unit, work.run.tile_begin + int64_t{t} * Shape::kKeys, work.run,
                       warp % 2 * (Shape::kKeys / 2), ring.Tile(begun.stage, plane));
      begun.Advance();
      CpAsyncCommit();
      if (under_way == Shape::kUnderWay) {
        publish();
      } else {
        ++under_way;
      }
    }
  }
  for (; under_way > 0; --under_way) {
    CpAsyncCommit();
    publish();
  }
}

// A warpgroup's queries, as bf16; those that the tile does not have are zero.
template <typename Shape>
__device__ void LoadGroupQueries(const AttentionArgs& args, const AttentionUnit& unit, int first_query,
                                 char* to) {
  WithChunks(args.q, [&](const auto& load) {
#pragma unroll 4
    for (int c = threadIdx.x % kWarpgroupThreads; c < Shape::kGroupQueries * Shape::kChunks;
         c += kWarpgroupThreads) {
      const int row = c / Shape::kChunks;
      const int chunk = c % Shape::kChunks;
      uint4 value = {0, 0, 0, 0};
      if (first_query + row < unit.count) {
        value = load(QueryElement(args.q, args, unit, first_query + row) + chunk * kChunkElements);
      }
      StoreShared(to + SwizzledByte<Shape::kGroupQueries>(row, chunk), value);
    }
  });
}

// Numbered barriers: warpgroup g's queries are there, or not needed any more, and it is g's turn.
constexpr int kQueriesThere = 1;
constexpr int kTurn = 3;

// The work of a warpgroup with queries.
template <typename Shape>
struct QueryGroup {
  using Sums = WarpSums<Shape>;

  const AttentionArgs& args;
  const AttentionUnit& unit;
  const Ring<Shape>& ring;
  int group;
  uint64_t queries;    // descriptor
  float scale;         // carries log2(e)
  int first_position;  // of the warp
  int last_position;

  // Begins the scores of a tile of keys.
  __device__ void StartScores(int stage, float (&scores)[1][Shape::kKeys / 8][4]) const {
    WgmmaFence(scores[0]);
    const uint64_t keys = RowsByDimensions(SharedAddress(ring.Tile(stage, kKeyPlane)));
#pragma unroll
    for (int k = 0; k < Shape::kDim / 16; ++k) {
      WgmmaShared(scores[0], queries + DimensionStep<Shape::kGroupQueries>(k),
                  keys + DimensionStep<Shape::kKeys>(k), k > 0);
    }
    WgmmaCommit();
  }

  // Begins to add the values of a tile.
  __device__ void StartValues(int stage, uint32_t (&probabilities)[Shape::kKeys / 16][4], Sums& state) const {
    WgmmaFence(probabilities, state.sums[0]);
    const uint64_t values = DimensionsByRows<Shape::kKeys>(SharedAddress(ring.Tile(stage, kValuePlane)));
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
      WgmmaRegisters(state.sums[0], probabilities[k], values + RowStep(k));
    }
    WgmmaCommit();
  }

  // This warp has read the slot.
  __device__ void Release(int stage, int plane) const {
    if (threadIdx.x % 32 == 0) BarrierArrive(ring.Empty(stage, plane));
  }

  __device__ void Probabilities(int key, Sums& state, float (&scores)[1][Shape::kKeys / 8][4],
                                float (&correction)[1][2]) const {
    if (key + Shape::kKeys - 1 > first_position || key < FirstVisible(last_position, args.window)) {
      Mask<Shape>(state, args.window, key, scores);
    }
    Soften<Shape>(scale, state, scores, correction);
  }

  __device__ static void Pack(const float (&scores)[1][Shape::kKeys / 8][4],
                              uint32_t (&probabilities)[Shape::kKeys / 16][4]) {
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
      PackOperand(scores[0][2 * k], scores[0][2 * k + 1], probabilities[k]);
    }
  }

  // `keys` and `values`: where the first tile lies, and afterwards what comes behind the last.
  __device__ void Attend(int first_key, int tiles, RingPlace<Shape>& keys, RingPlace<Shape>& values,
                         Sums& state) const {
    float scores[1][Shape::kKeys / 8][4] = {};
    uint32_t probabilities[Shape::kKeys / 16][4];
    float correction[1][2];

    BarrierWait(ring.Full(keys.stage, kKeyPlane), keys.parity);
    StartScores(keys.stage, scores);
    WgmmaWait<0>(scores[0]);
    Release(keys.stage, kKeyPlane);
    Probabilities(first_key, state, scores, correction);
    Pack(scores, probabilities);  // there are no sums yet to correct
    for (int t = 1; t < tiles; ++t) {
      keys.Advance();
      BarrierWait(ring.Full(keys.stage, kKeyPlane), keys.parity);
      NumberedSync<Shape::kGroups * kWarpgroupThreads>(kTurn + group);
      StartScores(keys.stage, scores);
      BarrierWait(ring.Full(values.stage, kValuePlane), values.parity);
      StartValues(values.stage, probabilities, state);
      // The first group has begun, the second ends: no warp waits for its last turn to be over.
      if (group == 0 || t + 1 < tiles) {
        NumberedArrive<Shape::kGroups * kWarpgroupThreads>(kTurn + (group ^ 1));
      }
      WgmmaWait<1>(scores[0]);
      Release(keys.stage, kKeyPlane);
      Probabilities(first_key + t * Shape::kKeys, state, scores, correction);
      // Long over, as the values were waited for above: it keeps the compiler from moving the wait for their product in
      // front of the exponentials, which are to run beside it.
      BarrierWait(ring.Full(values.stage, kValuePlane), values.parity);
      WgmmaWait<0>(state.sums[0], probabilities);
      Release(values.stage, kValuePlane);
      Rescale<Shape>(correction, state);
      Pack(scores, probabilities);
      values.Advance();
    }
    keys.Advance();
    BarrierWait(ring.Full(values.stage, kValuePlane), values.parity);
    StartValues(values.stage, probabilities, state);
    WgmmaWait<0>(state.sums[0], probabilities);
    Release(values.stage, kValuePlane);
    values.Advance();
  }
};

// What a warpgroup with queries does of all that the block does.
template <typename Shape>
__device__ void AttendGroup(const AttentionArgs& args, const Ring<Shape>& ring, int group) {
  char* const queries = ring.shared + group * Shape::kGroupBytes;
  const int first_query = group * Shape::kGroupQueries + threadIdx.x % kWarpgroupThreads / 32 * 16;
  constexpr float kLog2E = 1.44269504088896340736f;
  const float scale = args.scale * kLog2E;
  RingPlace<Shape> keys, values;
  GroupWork work;
  for (unsigned round = 0; FindWork<Shape>(args, round, work); ++round) {
    const AttentionUnit& unit = work.unit;
    // All warps have had the scores of the unit before.
    NumberedSync<kWarpgroupThreads>(kQueriesThere + group);
    LoadGroupQueries<Shape>(args, unit, group * Shape::kGroupQueries, queries);
    FenceProxyAsync();
    NumberedSync<kWarpgroupThreads>(kQueriesThere + group);
    WarpSums<Shape> state;
    Clear(unit, first_query, state);
    if (work.tiles > 0) {
      if (group == 1 && work.tiles > 1) NumberedArrive<Shape::kGroups * kWarpgroupThreads>(kTurn);
      const QueryGroup<Shape> attending{args,
                                        unit,
                                        ring,
                                        group,
                                        RowsByDimensions(SharedAddress(queries)),
                                        scale,
                                        PositionOf(unit, first_query),
                                        PositionOf(unit, first_query + 15)};
      attending.Attend(static_cast<int>(work.run.tile_begin), work.tiles, keys, values, state);
    }
    StoreSums<Shape>(args, unit, work.unit_index, scale, first_query, state);
  }
}

// grid: any number of blocks, Shape::kThreads threads, Shape::kSharedBytes at `shared`, aligned to kAlignment.
template <typename Shape>
__device__ void AttendInGroups(const AttentionArgs& args, char* shared) {
  const Ring<Shape> ring{shared};
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  // One value in all lanes, and known as such to the compiler.
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpgroupThreads), 0);
  if (warpgroup == 0) {
    LowerRegisters<Shape::kFetchRegisters>();
    Fetch<Shape>(args, ring);
  } else {
    RaiseRegisters<Shape::kGroupRegisters>();
    AttendGroup<Shape>(args, ring, warpgroup - 1);
  }
}

}  // namespace aludel::cuda
