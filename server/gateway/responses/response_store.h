#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace aludel {

// One answer of /v1/responses as it is kept.
struct StoredResponse {
  std::string body;      // the response object
  std::string messages;  // the conversation up to and with the answer, as chat templates take it; a JSON list
  std::vector<std::pair<std::string, std::string>> items;  // id and JSON of each output item

  size_t bytes() const;
};

// Keeps answers for `previous_response_id` and GET, in memory, for a time. A client (a key; all together where no
// keys are set) sees its own only. Bounded in answers and bytes over all clients: what does not fit pushes out the
// oldest of the client that holds most of what there is too much of, answers or bytes, so that no client can push out
// more than its own where others hold less. One that is larger than all of it is not kept. Thread-safe.
class ResponseStore {
 public:
  struct Options {
    size_t max_responses = 1024;  // 0: nothing is kept
    size_t max_bytes = 64 << 20;
    absl::Duration max_age = absl::Hours(1);
  };
  explicit ResponseStore(Options options) : options_(options) {}

  bool enabled() const { return options_.max_responses > 0; }

  // `now` is of one monotonic clock in all calls.
  void Put(const std::string& client, const std::string& id, StoredResponse response, absl::Time now);
  // Null where there is none, or none of this client's.
  std::shared_ptr<const StoredResponse> Find(const std::string& client, const std::string& id,
                                             absl::Time now);
  // The JSON of an output item of one of the client's answers; null where there is none.
  std::shared_ptr<const std::string> FindItem(const std::string& client, const std::string& item,
                                              absl::Time now);
  // Whether there was one.
  bool Erase(const std::string& client, const std::string& id, absl::Time now);

  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    size_t bytes = 0;
    absl::Time dies;
  };
  using Entries = std::list<Entry>;  // oldest first
  struct Client {
    Entries entries;
    size_t bytes = 0;
    std::map<std::string, Entries::iterator, std::less<>> by_id;
    std::map<std::string, std::pair<Entries::iterator, size_t>, std::less<>> by_item;  // and its place there
  };
  using Clients = std::map<std::string, Client>;

  void Remove(Client* client, Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOld(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  Clients clients_ ABSL_GUARDED_BY(mutex_);
  size_t size_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
