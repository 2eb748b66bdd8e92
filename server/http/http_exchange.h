#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/http/http_message.h"

namespace aludel {

class HttpConnection;
struct HttpServerState;

// One request and its answer: frames what HttpResponder is told and guards its order. Outlives its connection
// where that closes first. Thread-safe.
class HttpExchange {
 public:
  HttpExchange(std::weak_ptr<HttpConnection> connection, std::shared_ptr<HttpServerState> state,
               const HttpRequest& request);
  ~HttpExchange();

  void AddHeaders(std::vector<HttpHeader> headers);
  void Respond(HttpResponse response, std::function<void()> flushed);
  void StartStream(int status, absl::string_view content_type, std::vector<HttpHeader> headers);
  bool Write(absl::string_view bytes, std::function<void()> flushed);
  void Finish();
  void OnDisconnect(std::function<void()> callback);
  // By the connection, when it closes before the end.
  void Disconnected();
  // By the connection, when the client ended its side. True: the handler wanted to know, and now takes the
  // client for gone. False: the answer is still wanted.
  bool InputEnded();

 private:
  enum class Stage { kNew, kStreaming, kEnded, kGone };

  // False where the connection has closed, or closes for it.
  bool Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded);
  void Abort();

  const std::weak_ptr<HttpConnection> connection_;
  const std::shared_ptr<HttpServerState> state_;
  const std::string peer_;
  const int version_;
  const bool keep_alive_;
  const bool head_only_;  // HEAD: no body
  absl::Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kNew;
  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<HttpHeader> headers_ ABSL_GUARDED_BY(mutex_);  // of whatever response comes
  std::function<void()> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
