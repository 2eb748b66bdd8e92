#include "server/store/remote/remote_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLastRetry = absl::Seconds(5);
// One that was up for so long is tried at once when it is lost.
constexpr absl::Duration kSteady = absl::Seconds(10);
// What no request waits for: writing, and connecting again.
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kWriteLimit = absl::Seconds(30);
// However large a chunk is: what its request waits for is bounded there.
constexpr absl::Duration kLoadLimit = absl::Seconds(30);
// Of a look-up: lengths that are tried behind one chunk, and guesses in one round.
constexpr size_t kMaxLengths = 256;
constexpr size_t kMaxGuesses = 256;

absl::Status Unexpected(const RedisReply& reply) {
  return absl::UnavailableError(reply.kind == RedisReply::Kind::kError ? reply.text
                                                                       : "an answer that was not expected");
}

absl::Status Expect(const RedisReply& reply, RedisReply::Kind kind) {
  return reply.kind == kind ? absl::OkStatus() : Unexpected(reply);
}

// Numbers of tokens, ascending, none of them above `most`.
absl::StatusOr<std::vector<uint32_t>> Numbers(const RedisReply& set, size_t most) {
  ALUDEL_RETURN_IF_ERROR(Expect(set, RedisReply::Kind::kList));
  std::vector<uint32_t> numbers;
  for (const RedisReply& item : set.list) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(item.text, &number) && number <= most) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  if (numbers.size() > kMaxLengths) numbers.erase(numbers.begin(), numbers.end() - kMaxLengths);
  return numbers;
}

std::vector<RedisCommand> Commands(absl::string_view word, absl::Span<const std::string> names) {
  std::vector<RedisCommand> commands;
  for (const std::string& name : names) commands.push_back({word, name});
  return commands;
}

// The hash of what was cleared has no time to live. Where it may be evicted, what was cleared may be found again.
void WarnOfEviction(RedisConnection& connection, const RedisConnection::Limits& limits) {
  const absl::StatusOr<RedisReply> policy = connection.Call({"CONFIG", "GET", "maxmemory-policy"}, limits);
  if (!policy.ok() || policy->list.size() != 2 || !absl::StartsWith(policy->list[1].text, "allkeys")) return;
  spdlog::warn(
      "the prefix store's remote has maxmemory-policy {}: what is cleared may be found again, want "
      "volatile-lru",
      policy->list[1].text);
}

// An error that says nothing of the remote as a whole.
bool IsOfOneChunk(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsResourceExhausted(status);
}

}  // namespace

RemoteTier::RemoteTier(Options options)
    : options_(std::move(options)), names_(options_.producer), watch_([this] { Watch(); }) {}

RemoteTier::~RemoteTier() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  watch_.join();
}

bool RemoteTier::usable() const {
  absl::MutexLock lock(&mutex_);
  return up_ && uncleared_.empty();
}

absl::Time RemoteTier::up_since() const {
  absl::MutexLock lock(&mutex_);
  return up_since_;
}

absl::StatusOr<RemoteTier::Connection> RemoteTier::Take(const RedisConnection::Limits& limits) {
  SocketAddress address;
  {
    absl::MutexLock lock(&mutex_);
    if (!up_) return absl::UnavailableError("down");
    if (!free_.empty()) {
      Connection connection = std::move(free_.back());
      free_.pop_back();
      return connection;
    }
    address = address_;
  }
  return RedisConnection::Open(address, options_.username, options_.password, limits);
}

void RemoteTier::GiveBack(Connection connection) {
  absl::MutexLock lock(&mutex_);
  if (up_) free_.push_back(std::move(connection));
}

template <typename T, typename Work>
absl::StatusOr<T> RemoteTier::With(const RedisConnection::Limits& limits, const Work& work) {
  absl::StatusOr<Connection> connection = Take(limits);
  absl::StatusOr<T> result = connection.ok() ? work(**connection) : absl::StatusOr<T>(connection.status());
  if (result.ok() || IsOfOneChunk(result.status())) {
    GiveBack(*std::move(connection));
  } else {
    GoDown(result.status());
  }
  return result;
}

void RemoteTier::GoDown(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (!up_) return;
  up_ = false;
  free_.clear();
  spdlog::warn("the prefix store's remote {} is left out: {}", options_.address, std::string(why.message()));
}

absl::StatusOr<int64_t> RemoteTier::Era(RedisConnection& connection, const StoreTag& salt,
                                        const StoreTag& encoder,
                                        const RedisConnection::Limits& limits) const {
  const std::vector<std::string> fields = RemoteNames::EraFields(salt, encoder);
  RedisCommand command = {"HMGET", names_.cleared()};
  command.insert(command.end(), fields.begin(), fields.end());
  ALUDEL_ASSIGN_OR_RETURN(const RedisReply reply, connection.Call(command, limits));
  ALUDEL_RETURN_IF_ERROR(Expect(reply, RedisReply::Kind::kList));
  int64_t era = 0;
  for (const RedisReply& count : reply.list) {
    int64_t value = 0;
    if (absl::SimpleAtoi(count.text, &value)) era += value;
  }
  return era;
}

absl::StatusOr<RemoteTier::Run> RemoteTier::Find(const ChunkKey& before, const StoreTag& salt,
                                                 const StoreTag& encoder, absl::Span<const int32_t> rest,
                                                 absl::Time until) {
  const absl::Time now = MonotonicNow();
  const absl::Time no_more = now + (until - now) / 2;
  const RedisConnection::Limits limits = {options_.silence, until};
  return With<Run>(limits, [&](RedisConnection& connection) -> absl::StatusOr<Run> {
    Run run;
    ALUDEL_ASSIGN_OR_RETURN(run.era, Era(connection, salt, encoder, limits));
    ChunkKey at = before;
    while (!rest.empty() && MonotonicNow() < no_more) {
      ALUDEL_ASSIGN_OR_RETURN(const Run::Chunk chunk, Longest(connection, run.era, at, rest, limits));
      if (chunk.tokens == 0) break;
      const size_t known = run.chunks.size();
      run.chunks.push_back(chunk);
      ALUDEL_RETURN_IF_ERROR(AddEqual(connection, rest.subspan(chunk.tokens), &run, limits));
      rest.remove_prefix((run.chunks.size() - known) * chunk.tokens);
      at = run.chunks.back().key;
    }
    return run;
  });
}

absl::StatusOr<RemoteTier::Run::Chunk> RemoteTier::Longest(RedisConnection& connection, int64_t era,
                                                           const ChunkKey& before,
                                                           absl::Span<const int32_t> rest,
                                                           const RedisConnection::Limits& limits) const {
  Run::Chunk longest;
  ALUDEL_ASSIGN_OR_RETURN(const RedisReply stems,
                          connection.Call({"SMEMBERS", names_.Stems(era, before)}, limits));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<uint32_t> stem_tokens, Numbers(stems, rest.size()));
  if (stem_tokens.empty()) return longest;
  ChunkHasher hasher;
  std::vector<std::string> names;
  hasher.Start(before);
  size_t hashed = 0;
  for (const uint32_t tokens : stem_tokens) {
    hasher.Add(rest.subspan(hashed, tokens - hashed));
    hashed = tokens;
    names.push_back(names_.Lengths(era, before, tokens, tokens == 0 ? 0 : StemOf(hasher.Key())));
  }
  ALUDEL_ASSIGN_OR_RETURN(const auto sets, connection.Call(Commands("SMEMBERS", names), limits));
  std::vector<uint32_t> lengths;
  for (const RedisReply& set : sets) {
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<uint32_t> some, Numbers(set, rest.size()));
    lengths.insert(lengths.end(), some.begin(), some.end());
  }
  // Each stem's are longer than those of the stems before it.
  if (lengths.size() > kMaxLengths) lengths.erase(lengths.begin(), lengths.end() - kMaxLengths);
  std::vector<Run::Chunk> candidates;
  names.clear();
  hasher.Start(before);
  hashed = 0;
  for (const uint32_t tokens : lengths) {
    if (tokens <= hashed) continue;
    hasher.Add(rest.subspan(hashed, tokens - hashed));
    hashed = tokens;
    candidates.push_back({hasher.Key(), tokens});
    names.push_back(names_.Chunk(era, candidates.back().key));
  }
  ALUDEL_ASSIGN_OR_RETURN(const auto there, connection.Call(Commands("EXISTS", names), limits));
  for (size_t i = there.size(); i-- > 0;) {
    ALUDEL_RETURN_IF_ERROR(Expect(there[i], RedisReply::Kind::kInteger));
    if (there[i].integer == 1) return candidates[i];
  }
  return longest;
}

absl::Status RemoteTier::AddEqual(RedisConnection& connection, absl::Span<const int32_t> rest, Run* run,
                                  const RedisConnection::Limits& limits) const {
  const uint32_t tokens = run->chunks.back().tokens;
  ChunkHasher hasher;
  std::vector<Run::Chunk> guesses;
  std::vector<std::string> names;
  for (; rest.size() >= tokens && guesses.size() < kMaxGuesses; rest.remove_prefix(tokens)) {
    hasher.Start(guesses.empty() ? run->chunks.back().key : guesses.back().key);
    hasher.Add(rest.first(tokens));
    guesses.push_back({hasher.Key(), tokens});
    names.push_back(names_.Chunk(run->era, guesses.back().key));
  }
  ALUDEL_ASSIGN_OR_RETURN(const auto there, connection.Call(Commands("EXISTS", names), limits));
  for (size_t i = 0; i < there.size(); ++i) {
    ALUDEL_RETURN_IF_ERROR(Expect(there[i], RedisReply::Kind::kInteger));
    if (there[i].integer != 1) break;
    run->chunks.push_back(guesses[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedChunk> RemoteTier::Load(int64_t era, const ChunkKey& key) {
  const RedisConnection::Limits limits = {options_.silence, MonotonicNow() + kLoadLimit};
  return With<LoadedChunk>(limits, [&](RedisConnection& connection) -> absl::StatusOr<LoadedChunk> {
    ALUDEL_ASSIGN_OR_RETURN(const RedisReply reply, connection.Call({"GET", names_.Chunk(era, key)}, limits));
    if (reply.kind == RedisReply::Kind::kNull) return absl::NotFoundError("it is there no more");
    ALUDEL_RETURN_IF_ERROR(Expect(reply, RedisReply::Kind::kText));
    return DecodeChunk({reply.text.begin(), reply.text.end()}, {}, key);
  });
}

absl::StatusOr<size_t> RemoteTier::Write(ChunkMeta meta,
                                         absl::Span<const absl::Span<const uint8_t>> payloads) {
  const RedisConnection::Limits limits = {kPatience, MonotonicNow() + kWriteLimit};
  const std::string ttl = absl::StrCat(absl::ToInt64Seconds(options_.ttl));
  return With<size_t>(limits, [&](RedisConnection& connection) -> absl::StatusOr<size_t> {
    const ChunkEntry& entry = meta.entry;
    ALUDEL_ASSIGN_OR_RETURN(const int64_t era, Era(connection, entry.salt, entry.encoder, limits));
    const uint32_t stem_tokens = StemTokens(entry.tokens);
    const std::string chunk = names_.Chunk(era, entry.key);
    const std::string stems = names_.Stems(era, entry.before);
    const std::string lengths = names_.Lengths(era, entry.before, stem_tokens, entry.stem);
    const std::string stem_text = absl::StrCat(stem_tokens);
    const std::string tokens_text = absl::StrCat(entry.tokens);
    const RedisCommand known[] = {{"EXPIRE", chunk, ttl},
                                  {"SADD", stems, stem_text},
                                  {"EXPIRE", stems, ttl},
                                  {"SADD", lengths, tokens_text},
                                  {"EXPIRE", lengths, ttl}};
    ALUDEL_ASSIGN_OR_RETURN(const auto replies, connection.Call(known, limits));
    for (const RedisReply& reply : replies) {
      if (reply.kind == RedisReply::Kind::kError) return absl::ResourceExhaustedError(reply.text);
    }
    if (replies.front().integer == 1) return 0;
    std::vector<uint8_t> record = EncodeChunkRecord(&meta, {}, payloads);
    record.resize(entry.meta_bytes + entry.payload_bytes);
    const absl::string_view value(reinterpret_cast<const char*>(record.data()), record.size());
    ALUDEL_ASSIGN_OR_RETURN(const RedisReply reply,
                            connection.Call({"SET", chunk, value, "EX", ttl}, limits));
    if (reply.kind == RedisReply::Kind::kError) return absl::ResourceExhaustedError(reply.text);
    return record.size();
  });
}

void RemoteTier::BeginEra(const StoreFilter& filter) {
  absl::MutexLock lock(&mutex_);
  uncleared_.insert(RemoteNames::ClearedField(filter));
}

absl::Status RemoteTier::Flush() {
  const RedisConnection::Limits limits = {kPatience, MonotonicNow() + kPatience};
  return With<bool>(limits,
                    [&](RedisConnection& connection) -> absl::StatusOr<bool> {
                      ALUDEL_RETURN_IF_ERROR(FlushTo(connection, limits));
                      return true;
                    })
      .status();
}

absl::Status RemoteTier::FlushTo(RedisConnection& connection, const RedisConnection::Limits& limits) {
  std::multiset<std::string> fields;
  {
    absl::MutexLock lock(&mutex_);
    fields = uncleared_;
  }
  for (const std::string& field : fields) {
    ALUDEL_ASSIGN_OR_RETURN(const RedisReply reply,
                            connection.Call({"HINCRBY", names_.cleared(), field, "1"}, limits));
    ALUDEL_RETURN_IF_ERROR(Expect(reply, RedisReply::Kind::kInteger));
    absl::MutexLock lock(&mutex_);
    // Two threads may both have counted it up, which does no harm.
    if (const auto done = uncleared_.find(field); done != uncleared_.end()) uncleared_.erase(done);
  }
  return absl::OkStatus();
}

absl::Status RemoteTier::Forget(const StoreTag& salt, const StoreTag& encoder,
                                absl::Span<const ChunkKey> keys) {
  const RedisConnection::Limits limits = {kPatience, MonotonicNow() + kWriteLimit};
  return With<bool>(limits,
                    [&](RedisConnection& connection) -> absl::StatusOr<bool> {
                      ALUDEL_ASSIGN_OR_RETURN(const int64_t era, Era(connection, salt, encoder, limits));
                      std::vector<std::string> names;
                      for (const ChunkKey& key : keys) {
                        names.push_back(names_.Chunk(era, key));
                        names.push_back(names_.Stems(era, key));
                      }
                      ALUDEL_ASSIGN_OR_RETURN(const auto replies,
                                              connection.Call(Commands("DEL", names), limits));
                      for (const RedisReply& reply : replies) {
                        ALUDEL_RETURN_IF_ERROR(Expect(reply, RedisReply::Kind::kInteger));
                      }
                      return true;
                    })
      .status();
}

void RemoteTier::Watch() {
  absl::Duration retry = kFirstRetry;
  absl::Time came_up = absl::InfinitePast();
  bool said = false;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !up_; };
      mutex_.Await(absl::Condition(&woken));
      if (MonotonicNow() - came_up > kSteady && came_up != absl::InfinitePast()) retry = kFirstRetry;
      // Also after a loss: one that answers for a moment only is not to cost each time.
      if (said || came_up != absl::InfinitePast()) {
        mutex_.AwaitWithTimeout(absl::Condition(&stopping_), retry);
        retry = std::min(2 * retry, kLastRetry);
      }
      if (stopping_) return;
    }
    const absl::Status status = ComeUp();
    if (status.ok()) {
      came_up = MonotonicNow();
      said = false;
      spdlog::info("the prefix store's remote {} is in use", options_.address);
    } else if (!std::exchange(said, true)) {
      spdlog::warn("the prefix store's remote {} is not in use, and is tried again: {}", options_.address,
                   std::string(status.message()));
    }
  }
}

absl::Status RemoteTier::ComeUp() {
  ALUDEL_ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(options_.address));
  const RedisConnection::Limits limits = {kPatience, MonotonicNow() + kPatience};
  ALUDEL_ASSIGN_OR_RETURN(Connection connection,
                          RedisConnection::Open(address, options_.username, options_.password, limits));
  // What a look-up asks first: answered also by a user that may only do what a store does.
  ALUDEL_RETURN_IF_ERROR(Era(*connection, {}, {}, limits).status());
  ALUDEL_RETURN_IF_ERROR(FlushTo(*connection, limits));
  WarnOfEviction(*connection, limits);
  absl::MutexLock lock(&mutex_);
  address_ = address;
  free_.push_back(std::move(connection));
  up_ = true;
  up_since_ = MonotonicNow();
  return absl::OkStatus();
}

}  // namespace aludel
