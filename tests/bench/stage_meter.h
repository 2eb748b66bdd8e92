#pragma once

#include <memory>

#include "server/gateway/openai/model/served_models.h"
#include "tests/bench/request_bodies.h"
#include "tests/bench/request_cost.h"

namespace aludel {

// Takes a chat body through what it takes in both servers, on the caller's thread: read, rendered, tokenized,
// its schema compiled, masks of the tokens that it allows. Not thread-safe.
class StageMeter {
 public:
  // `model` must outlive it.
  static std::unique_ptr<StageMeter> Open(const ServedModel* model);
  virtual ~StageMeter() = default;
  // `slack` widens the bounds.
  virtual RequestCost Measure(const RequestBody& body, double slack) const = 0;
};

}  // namespace aludel
