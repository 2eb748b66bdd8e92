#include "server/bench/load_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxErrorBytes = 300;
// A line of a stream that is longer is no event of a completion's.
constexpr size_t kMaxLineBytes = 4 << 20;
constexpr int kMaxPollMs = 100;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;

// One request on its way: cuts the stream into events and takes the time of each piece of text.
class Transfer {
 public:
  Transfer(size_t index, const LoadRequest& request, Clock::time_point start, LoadResult* result)
      : index_(index),
        request_(&request),
        start_(start),
        result_(result),
        handle_(curl_easy_init(), curl_easy_cleanup) {
    result_->arrival = request.arrival;
  }
  size_t index() const { return index_; }
  CURL* handle() const { return handle_.get(); }

  void Prepare(const LoadTarget& target, curl_slist* headers) {
    CURL* curl = handle_.get();
    curl_easy_setopt(curl, CURLOPT_URL, target.url.c_str());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request_->body.data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_->body.size()));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(target.timeout_seconds * 1e3));
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, target.insecure ? 0L : 1L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, target.insecure ? 0L : 2L);
    curl_easy_setopt(curl, CURLOPT_PRIVATE, this);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(
        curl, CURLOPT_WRITEFUNCTION, +[](char* bytes, size_t size, size_t count, void* self) {
          const bool taken = static_cast<Transfer*>(self)->Take(absl::string_view(bytes, size * count));
          return taken ? size * count : 0;
        });
  }

  void End(CURLcode code) {
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    result_->status = static_cast<int>(status);
    result_->e2e = Now();
    if (result_->completion_tokens == 0) result_->completion_tokens = pieces_;
    if (!result_->error.empty()) return;
    if (code == CURLE_ABORTED_BY_CALLBACK) {
      result_->error = "stopped before its end";
    } else if (code != CURLE_OK) {
      result_->error = curl_easy_strerror(code);
    } else if (status != 200) {
      result_->error = absl::StrCat("HTTP ", status, ": ", absl::StripAsciiWhitespace(beginning_));
    } else if (!done_) {
      result_->error = "the stream ended before [DONE]";
    } else if (pieces_ == 0) {
      result_->error = "an answer without text";
    }
  }

 private:
  double Now() const { return Since(start_) - request_->arrival; }

  // False where what comes is no stream of events.
  bool Take(absl::string_view bytes) {
    const double now = Now();
    const absl::string_view begin = bytes.substr(0, kMaxErrorBytes - beginning_.size());
    beginning_.append(begin.data(), begin.size());
    unread_.append(bytes.data(), bytes.size());
    size_t from = 0;
    for (size_t end; (end = unread_.find('\n', from)) != std::string::npos; from = end + 1) {
      TakeLine(absl::string_view(unread_).substr(from, end - from), now);
    }
    unread_.erase(0, from);
    if (unread_.size() <= kMaxLineBytes) return true;
    result_->error = absl::StrCat("a line of more than ", kMaxLineBytes, " bytes");
    return false;
  }

  // Events are one "data:" line each, ended by "\n" or "\r\n"; other fields and comments mean nothing here.
  void TakeLine(absl::string_view line, double now) {
    if (!absl::ConsumePrefix(&line, "data:")) return;
    const absl::string_view event = absl::StripAsciiWhitespace(line);
    if (event == "[DONE]") {
      done_ = true;
      return;
    }
    const auto json = nlohmann::json::parse(event.begin(), event.end(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      result_->error = "an event that is no JSON object";
      return;
    }
    if (json.contains("error")) result_->error = json["error"].dump().substr(0, kMaxErrorBytes);
    if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
      const auto tokens = usage->find("completion_tokens");
      if (tokens != usage->end() && tokens->is_number_unsigned()) {
        result_->completion_tokens = tokens->get<int64_t>();
      }
    }
    const auto choices = json.find("choices");
    if (choices == json.end() || !choices->is_array()) return;
    for (const auto& choice : *choices) {
      if (HasText(choice)) TakePiece(now);
    }
  }

  static bool HasText(const nlohmann::json& choice) {
    if (!choice.is_object()) return false;
    const auto delta = choice.find("delta");
    const nlohmann::json& holder = delta != choice.end() ? *delta : choice;
    if (!holder.is_object()) return false;
    for (const char* name : {"content", "text", "reasoning_content"}) {
      const auto text = holder.find(name);
      if (text != holder.end() && text->is_string() && !text->get_ref<const std::string&>().empty())
        return true;
    }
    return false;
  }

  void TakePiece(double now) {
    if (pieces_++ == 0) {
      result_->ttft = now;
    } else {
      result_->inter_token.push_back(now - last_piece_);
    }
    last_piece_ = now;
  }

  const size_t index_;
  const LoadRequest* const request_;
  const Clock::time_point start_;
  LoadResult* const result_;
  Handle handle_;
  std::string beginning_;  // of the body: what an error says
  std::string unread_;
  double last_piece_ = 0;
  int64_t pieces_ = 0;
  bool done_ = false;
};

}  // namespace

absl::StatusOr<std::vector<LoadResult>> RunLoad(const LoadTarget& target,
                                                const std::vector<LoadRequest>& requests,
                                                const std::function<bool(int64_t done)>& progress) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)> multi(curl_multi_init(), curl_multi_cleanup);
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");
  if (!target.api_key.empty()) {
    list = curl_slist_append(list, absl::StrCat("Authorization: Bearer ", target.api_key).c_str());
  }
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, curl_slist_free_all);
  if (multi == nullptr || headers == nullptr) return absl::InternalError("libcurl cannot be set up");
  curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(target.max_connections));
  curl_multi_setopt(multi.get(), CURLMOPT_MAX_TOTAL_CONNECTIONS, static_cast<long>(target.max_connections));

  std::vector<LoadResult> results(requests.size());
  std::vector<std::unique_ptr<Transfer>> transfers(requests.size());
  const Clock::time_point start = Clock::now();
  size_t next = 0;
  int64_t done = 0;
  while (done < static_cast<int64_t>(requests.size())) {
    for (; next < requests.size() && requests[next].arrival <= Since(start); ++next) {
      transfers[next] = std::make_unique<Transfer>(next, requests[next], start, &results[next]);
      transfers[next]->Prepare(target, headers.get());
      curl_multi_add_handle(multi.get(), transfers[next]->handle());
    }
    int running = 0;
    curl_multi_perform(multi.get(), &running);
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(multi.get(), transfer->handle());
      transfer->End(code);
      ++done;
      transfers[transfer->index()].reset();
    }
    if (!progress(done)) break;
    const double wait = next < requests.size() ? requests[next].arrival - Since(start) : 1;
    const int wait_ms = std::clamp(static_cast<int>(wait * 1e3), 0, kMaxPollMs);
    if (wait_ms > 0) curl_multi_poll(multi.get(), nullptr, 0, wait_ms, nullptr);
  }
  for (const auto& transfer : transfers) {
    if (transfer == nullptr) continue;
    curl_multi_remove_handle(multi.get(), transfer->handle());
    transfer->End(CURLE_ABORTED_BY_CALLBACK);
  }
  results.resize(next);
  return results;
}

}  // namespace aludel
