#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "aludel/v1/handoff.pb.h"
#include "grpcpp/support/status.h"
#include "server/gateway/routing/generate_call.h"
#include "server/gateway/routing/told_answer.h"

namespace aludel {

// What of the attempts' events the observer hears: an answer once, whichever servers it comes from. Not thread-safe.
class AnswerRelay {
 public:
  enum class Verdict {
    kGoOn,
    kUnwanted,  // the observer wants no more
    kDiverged,  // the server gives another answer than the one that was begun; what it says is not heard from now on
  };
  AnswerRelay(std::shared_ptr<GenerateObserver> observer, size_t choices)
      : observer_(std::move(observer)), told_(choices) {}

  Verdict Hear(const v1::GenerateEvent& event);
  // Its server is lost. True: it begins anew. False: another server is to repeat it, and go on (Repeat).
  bool Restart();
  // Has the next attempt repeat what was told.
  void Repeat(v1::GenerateRequest* request);
  // The observer hears nothing afterwards.
  void End(const grpc::Status& status);

  bool committed() const { return committed_; }  // the observer was told something
  bool diverged() const { return diverged_; }
  bool repeating() const { return told_.repeating(); }
  bool whole() const { return told_.whole(); }

 private:
  Verdict Diverge() {
    diverged_ = true;
    return Verdict::kDiverged;
  }
  void TellStarted();

  std::shared_ptr<GenerateObserver> observer_;
  ToldAnswer told_;
  bool committed_ = false;
  bool diverged_ = false;
};

}  // namespace aludel
