#include "server/bench/load_client.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"
#include "server/http/client/http_client.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxErrorBytes = 300;
// A line of a stream that is longer is no event of a completion's.
constexpr size_t kMaxLineBytes = 4 << 20;
constexpr double kProgressSeconds = 0.1;  // at least so often
// Pieces that come one after the other faster are of one read: the parser hands over every chunk by itself, some
// microseconds apart.
constexpr double kOneRead = 100e-6;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One request on its way: cuts the stream into events and takes the time of each piece of text.
class Transfer {
 public:
  Transfer(const LoadRequest& request, double arrival, Clock::time_point start, LoadResult* result)
      : start_(start), result_(result) {
    result_->arrival = arrival;
    result_->asked_tokens = request.max_tokens;
  }

  // A piece of the answer; an error where what comes is no stream of events.
  absl::Status Take(absl::string_view bytes) {
    const double now = Now();
    const absl::string_view begin = bytes.substr(0, kMaxErrorBytes - beginning_.size());
    beginning_.append(begin.data(), begin.size());
    unread_.append(bytes.data(), bytes.size());
    size_t from = 0;
    for (size_t end; (end = unread_.find('\n', from)) != std::string::npos; from = end + 1) {
      TakeLine(absl::string_view(unread_).substr(from, end - from), now);
    }
    unread_.erase(0, from);
    if (unread_.size() <= kMaxLineBytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("a line of more than ", kMaxLineBytes, " bytes"));
  }

  void End(int status, const absl::Status& error) {
    result_->status = status;
    result_->e2e = Now();
    CloseRead();
    if (result_->completion_tokens == 0) result_->completion_tokens = pieces_;
    if (!result_->error.empty()) return;
    if (!error.ok()) {
      result_->error = std::string(error.message());
    } else if (status != 200) {
      result_->error = absl::StrCat("HTTP ", status, ": ", absl::StripAsciiWhitespace(beginning_));
    } else if (!done_) {
      result_->error = "the stream ended before [DONE]";
    } else if (pieces_ == 0) {
      result_->error = "an answer without text";
    }
  }

 private:
  double Now() const { return Since(start_) - result_->arrival; }

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
      for (const auto& [name, count] : {std::pair{"prompt_tokens", &result_->prompt_tokens},
                                        {"completion_tokens", &result_->completion_tokens}}) {
        const auto tokens = usage->find(name);
        if (tokens != usage->end() && tokens->is_number_unsigned()) *count = tokens->get<int64_t>();
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
      result_->ttft = read_began_ = last_piece_ = now;
      came_together_ = 1;
      return;
    }
    if (now - last_piece_ > kOneRead) {
      CloseRead();
      before_ = std::exchange(read_began_, now);
      came_together_ = 0;
    }
    // With the second one of a read it is known that the first did not come alone either.
    if (++came_together_ > 1) result_->coalesced += came_together_ == 2 ? 2 : 1;
    ++read_pieces_;
    last_piece_ = now;
  }
  // Nothing more comes of one read; its pieces share the time since the read before it. There is none before the first.
  void CloseRead() {
    if (!before_ || read_pieces_ == 0) return;
    const double share = (read_began_ - *before_) / static_cast<double>(read_pieces_);
    result_->inter_token.insert(result_->inter_token.end(), std::exchange(read_pieces_, 0), share);
  }

  const Clock::time_point start_;
  LoadResult* const result_;
  std::string beginning_;  // of the body: what an error says
  std::string unread_;
  double read_began_ = 0;
  double last_piece_ = 0;
  std::optional<double> before_;  // when the read before this one began
  int64_t came_together_ = 0;     // pieces of this read so far
  size_t read_pieces_ = 0;  // without a time yet: of this read, and of the first but for its first piece
  int64_t pieces_ = 0;
  bool done_ = false;
};

}  // namespace

absl::StatusOr<std::vector<LoadResult>> RunLoad(const LoadTarget& target,
                                                const std::vector<LoadRequest>& requests,
                                                const std::function<bool(int64_t done)>& progress) {
  HttpClientOptions options = {.insecure = target.insecure,
                               .max_connections = static_cast<size_t>(target.max_connections)};
  ALUDEL_ASSIGN_OR_RETURN(options.url, ParseHttpUrl(target.url));
  if (!target.api_key.empty()) {
    options.headers.emplace_back("Authorization", absl::StrCat("Bearer ", target.api_key));
  }
  std::vector<LoadResult> results(requests.size());
  std::vector<std::unique_ptr<Transfer>> transfers(requests.size());
  HttpClient client(std::move(options));
  const Clock::time_point start = Clock::now();
  size_t next = 0;
  int64_t done = 0;
  while (done < static_cast<int64_t>(requests.size())) {
    const auto may_send = [&] {
      if (next >= requests.size()) return false;
      if (target.concurrency > 0) return static_cast<int64_t>(next) - done < target.concurrency;
      return requests[next].arrival <= Since(start);
    };
    for (; may_send(); ++next) {
      const double arrival = target.concurrency > 0 ? Since(start) : requests[next].arrival;
      std::unique_ptr<Transfer>& transfer = transfers[next];
      transfer = std::make_unique<Transfer>(requests[next], arrival, start, &results[next]);
      client.Post(
          requests[next].body, absl::Seconds(target.timeout_seconds),
          [&transfer](absl::string_view bytes) { return transfer->Take(bytes); },
          [&transfer, &done](int status, const absl::Status& error) {
            transfer->End(status, error);
            transfer.reset();
            ++done;
          });
    }
    if (!progress(done)) break;
    const bool timed = target.concurrency == 0 && next < requests.size();
    const double wait = timed ? requests[next].arrival - Since(start) : kProgressSeconds;
    client.RunFor(absl::Seconds(std::clamp(wait, 0.0, kProgressSeconds)));
  }
  client.EndAll(absl::CancelledError("stopped before its end"));
  results.resize(next);
  return results;
}

}  // namespace aludel
