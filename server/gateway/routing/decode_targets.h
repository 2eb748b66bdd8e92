#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/security/credentials.h"
#include "server/gateway/routing/decode_target.h"
#include "server/observe/metrics.h"

namespace aludel {

// The decode servers of every model: which one a request goes to, and what they say together. A model that was not given to
// the constructor has none. Which servers there are is constant, what each says of itself is its own: thread-safe.
class DecodeTargets {
 public:
  struct Model {
    DecodeExpectation expectation;
    std::vector<std::string> decode_targets;
  };
  struct State {
    bool ready = false;        // a server is, or is slow at worst
    uint64_t max_context = 0;  // smallest of the ready servers; 0: none has been ready yet
    uint32_t max_choices = 0;  // largest of the ready servers; 0: none is
    std::string reason;        // why not ready, per server
  };

  DecodeTargets(const std::vector<Model>& models,
                const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics);

  std::vector<std::shared_ptr<DecodeTarget>> all() const;
  State StateOf(const std::string& model) const;
  // Wire formats that every ready server of the model offers, in the first one's order.
  std::vector<std::string> Formats(const std::string& model) const;
  // Those of its usable servers, each once and in order, a line each.
  std::string Numerics(const std::string& model) const;
  // LoRA adapters over the model that a usable server has, in order.
  std::vector<std::string> Adapters(const std::string& model) const;
  // The model that an adapter is over, where a usable server has it.
  std::optional<std::string> BaseOf(const std::string& adapter) const;
  // The model's servers.
  const std::vector<std::shared_ptr<DecodeTarget>>& Of(const std::string& model) const;
  // Requests that its servers have not finished.
  int Outstanding(const std::string& model) const;
  // What its usable servers take at once; 0: not known. Nothing: none is usable.
  std::optional<int> Places(const std::string& model) const;

  // Not in `tried`, of these numerics ("": of any), with this adapter ("": with any), ready, or slow if none is; fewest
  // outstanding; null if none.
  std::shared_ptr<DecodeTarget> Pick(const std::string& model, const std::vector<DecodeTarget*>& tried,
                                     const std::string& numerics, const std::string& adapter = "") const;
  // Whether a server that is not in `gone` may become ready that has these numerics ("": any).
  bool HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone,
                const std::string& numerics) const;

 private:
  absl::flat_hash_map<std::string, std::vector<std::shared_ptr<DecodeTarget>>> targets_;
};

}  // namespace aludel
