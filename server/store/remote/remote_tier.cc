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
// What no request waits for: writing, and connecting again.
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kWriteLimit = absl::Seconds(30);
// However large a chunk is: what its request waits for is bounded there, by a second.
constexpr absl::Duration kLoadLimit = absl::Seconds(5);
// One that gives or takes less is not waited for, whatever it is asked: computing is faster.
constexpr double kLeastBytesPerSecond = 256 << 10;
// What a look-up does behind the longest chunk, and what it does for that, in round trips.
constexpr int kLongestTrips = 3;
// Chunks that are forgotten at once, and names that are asked for at once to make room.
constexpr size_t kForgetBatch = 4096;
constexpr absl::string_view kScanBatch = "1000";
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
// Its error, as where something in between does not know the command, is the connection's end and no other's.
absl::Status WarnOfEviction(RedisConnection& connection, const RedisConnection::Limits& limits) {
  ALUDEL_ASSIGN_OR_RETURN(const RedisReply policy,
                          connection.Call({"CONFIG", "GET", "maxmemory-policy"}, limits));
  if (policy.list.size() == 2 && absl::StartsWith(policy.list[1].text, "allkeys")) {
    spdlog::warn(
        "the prefix store's remote has maxmemory-policy {}: what is cleared may be found again, want "
        "volatile-lru",
        policy.list[1].text);
  }
  return absl::OkStatus();
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
  Stop();
  watch_.join();
}

bool RemoteTier::usable() const {
  absl::MutexLock lock(&mutex_);
  return up_ && uncleared_.empty() && unforgotten_.empty();
}

absl::Time RemoteTier::up_since() const {
  absl::MutexLock lock(&mutex_);
  return up_since_;
}

absl::StatusOr<RemoteTier::Connection> RemoteTier::Take(const RedisConnection::Limits& limits) {
  RedisAddress address;
  {
    absl::MutexLock lock(&mutex_);
    if (!up_ || stop_) return absl::UnavailableError("down");
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
  } else if (!absl::IsDeadlineExceeded(result.status())) {
    GoDown(result.status());
  }
  return result;
}

RedisConnection::Limits RemoteTier::Until(absl::Duration silence, absl::Duration limit) const {
  return {silence, MonotonicNow() + limit, kLeastBytesPerSecond, &stop_};
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
  // Not `until`: a remote that has had less time than `silence` is not to blame.
  const RedisConnection::Limits limits = Until(options_.silence, kPatience);
  return With<Run>(limits, [&](RedisConnection& connection) -> absl::StatusOr<Run> {
    Run run;
    const absl::Time begun = MonotonicNow();
    ALUDEL_ASSIGN_OR_RETURN(run.era, Era(connection, salt, encoder, limits));
    const absl::Duration trip = MonotonicNow() - begun;
    const auto has_time = [&](int trips) { return MonotonicNow() + trips * trip < until; };
    ChunkKey at = before;
    while (!rest.empty()) {
      run.in_part = !has_time(kLongestTrips);
      if (run.in_part) break;
      ALUDEL_ASSIGN_OR_RETURN(const Run::Chunk chunk, Longest(connection, run.era, at, rest, limits));
      if (chunk.tokens == 0) break;
      const size_t known = run.chunks.size();
      run.chunks.push_back(chunk);
      run.in_part = rest.size() > chunk.tokens && !has_time(1);
      if (run.in_part) break;
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

absl::StatusOr<LoadedChunk> RemoteTier::Load(int64_t era, const ChunkKey& key,
                                             std::function<void()> on_begun) {
  RedisConnection::Limits limits = Until(options_.silence, kLoadLimit);
  limits.on_bytes = std::move(on_begun);
  return With<LoadedChunk>(
      limits, [&](RedisConnection& connection) { return LoadWith(connection, era, key, limits); });
}

absl::StatusOr<LoadedChunk> RemoteTier::Load(const StoreTag& salt, const StoreTag& encoder,
                                             const ChunkKey& key) {
  const RedisConnection::Limits limits = Until(options_.silence, kLoadLimit);
  return With<LoadedChunk>(limits, [&](RedisConnection& connection) -> absl::StatusOr<LoadedChunk> {
    ALUDEL_ASSIGN_OR_RETURN(const int64_t era, Era(connection, salt, encoder, limits));
    return LoadWith(connection, era, key, limits);
  });
}

absl::StatusOr<LoadedChunk> RemoteTier::LoadWith(RedisConnection& connection, int64_t era,
                                                 const ChunkKey& key,
                                                 const RedisConnection::Limits& limits) const {
  const std::string name = names_.Chunk(era, key);
  const RedisCommand commands[] = {{"GET", name}, {"TTL", name}};
  ALUDEL_ASSIGN_OR_RETURN(auto replies, connection.Call(commands, limits));
  RedisReply& record = replies.front();
  if (record.kind == RedisReply::Kind::kNull) return absl::NotFoundError("it is there no more");
  ALUDEL_RETURN_IF_ERROR(Expect(record, RedisReply::Kind::kText));
  std::vector<uint8_t> bytes(record.text.begin(), record.text.end());
  std::string().swap(record.text);  // it may be large, and decoding makes another of it
  ALUDEL_ASSIGN_OR_RETURN(LoadedChunk loaded, DecodeChunk(std::move(bytes), {}, key));
  // It is in use: another round trip, for few of those that read it.
  if (absl::Seconds(replies.back().integer) < options_.ttl * 3 / 4) {
    ALUDEL_RETURN_IF_ERROR(Renew(connection, era, loaded.meta.entry, limits));
  }
  return loaded;
}

absl::Status RemoteTier::Renew(const ChunkEntry& entry) {
  const RedisConnection::Limits limits = Until(kPatience, kWriteLimit);
  return With<bool>(limits,
                    [&](RedisConnection& connection) -> absl::StatusOr<bool> {
                      ALUDEL_ASSIGN_OR_RETURN(const int64_t era,
                                              Era(connection, entry.salt, entry.encoder, limits));
                      ALUDEL_RETURN_IF_ERROR(Renew(connection, era, entry, limits));
                      return true;
                    })
      .status();
}

absl::Status RemoteTier::Renew(RedisConnection& connection, int64_t era, const ChunkEntry& entry,
                               const RedisConnection::Limits& limits) const {
  const std::string ttl = absl::StrCat(absl::ToInt64Seconds(options_.ttl));
  const std::string names[] = {names_.Chunk(era, entry.key), names_.Stems(era, entry.before),
                               names_.Lengths(era, entry.before, StemTokens(entry.tokens), entry.stem)};
  std::vector<RedisCommand> commands;
  for (const std::string& name : names) commands.push_back({"EXPIRE", name, ttl});
  return connection.Call(commands, limits).status();  // one that allows no writes is read all the same
}

absl::Status RemoteTier::Drop(int64_t era, const ChunkKey& key) {
  const RedisConnection::Limits limits = Until(options_.silence, kPatience);
  return With<RedisReply>(limits,
                          [&](RedisConnection& connection) {
                            return connection.Call({"DEL", names_.Chunk(era, key)}, limits);
                          })
      .status();
}

absl::StatusOr<size_t> RemoteTier::Write(ChunkMeta meta, absl::Span<const absl::Span<const uint8_t>> payloads,
                                         bool replace) {
  const RedisConnection::Limits limits = Until(kPatience, kWriteLimit);
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
    if (replies.front().integer == 1 && !replace) return 0;
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

void RemoteTier::BeginForget(const StoreTag& salt, const StoreTag& encoder, std::vector<ChunkKey> keys) {
  absl::MutexLock lock(&mutex_);
  unforgotten_.push_back({salt, encoder, std::move(keys)});
}

absl::Status RemoteTier::Flush() {
  const RedisConnection::Limits limits = Until(kPatience, kWriteLimit);
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
    ALUDEL_RETURN_IF_ERROR(CountUp(connection, field, limits));
    absl::MutexLock lock(&mutex_);
    // Two threads may both have counted it up, which does no harm.
    if (const auto done = uncleared_.find(field); done != uncleared_.end()) uncleared_.erase(done);
  }
  absl::MutexLock forget_lock(&forget_mutex_);
  for (bool more = true; more;) {
    ALUDEL_ASSIGN_OR_RETURN(more, ForgetSome(connection, limits));
  }
  return absl::OkStatus();
}

absl::Status RemoteTier::CountUp(RedisConnection& connection, const std::string& field,
                                 const RedisConnection::Limits& limits) const {
  const std::string any_chunk = names_.AnyChunk();
  std::string cursor = "0";
  for (;;) {
    ALUDEL_ASSIGN_OR_RETURN(const RedisReply reply,
                            connection.Call({"HINCRBY", names_.cleared(), field, "1"}, limits));
    if (!absl::StartsWith(reply.text, "OOM")) return Expect(reply, RedisReply::Kind::kInteger);
    ALUDEL_ASSIGN_OR_RETURN(
        const RedisReply scan,
        connection.Call({"SCAN", cursor, "MATCH", any_chunk, "COUNT", kScanBatch}, limits));
    if (scan.list.size() != 2) return Unexpected(scan);
    std::vector<std::string> names;
    for (const RedisReply& name : scan.list[1].list) names.push_back(name.text);
    ALUDEL_RETURN_IF_ERROR(connection.Call(Commands("DEL", names), limits).status());
    cursor = scan.list[0].text;
    if (cursor == "0" && names.empty()) return Unexpected(reply);  // what fills it is not ours
  }
}

absl::StatusOr<bool> RemoteTier::ForgetSome(RedisConnection& connection,
                                            const RedisConnection::Limits& limits) {
  Unforgotten some;
  {
    absl::MutexLock lock(&mutex_);
    if (unforgotten_.empty()) return false;
    const Unforgotten& all = unforgotten_.front();
    const size_t count = std::min(kForgetBatch, all.keys.size());
    some = {all.salt, all.encoder, {all.keys.end() - static_cast<ptrdiff_t>(count), all.keys.end()}};
  }
  ALUDEL_ASSIGN_OR_RETURN(const int64_t era, Era(connection, some.salt, some.encoder, limits));
  std::vector<std::string> names;
  for (const ChunkKey& key : some.keys) {
    names.push_back(names_.Chunk(era, key));
    names.push_back(names_.Stems(era, key));
  }
  ALUDEL_ASSIGN_OR_RETURN(const auto replies, connection.Call(Commands("DEL", names), limits));
  for (const RedisReply& reply : replies) ALUDEL_RETURN_IF_ERROR(Expect(reply, RedisReply::Kind::kInteger));
  absl::MutexLock lock(&mutex_);
  std::vector<ChunkKey>& keys = unforgotten_.front().keys;
  keys.resize(keys.size() - some.keys.size());
  if (keys.empty()) unforgotten_.pop_front();
  return true;
}

void RemoteTier::Watch() {
  absl::Duration retry = kFirstRetry;
  absl::Time came_up = absl::InfinitePast();  // the connection that was not yet seen to be lost
  bool waits = false;
  bool said = false;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !up_; };
      mutex_.Await(absl::Condition(&woken));
      const absl::Time lost = std::exchange(came_up, absl::InfinitePast());
      if (lost != absl::InfinitePast() && MonotonicNow() - lost > options_.steady) retry = kFirstRetry;
      // Also after a loss: one that answers for a moment only is not to cost each time.
      if (std::exchange(waits, true)) {
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
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<RedisAddress> addresses,
                          ResolveUnless(stop_, options_.resolve, options_.address));
  absl::StatusOr<Connection> connection = absl::UnavailableError("no address");
  RedisAddress address;
  for (size_t i = 0; i < addresses.size() && !connection.ok(); ++i) {
    address = addresses[i];
    connection =
        RedisConnection::Open(address, options_.username, options_.password, Until(kPatience, kPatience));
  }
  ALUDEL_RETURN_IF_ERROR(connection.status());
  // What a look-up asks first: answered also by a user that may only do what a store does.
  ALUDEL_RETURN_IF_ERROR(Era(**connection, {}, {}, Until(kPatience, kPatience)).status());
  ALUDEL_RETURN_IF_ERROR(FlushTo(**connection, Until(kPatience, kWriteLimit)));
  const absl::Status warned = WarnOfEviction(**connection, Until(kPatience, kPatience));
  absl::MutexLock lock(&mutex_);
  address_ = address;
  if (warned.ok()) free_.push_back(*std::move(connection));
  up_ = true;
  up_since_ = MonotonicNow();
  return absl::OkStatus();
}

}  // namespace aludel
