#pragma once

#include <stop_token>

#include "absl/status/status.h"

namespace aludel {

// Lets work on untrusted bytes end early: at its request's deadline, when its client goes, at shutdown. The
// thread that does the work opens a scope, and every loop that a client can make long asks CheckStop(). A
// scope, and no argument of every call between them: the loops lie deep in tokenizers, templates and schemas,
// whose interfaces know nothing of requests.
class StopScope {
 public:
  // For this thread, until destroyed. Scopes nest; the innermost one counts.
  explicit StopScope(std::stop_token token);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  friend absl::Status CheckStop();
  const std::stop_token token_;
  StopScope* const outer_;
};

// Cancelled once this thread's scope was asked to stop; OK without a scope. Three nanoseconds: once per piece
// of text or value is often enough and cheap.
absl::Status CheckStop();

}  // namespace aludel
