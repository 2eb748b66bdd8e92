#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "grpcpp/security/credentials.h"
#include "server/gateway/routing/decode_target.h"
#include "server/gateway/routing/model_fleet.h"
#include "server/observe/metrics.h"
#include "server/rpc/server_name.h"

namespace aludel {

// The decode servers of every model: which one a request goes to, and what they say together. Which models there are is
// constant, and one that was not given to the constructor has no servers; servers come and go (SetTargets). Thread-safe.
class DecodeTargets {
 public:
  struct Model {
    DecodeExpectation expectation;
    std::vector<std::string> decode_targets;
    std::string list = "";  // what names them later, for messages
    // A request whose first token is predicted later, or after its deadline, wherever it goes, is refused.
    absl::Duration max_ttft = absl::InfiniteDuration();
  };
  struct State {
    bool ready = false;        // a server is, or is slow at worst
    uint64_t max_context = 0;  // smallest of the ready servers; 0: none has been ready yet
    uint32_t max_choices = 0;  // largest of the ready servers; 0: none is
    std::string reason;        // why not ready, per server
  };

  DecodeTargets(const std::vector<Model>& models,
                const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics,
                const Fleet::Options& routing = {});

  // How long a server that is not named any more may be a spare.
  static constexpr absl::Duration kSpareTime = absl::Seconds(30);

  // These are the model's servers from now on, and one thread at a time says so, or settles. Those that it had stay as they
  // are. One that is not named any more gets no new requests; those that run there end, and then it is forgotten. Where
  // none of the named ones is usable yet, those that were stay as spares, until one is or for kSpareTime (Settle).
  void SetTargets(const std::string& model, const std::vector<ServerName>& targets);
  // Lets spares go that are needed no more. Whether any went, so that all() is another.
  bool Settle();

  std::vector<std::shared_ptr<DecodeTarget>> all() const;
  State StateOf(const std::string& model) const;
  // What the first of its usable servers that says so takes codes of (PrefillSource); "": none says.
  std::string PrefillSourceOf(const std::string& model) const;
  // Wire formats that every ready server of the model offers, in the first one's order.
  std::vector<std::string> Formats(const std::string& model) const;
  // Those of its usable servers, each once and in order, a line each.
  std::string Numerics(const std::string& model) const;
  // LoRA adapters over the model that a usable server has, in order.
  std::vector<std::string> Adapters(const std::string& model) const;
  // The model that an adapter is over, where a usable server has it.
  std::optional<std::string> BaseOf(const std::string& adapter) const;
  // Whether what is cached of a prompt for the model is found for the adapter, as a usable server says.
  bool BeginsAsBase(const std::string& model, const std::string& adapter) const;
  // The model's servers.
  std::vector<std::shared_ptr<DecodeTarget>> Of(const std::string& model) const;
  // Requests that its servers have not finished.
  int Outstanding(const std::string& model) const;
  // What its usable servers take at once; 0: not known. Nothing: none is usable.
  std::optional<int> Places(const std::string& model) const;

  struct Wanted {
    const std::string& model;
    const PrefixKeys& keys;                   // of the prompt
    const std::vector<DecodeTarget*>& tried;  // no more
    const std::string& numerics;              // with `adapter`; "": any
    const std::string& adapter;               // that the server has; "": any
    bool again = false;                       // a server was picked before
    int places = 1;                           // choices
    absl::Span<DecodeTarget* const> among;    // rather one of these, where one is that is in time; empty: any
    std::optional<absl::Duration> time_left;  // until its deadline; nothing: it is not refused for being late
  };
  // The server that the policy chooses (ModelFleet): one that is ready, or else slow; null if none. It counts the request
  // until DecodeTarget::Ended.
  struct Picked {
    std::shared_ptr<DecodeTarget> target;
    std::optional<double> wait_limit;  // as ModelFleet::Picked's
    int64_t cached_tokens = 0;         // likewise
    // There is no target: the first token is predicted to be so much later than the model's max_ttft, or the deadline, allows.
    std::optional<absl::Duration> late;
  };
  Picked Pick(const Wanted& wanted) const;
  // What Pick would do with a request that no server was asked for; nothing for a model that is not known.
  struct Explanation {
    ModelFleet::Explanation choice;
    std::vector<std::string> names;  // by slot; "": none is there
  };
  std::optional<Explanation> Explain(const std::string& model, const PrefixKeys& keys) const;
  double Imbalance(const std::string& model) const;
  // `waiting`: places that requests wait for.
  double Desired(const std::string& model, int waiting) const;
  // Whether a server that is not in `gone` may become ready that has these numerics ("": any) with `adapter` ("": none).
  bool HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone, const std::string& numerics,
                const std::string& adapter = "") const;

 private:
  // What does not change while it is looked at.
  struct Spare {
    std::shared_ptr<DecodeTarget> target;
    absl::Time until;
  };
  struct Members {
    std::vector<std::shared_ptr<DecodeTarget>> targets;
    std::vector<DecodeTarget*> by_slot;  // of them, in the fleet; null: none, or one that goes
    std::vector<Spare> spares;           // of them, those that are not named any more

    void Add(const std::shared_ptr<DecodeTarget>& target);
    bool IsSpare(const DecodeTarget* target) const;
    bool NamedIsUsable() const;
    DecodeTarget* At(size_t slot) const { return slot < by_slot.size() ? by_slot[slot] : nullptr; }
    ModelFleet::Standing StandingOf(size_t slot) const;
    // Likewise for what a request wants, `among` apart.
    ModelFleet::Standing StandingFor(const Wanted& wanted, size_t slot) const;
  };
  using MembersPtr = std::shared_ptr<const Members>;
  struct Pool {
    DecodeExpectation expectation;
    std::string list;         // as Model's
    absl::Duration max_ttft;  // likewise
    std::shared_ptr<ModelFleet> fleet;
    MembersPtr members = std::make_shared<const Members>();  // under mutex_
  };

  // Empty for a model that is not known.
  MembersPtr MembersOf(const std::string& model) const;
  // Those of `before` that are not in `after` are no servers of the model any more.
  void Replace(Pool* pool, const MembersPtr& before, const MembersPtr& after);

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Metrics* const metrics_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Pool> pools_;  // constant but for Pool::members
  std::atomic<bool> has_spares_ = false;
};

}  // namespace aludel
