#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/gateway/openai/answer/completion_response.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/completion_request.h"

namespace aludel {

// Writes one answer in one API's shape. Streamed: Start, then StartPrompt before what comes of a prompt's choices, a
// delta for what each event adds, an end for every choice but the last, and Complete or Fail; each gives the
// server-sent events to write, which may be none. Not streamed: Whole. A choice that starts anew comes before
// anything of it was written. Used by one thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  virtual std::string Start(const v1::Started& started) = 0;
  // Again where the prompt's answer starts anew.
  virtual std::string StartPrompt(size_t prompt) = 0;
  virtual std::string Delta(int choice, const ChoiceDelta& delta) = 0;
  virtual std::string End(int choice, const ChoiceEnd& end) = 0;
  virtual std::string Complete(int last_choice, const ChoiceEnd& end, const TokenUsage& usage,
                               const CompletionReport& report) = 0;
  virtual std::string Fail(const ApiError& error) = 0;
  // The body.
  virtual std::string Whole(const std::vector<WholeChoice>& choices, const TokenUsage& usage,
                            const CompletionReport& report) = 0;
  // Bytes of the answer that are kept although they were written: its last event repeats them.
  virtual size_t kept_bytes() const = 0;
};

// One request in the words of one API: from its body to the gateway's own request, and from the events of an answer to
// what the client reads. Used by one thread at a time.
class Dialect {
 public:
  virtual ~Dialect() = default;

  // What reading the body costs, in bytes to read: itself, and what is stored that it refers to.
  virtual size_t Weigh(absl::string_view body) = 0;
  // Before Read: the body's part of the memory for bodies, for a dialect whose writer keeps parts of the body.
  virtual void TakeShare(std::shared_ptr<HttpBodyHold>) {}
  // Fills in `request`, or says what is wrong with the body.
  virtual std::optional<ApiError> Read(absl::string_view body, CompletionRequest* request) = 0;
  // Of the answer to the request that was read. Called once; the writer keeps what it needs.
  virtual std::unique_ptr<AnswerWriter> Writer(const CompletionRequest& request,
                                               CompletionIdentity identity) = 0;
  virtual HttpResponse Refusal(const ApiError& error) const = 0;
  // In front of the random part of an answer's id, e.g. "chatcmpl-".
  virtual const char* id_prefix() const = 0;
  // As OpenTelemetry names it: "chat" or "text_completion".
  virtual const char* operation() const = 0;
};

}  // namespace aludel
