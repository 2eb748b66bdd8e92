#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/gateway/access/api_keys.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// API keys and their limits. Each client (a key; all together where no keys are set) has a bucket of requests and one
// of tokens that fill up evenly and hold a minute's worth, and a number of requests at once. Tokens are known when an
// answer ends: they are charged then, and so are a request's prompts beyond the first, as if each were a request.
// Answers at once are counted when it is known how many a request asks for (Grant::Widen). So a bucket may go below
// zero, and the next request waits until it is above. A client's state outlives a reload of the keys. Thread-safe.
class Access {
 public:
  using Clock = std::function<absl::Time()>;
  // `anonymous`: limits of all clients together as long as no keys are set.
  explicit Access(const KeyLimits& anonymous, Clock clock = absl::Now);

  // From now on a request needs one of these keys.
  void SetKeys(std::vector<ApiKey> keys);

  // Whose request this is, from its `Authorization: Bearer KEY` header; "" where no keys are set. Takes the
  // same time for every wrong key.
  std::optional<ApiError> Identify(absl::string_view authorization, std::string* client) const;

  // One request in progress; its place is given back when this dies. Must not outlive the Access.
  class Grant {
   public:
    ~Grant();
    Grant(const Grant&) = delete;
    Grant& operator=(const Grant&) = delete;
    void ChargeTokens(int64_t tokens);
    // Beyond the one that was granted.
    void ChargeRequests(int64_t requests);
    const KeyLimits& limits() const { return limits_; }  // as they were when it was granted
    // Takes places for `most` answers in all, the one that was granted among them, or as many as there are; 429 where
    // there are fewer than `least`, and nothing changes. Called once, by one thread.
    std::optional<ApiError> Widen(int least, int most);
    int places() const { return places_; }

   private:
    friend class Access;
    Grant(Access* access, std::string client, const KeyLimits& limits)
        : access_(access), client_(std::move(client)), limits_(limits) {}
    Access* const access_;
    const std::string client_;
    const KeyLimits limits_;
    int places_ = 1;
  };
  // 429 with Retry-After where `client`'s limits say so; `code` names the limit.
  std::optional<ApiError> Admit(const std::string& client, std::shared_ptr<Grant>* grant);

 private:
  struct Bucket {
    double level = 0;
    absl::Time filled = absl::InfinitePast();
    // Brings the level up to `now`, for a bucket that fills with `per_minute`.
    void Fill(double per_minute, absl::Time now);
    // Whole seconds until the level is `wanted`, at least one.
    int SecondsUntil(double wanted, double per_minute) const;
  };
  struct Client {
    KeyLimits limits;
    Bucket requests;
    Bucket tokens;
    int running = 0;
  };

  const Clock clock_;
  mutable absl::Mutex mutex_;
  bool keys_needed_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const std::vector<ApiKey>> keys_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Client> clients_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
