#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/store/agent_prompts.h"
#include "server/store/chunk_key.h"
#include "server/store/disk_tier.h"
#include "server/store/memory_marks.h"
#include "server/store/memory_order.h"
#include "server/store/pins.h"
#include "server/store/read_pool.h"
#include "server/store/remote/remote_tier.h"
#include "server/store/store_control.h"
#include "server/store/store_index.h"
#include "server/store/store_stats.h"
#include "server/store/stored_frames.h"
#include "server/store/tenant_shares.h"
#include "server/store/write_behind.h"

namespace aludel {

// A chunk of an agent's prompt that is to be in memory before its turn.
struct ExpectedRead {
  AgentPrompts::Chunk chunk;
  StoreTag salt = {};
  StoreTag encoder = {};
  DiskPlace disk;  // without a segment: at the remote, perhaps
  uint64_t generation = 0;
};

// How far into a prompt its chunks were found or stored.
struct StorePosition {
  ChunkKey key = {};        // of the chunk that ends here
  int64_t tokens = 0;       // of the prompt, from its start
  uint64_t generation = 0;  // times that the store was cleared when the prompt was first looked up
  uint8_t planes = 0;       // that are asked for, see Serves
  StoreTag encoder = {};
  StoreTag salt = {};

  // The key, but for those who ask for other planes another.
  ChunkKey KeyOfPlanes() const {
    ChunkKey of = key;
    of.front() ^= planes;
    return of;
  }
};

// Where a chunk was seen at the remote: nothing keeps it there.
struct RemotePlace {
  int64_t era = 0;
  absl::Time oldest;  // wall clock; what was encoded before is too old for who asks
};

// A chunk that was found, and the lease on it. Its frames may have more planes than were asked for (end.planes): what is
// sent of each is TruncatePlanes.
struct StoredChunk {
  StorePosition end;
  int64_t token_begin = 0;
  StoredFrames frames;  // null: on disk or at the remote, see PrefixStore::Load
  DiskPlace disk;
  std::optional<RemotePlace> remote;
};

// Frames of prompts that were encoded here, so that the same prefix, asked for in the same format by whichever
// consumer, is sent again without a forward pass. The unit is a chunk: the tokens that one step of the engine encoded,
// with the frames of all their layers, found by its ChunkKey. Those of an embedded code may be cut behind a plane: then
// they serve formats of so many planes or fewer ("NAME@N"), as whole ones do, and never the whole format. Three tiers,
// the first two bounded in bytes:
//   memory   the chunk that is worth least goes first (MemoryOrder), cut where that frees room; of chunks alike in format
//            and in what the disk has of them, and used alike, those behind go before those in front. Or with kLru the
//            one that was used least recently, whole, and no chunk before those behind it
//   disk     written behind what memory takes, by one thread; the oldest segment goes first, and what was found in it
//            since is written again
//   remote   shared with other servers: written behind what memory takes, and asked for what the others lack; its
//            limits are its own
// A chunk may be in all of them. Each tenant (SaltTag) has a quota of memory and of disk. Whatever fails on disk or at
// the remote is a miss and a count, and nothing here waits but for a lock. Thread-safe.
//
// A request can find out by its timing whether its prompt was asked for before with the same salt; two
// salts share nothing.
class PrefixStore {
 public:
  // Of each, some 400 bytes are in memory.
  static constexpr size_t kMaxDiskEntries = 1 << 20;
  struct Disk {
    std::string path;
    uint64_t bytes = 0;
    uint32_t min_requests = 1;  // for a chunk, before it is written
    size_t max_entries = kMaxDiskEntries;
    size_t read_threads = 4;
  };
  struct Remote {
    std::string address;  // host:port
    std::string username;
    std::string password;
    absl::Duration ttl = absl::Hours(24);
    absl::Duration max_wait = absl::Milliseconds(10);  // in vain, of a request
    size_t threads = 4;
  };
  enum class Eviction : uint8_t { kLru, kUtility };
  struct Options {
    std::string producer;     // see RootKey
    size_t memory_bytes = 0;  // 0: keeps nothing, on disk neither
    std::optional<Disk> disk;
    std::optional<Remote> remote;
    TenantShares::Quota quota;  // of each tenant
    size_t pinned_bytes = 0;    // at most half of memory_bytes
    Eviction eviction = Eviction::kUtility;
    std::vector<MemoryOrder::Cut> cuts;  // that requests may name: what chunks are cut to
    // Of computing; 0: not known yet. Called under the store's lock.
    std::function<double()> prefill_tokens_per_second = [] { return 0.0; };
    std::vector<StoreTag> encoders;   // of this server; chunks of others are dropped from the disk
    StoreWatcher* watcher = nullptr;  // must outlive the store
  };

  // A disk tier that cannot be opened is left out, and logged.
  explicit PrefixStore(Options options);
  // Writes what is on its way to the disk, and to the remote what that takes in two seconds.
  ~PrefixStore();

  // The start of a prompt in this format, of this tenant.
  StorePosition Begin(const CodecSpec& codec, absl::string_view salt) const;
  // The longest run of chunks from `at` on that the prompt has, none of them added longer ago than `max_age`; moves
  // `at` to its end.
  std::vector<StoredChunk> Find(absl::Span<const int32_t> prompt, absl::Duration max_age, StorePosition* at);
  // Asks the remote for the chunks from `at` on, as Find. `done` is called once, perhaps inside the call, perhaps on
  // another thread; it may be late, see remote_wait. What is found by `patience` is looked for. False: there is none to
  // ask, and `done` is not called.
  bool FindRemote(absl::Span<const int32_t> prompt, absl::Duration max_age, const StorePosition& at,
                  std::function<void(std::vector<StoredChunk>)> done,
                  absl::Duration patience = absl::InfiniteDuration());
  // How long FindRemote is waited for at most: half of Remote::max_wait. The other half is for a remote that falls
  // silent while a chunk is read.
  absl::Duration remote_wait() const;
  // A look-up or a read at the remote took so long that it is not waited for. As CountLateRead, each kind by itself.
  enum class RemoteWork : uint8_t { kFind, kLoad };
  void CountLateRemote(RemoteWork work);
  // Reads a chunk that is on disk or at the remote. `done` is called once, with null where it could not be read,
  // perhaps inside the call, perhaps on another thread. Frames are as in a StoredChunk. What is not `wanted` any more in its
  // turn is not read. `on_begun` is called before `done`, on its thread, when the remote begins to answer; not for the disk.
  void Load(
      const StoredChunk& chunk, absl::Span<const int32_t> prompt, std::function<void(StoredFrames)> done,
      std::function<bool()> wanted = [] { return true; }, std::function<void()> on_begun = nullptr);
  // Of encoders that this server has had since: Options::cuts.
  void AddCuts(const std::vector<MemoryOrder::Cut>& cuts) {
    absl::MutexLock lock(&mutex_);
    utility_.AddCuts(cuts);
  }
  // A read took so long that it is not waited for. After several in a row the disk is not looked into for a while.
  void CountLateRead();
  // Stores what an encoder made of prompt tokens [at->tokens, end), and moves `at` there. False where nothing is kept,
  // nor will be of what follows: the store was cleared since the prompt was looked up, the chunk in front is gone, or this
  // one is pinned with fewer planes and its pin has no room for more.
  bool Put(absl::Span<const int32_t> prompt, int64_t end, std::vector<StoredFrame> frames, StorePosition* at);
  // Whether Put could ever keep anything, and the largest chunk that it keeps.
  bool enabled() const { return options_.memory_bytes > 0; }
  size_t max_chunk_bytes() const;

  // Counts a look-up by how much of the prompt came from each tier in the end.
  struct Found {
    int64_t memory_tokens = 0;
    int64_t disk_tokens = 0;
    int64_t remote_tokens = 0;
    uint64_t disk_bytes = 0;  // that were read for them
    uint64_t remote_bytes = 0;
    absl::Duration waited;         // for reads and for the remote's word
    double tokens_per_second = 0;  // of computing; 0: not known

    int64_t tokens() const { return memory_tokens + disk_tokens + remote_tokens; }
  };
  void CountLookup(const Found& found, int64_t prompt_tokens);

  // Drops all chunks, at the remote for every server; what was looked up before is not found or stored any more when
  // this returns. Frames that are leased stay. `done` is called once the files are gone too, perhaps inside the call,
  // else on the thread that writes; its error says which may be found again after a restart.
  void Clear(std::function<void(const absl::Status&)> done);

  StoreStats stats() const;

  // Of workflows of agents, in prefix_store_workflow.cc. What is stored of the prompts of the agents to come is expected to
  // be used, sooner or later, until they ask; of those that come soon it is read into memory. Of the tenant that says so
  // something else goes first where there is no room, and no other tenant's; what one tenant may expect is bounded, see
  // AgentPrompts, and is a quarter of the memory at most.
  void Expect(const WorkflowStep& step, const StoreTag& salt);
  // The step's agent was sent what is stored up to here.
  void Remember(const WorkflowStep& step, const StorePosition& end);

  // Tokens of the prompt, from its start, that Find would give now, of any age. Does not count as a request.
  int64_t Findable(absl::Span<const int32_t> prompt, StorePosition at);

  // An operator's part, in prefix_store_control.cc. None of it counts as a request.
  // As Find, of any age.
  std::vector<StoredChunk> Peek(absl::Span<const int32_t> prompt, StorePosition* at);
  // As Peek, and then what the remote has of the rest, as far as it tells in time. `done` is called once, perhaps inside the
  // call, perhaps on another thread.
  void PeekEverywhere(absl::Span<const int32_t> prompt, StorePosition at,
                      std::function<void(std::vector<StoredChunk>)> done);
  // The same of all that the remote has, however long it takes, up to seconds; Unavailable where it does not tell.
  void PeekAll(absl::Span<const int32_t> prompt, StorePosition at,
               std::function<void(absl::StatusOr<std::vector<StoredChunk>>)> done);
  // Reads what is on disk or at the remote of the prompt alone into memory. `done` is called as PeekEverywhere's, with how
  // many tokens are being read; nothing waits for that.
  void Prefetch(std::vector<int32_t> prompt, const StorePosition& at, std::function<void(int64_t)> done);
  // Keeps the prompt's beginning that is stored here in memory for so long, whatever else is used, and returns its tokens;
  // what is on disk alone is read, and what is at the remote lives there for another of its times to live. Nothing where
  // that is over pinned_bytes in all: ResourceExhausted. Not over a restart. In memory it keeps the planes that it has, and
  // gets more where pinned_bytes has room for them.
  absl::StatusOr<int64_t> Pin(absl::Span<const int32_t> prompt, StorePosition at, absl::Duration ttl);
  // Also of what is pinned behind the stored beginning, in as many planes as it may be.
  int64_t Unpin(absl::Span<const int32_t> prompt, StorePosition at);
  // As Clear, of these chunks; returns how many were stored. Looks at every entry under the lock.
  size_t ClearSome(const StoreFilter& filter, std::function<void(const absl::Status&)> done);
  absl::Status SetQuota(TenantTag tenant, const QuotaChange& change);
  std::vector<TenantReport> Tenants() const;
  // Of each tenant those used most recently first.
  std::vector<StoredChunkReport> List(const StoreFilter& filter, size_t limit) const;

 private:
  using Node = StoreIndex::Node;

  // Keys of the chunks behind `before` that `rest` may begin with, the longest last. Hashes outside the lock.
  std::vector<ChunkKey> Candidates(const ChunkKey& before, absl::Span<const int32_t> rest,
                                   ChunkHasher& hasher) ABSL_LOCKS_EXCLUDED(mutex_);
  // The longest of them that is stored, added at `since` or later; null: none is.
  Node* Longest(absl::Span<const ChunkKey> candidates, absl::Time since, uint8_t planes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the longest of them that is stored, and moves `at` to its end. False: none is.
  bool Take(absl::Span<const ChunkKey> candidates, absl::Span<const int32_t> prompt, absl::Time since,
            double now, StorePosition* at, std::vector<StoredChunk>* chunks) ABSL_LOCKS_EXCLUDED(mutex_);
  // What there is of a stored chunk for who asks for so many planes; null: it is on disk.
  static StoredFrames FramesOf(const Node& node, uint8_t planes);
  // In place of what memory has of it already, where that has fewer planes. False: so many are more than it is pinned with,
  // and pins have no room. A pin of what had gone ends then.
  bool KeepInMemory(Node* node, StoredFrames frames, uint8_t planes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReplaceInMemory(Node* node, StoredFrames frames, uint8_t planes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A request asks for it, or makes it. Its chunks are counted at one time, or the last ones would seem the youngest.
  void CountUse(Node* node, uint8_t planes, double now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropFromMemory(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What making room leaves to do without the lock: codes to cut, and what was dropped to free.
  struct Demoted {
    struct Cut {
      ChunkKey key;
      StoredFrames of;
      uint8_t planes = 0;
      size_t freed = 0;  // bytes
    };
    std::vector<Cut> cuts;
    std::vector<StoredFrames> dropped;
  };
  // Makes room, first among what this tenant has over its quota. The caller hands on what is left to MakeCuts.
  Demoted Evict(TenantTag tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // While memory is over its limit, which it is not when this returns, codes are cut here, as far as that is quick, or go.
  void DemoteByUtility(Demoted* demoted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MemoryMarks::Use MemoryUse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeCuts(Demoted demoted) ABSL_LOCKS_EXCLUDED(mutex_);
  void KeepQuota(TenantTag tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it was pinned.
  bool EndPin(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Seconds that a look-up was expected to save, and did.
  void CountSaved(const Found& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The last one that is not pinned; null: all are. Those behind it become the first ones, in their order.
  Node* LeastUsed(StoreIndex::Order& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The disk's side, in prefix_store_disk.cc.
  void OpenDisk();
  void Recover(const ChunkEntry& entry, const DiskPlace& place);
  void WriteLater(Node* node, absl::Span<const int32_t> prompt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  DiskWrite ToWrite(const Node& node, absl::Span<const int32_t> prompt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(const DiskWrite& write);
  // Whether the chunk is still worth its write.
  bool IsWanted(const DiskWrite& write) ABSL_LOCKS_EXCLUDED(mutex_);
  // For a record of so many bytes and entries in the footer. False: there is none. An error: what should
  // go could not be removed.
  absl::StatusOr<bool> MakeRoom(uint64_t record_bytes, size_t entries = 1)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mutex_);
  absl::StatusOr<DiskPlace> Append(const DiskWrite& write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mutex_);
  // Moves what was found since it was written out of a segment that goes, as far as there is room; the rest is dropped.
  void Retire(std::shared_ptr<SegmentFile> segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mutex_);
  bool HasTooMany() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ClearDisk();
  std::vector<ChunkEntry> Survivors(const SegmentFile& segment) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetOnDisk(Node* node, const DiskPlace& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropFromDisk(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its frames are on disk now, or nowhere but in memory. The node may end.
  void EndMove(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Chunks that are being cleared, until the writer has come to that.
  struct Clearing {
    StoreFilter filter;
    absl::flat_hash_set<ChunkKey> keys;  // of what was there
    // Whether a chunk that was on its way to the disk is one of them.
    bool Has(const ChunkEntry& entry) const;
  };
  bool IsBeingCleared(const ChunkEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::flat_hash_set<ChunkKey> KeysOf(const StoreFilter& filter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True: it was on disk.
  bool DropEverywhere(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ForgetOnDisk(absl::flat_hash_set<ChunkKey> keys);
  void OnLoadFailed(const StoredChunk& chunk, const absl::Status& status);
  // What is not in memory; returns its tokens.
  int64_t LoadAll(absl::Span<const StoredChunk> chunks, absl::Span<const int32_t> prompt);

  // The remote's side, in prefix_store_remote.cc.
  void OpenRemote();
  // Looks for the rest of a prompt behind `at`. The status is not OK where there may be more. False: it is not done.
  using RemoteFound = std::function<void(std::vector<StoredChunk>, const absl::Status&)>;
  bool PostFind(absl::Span<const int32_t> rest, const StorePosition& at, absl::Time until, absl::Time oldest,
                RemoteFound done);
  // What is at the remote of these lives there for another `ttl`.
  void RenewLater(const std::vector<const Node*>& nodes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAtRemote(const Node& node, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseRemote();
  // Writes it to the remote, or has it stay there, where that was not done for long. With `replace` it is written.
  void ShareLater(Node* node, absl::Span<const int32_t> prompt, bool replace = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it is written in place of what is there. From then on it is taken to be.
  bool ReplacesShared(const Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Share(const DiskWrite& write);
  void LoadRemote(const StoredChunk& chunk, absl::Span<const int32_t> prompt,
                  std::function<void(StoredFrames)> done, std::function<bool()> wanted,
                  std::function<void()> on_begun);
  // Null, and counted, where it is not what was asked for.
  StoredFrames ReadRemote(const StoredChunk& chunk, absl::Span<const int32_t> tokens,
                          const std::function<void()>& on_begun);
  void CountFind(const absl::StatusOr<RemoteTier::Run>& run, absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountRemoteError(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnRemoteLoadFailed(const StoredChunk& chunk, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Clears the remote, too, of what matches: what is returned has that done and then calls `done`. `keys` are what is
  // known of it, which is all that is cleared where the filter says from where on.
  using Cleared = std::function<void(const absl::Status&)>;
  Cleared AlsoAtRemote(const StoreFilter& filter, const absl::flat_hash_set<ChunkKey>& keys, Cleared done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Workflows, in prefix_store_workflow.cc.
  void ExpectChunks(const StoreTag& salt, const AgentPrompts::Prompt& prompt, size_t steps)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void EndExpecting(const WorkflowStep& step, const StoreTag& salt) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadExpected(const ExpectedRead& read) ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::StatusOr<LoadedChunk> Checked(LoadedChunk loaded, const ExpectedRead& read);
  // False: its tenant has no room for it.
  bool KeepExpected(const LoadedChunk& loaded, bool on_disk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MakeOwnRoom(TenantTag tenant, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The tenant's that was used least recently of those that are neither pinned nor expected; null: there is none.
  Node* LeastWanted(TenantTag tenant, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What goes where `node` should: for one that is expected, another one of its tenant, if there is one.
  Node* InItsPlace(Node* node, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex disk_mutex_;  // taken before mutex_; held while files change
  std::unique_ptr<DiskTier> disk_ ABSL_PT_GUARDED_BY(disk_mutex_);  // null: none
  absl::Time no_writes_before_ ABSL_GUARDED_BY(disk_mutex_) = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  StoreIndex index_ ABSL_GUARDED_BY(mutex_);
  TenantShares tenants_ ABSL_GUARDED_BY(mutex_);
  StoreIndex::Order order_ ABSL_GUARDED_BY(mutex_);   // of the memory tier, most recently used first
  MemoryOrder utility_ ABSL_GUARDED_BY(mutex_);       // of the memory tier; empty with kLru
  MemoryMarks marks_ ABSL_GUARDED_BY(mutex_);         // of the memory tier
  size_t cutting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // that cuts under way will free
  double loaded_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // from disk
  double fetched_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // from the remote
  // How long the disk had what went last.
  absl::Duration disk_keeps_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::flat_hash_map<uint64_t, std::vector<ChunkKey>> segments_ ABSL_GUARDED_BY(mutex_);  // what each holds
  int late_reads_ ABSL_GUARDED_BY(mutex_) = 0;                                             // in a row
  absl::Time no_reads_before_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // times that all of it was cleared
  uint64_t lookups_ ABSL_GUARDED_BY(mutex_) = 0;     // times that any of it was
  std::list<Clearing> clearing_ ABSL_GUARDED_BY(mutex_);
  Pins pins_ ABSL_GUARDED_BY(mutex_);
  AgentPrompts agents_ ABSL_GUARDED_BY(mutex_);
  std::deque<ExpectedRead> expected_reads_ ABSL_GUARDED_BY(mutex_);  // that wait
  int reading_expected_ ABSL_GUARDED_BY(mutex_) = 0;
  StoreStats stats_ ABSL_GUARDED_BY(mutex_);

  absl::Time no_sharing_before_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::array<int, 2> late_remotes_ ABSL_GUARDED_BY(mutex_) = {};  // in a row, by RemoteWork
  // Chunks that are at the remote too old for a request, or cut, and the planes that they have there; what is made in their
  // place, of no fewer, is written there.
  absl::flat_hash_map<ChunkKey, uint8_t> outdated_ ABSL_GUARDED_BY(mutex_);
  absl::Time no_remote_before_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  std::unique_ptr<RemoteTier> remote_;
  std::unique_ptr<WriteBehind> sharer_;
  std::unique_ptr<ReadPool> remote_finders_;  // of their own: a look-up does not wait for reads
  std::unique_ptr<ReadPool> remote_readers_;
  std::unique_ptr<WriteBehind> writer_;
  std::unique_ptr<ReadPool> readers_;  // last: what it does uses the rest
};

}  // namespace aludel
