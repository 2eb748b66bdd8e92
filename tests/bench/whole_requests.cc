#include "tests/bench/whole_requests.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr int kHeadKinds = 14;
constexpr int kBodyKinds = 16;
// The gateway's bound on a header, less what every request has.
constexpr size_t kHeaderRoom = 15 << 10;
constexpr const char* kTargets[] = {"/",      "/v1/models", "/v1/models/chat", "/health",
                                    "/ready", "/version",   "/metrics"};
constexpr const char* kPosts[] = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"};
constexpr const char* kFill[] = {"a",  "%41", "&",  "=",        "/", ";",  ",", " ",
                                 "\t", "%",   "..", "\xc3\xa9", "0", "\"", "{", "["};

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

std::string WholeRequest::Bytes(const std::string& key) const {
  std::string head = absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: x\r\n");
  if (keyed) absl::StrAppend(&head, "Authorization: Bearer ", key, "\r\n");
  head += headers;
  std::string tail;
  if (chunk_bytes > 0) {
    head += "Transfer-Encoding: chunked\r\n";
    for (size_t at = 0; at < body.size(); at += chunk_bytes) {
      const std::string chunk = body.substr(at, chunk_bytes);
      absl::StrAppend(&tail, absl::Hex(chunk.size()), between, "\r\n", chunk, "\r\n");
    }
    absl::StrAppend(&tail, "0", between, "\r\n", trailers, "\r\n");
  } else if (method == "POST" || !body.empty()) {
    absl::StrAppend(&head, "Content-Length: ", body.size(), "\r\n");
    tail = body;
  }
  std::string bytes;
  for (int i = 1; i < times; ++i) absl::StrAppend(&bytes, head, "\r\n", tail);
  absl::StrAppend(&bytes, head, "Connection: close\r\n\r\n", tail);
  return bytes;
}

size_t WholeRequests::Size(size_t most) {
  int bits = 0;
  while (size_t{1} << (bits + 1) <= most) ++bits;
  const int64_t scale = int64_t{1} << Up(bits + 1);
  return std::min(static_cast<size_t>(scale + Up(scale)), most);
}

std::string WholeRequests::Filled(size_t bytes) {
  const int64_t few = 1 + Up(static_cast<int64_t>(std::size(kFill)));
  const int64_t first = Up(static_cast<int64_t>(std::size(kFill)));
  std::string text;
  while (text.size() < bytes) text += kFill[(first + Up(few)) % std::size(kFill)];
  return text;
}

std::string WholeRequests::Tokens(size_t count) {
  std::string text;
  const int64_t below = Up(3) == 0 ? int64_t{1} << 40 : 500;
  for (size_t i = 0; i < count; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", Up(below));
  return text;
}

WholeRequest WholeRequests::Plain(const std::string& kind, const std::string& target) {
  return {.kind = kind,
          .method = "GET",
          .target = target,
          .headers = {},
          .body = {},
          .keyed = Up(3) != 0,
          .between = {},
          .trailers = {}};
}

WholeRequest WholeRequests::Posted(const std::string& kind, const std::string& target,
                                   const std::string& body) {
  WholeRequest request = Plain(kind, target);
  request.method = "POST";
  request.body = body;
  request.keyed = Up(8) != 0;
  if (Up(6) == 0) request.chunk_bytes = Size(4096);
  return request;
}

// What costs before a body is looked at.
WholeRequest WholeRequests::OfHead(int kind) {
  const std::string target = kTargets[Up(static_cast<int64_t>(std::size(kTargets)))];
  switch (kind) {
    case 0:
      return Plain("head: a route", target);
    case 1: {
      WholeRequest request = Plain("head: a pipeline", target);
      request.times = static_cast<int>(Size(500));
      return request;
    }
    case 2: {
      WholeRequest request = Plain("head: many fields", target);
      const size_t most = Size(kHeaderRoom);
      while (request.headers.size() < most) request.headers += "a:\r\n";
      return request;
    }
    case 3: {
      WholeRequest request = Plain("head: a long field", target);
      const char* const names[] = {"Authorization", "Origin", "traceparent", "x-request-id",
                                   "Expect",        "Cookie", "Accept"};
      absl::StrAppend(&request.headers, names[Up(7)], ": Bearer ", Filled(Size(kHeaderRoom)), "\r\n");
      request.keyed = false;
      return request;
    }
    case 4:
      return Plain("head: a long query", absl::StrCat("/ready?model=", Filled(Size(kHeaderRoom))));
    case 5:
      return Plain("head: a long model", absl::StrCat("/v1/models/", Filled(Size(kHeaderRoom))));
    case 6:
      return Plain("head: a long path", absl::StrCat("/", Filled(Size(kHeaderRoom))));
    case 7: {
      WholeRequest request = Plain("head: preflight", target);
      request.method = "OPTIONS";
      absl::StrAppend(&request.headers, "Origin: https://x\r\nAccess-Control-Request-Method: POST\r\n",
                      "Access-Control-Request-Headers: ", Filled(Size(kHeaderRoom)), "\r\n");
      return request;
    }
    case 8: {
      WholeRequest request = Plain("head: a body that no route takes", target);
      request.body = Filled(Size(max_bytes_));
      return request;
    }
    case 9: {
      WholeRequest request = Plain("head: chunks that no route takes", target);
      request.body = Filled(Size(max_bytes_ / 16));
      request.chunk_bytes = 1;
      return request;
    }
    case 10: {
      WholeRequest request = Plain("head: a method", target);
      request.method = Up(2) == 0 ? "HEAD" : std::string(Size(2000), 'M');
      return request;
    }
    case 11: {
      WholeRequest request = Posted("head: trailers", kPosts[Up(4)], "{}");
      request.chunk_bytes = 1;
      const size_t most = Size(max_bytes_ / 8);
      while (request.trailers.size() < most) request.trailers += "a: b\r\n";
      return request;
    }
    case 12: {
      WholeRequest request = Posted("head: chunk extensions", kPosts[Up(4)], std::string(Size(200000), ' '));
      request.chunk_bytes = 1;
      request.between = absl::StrCat(";a=", std::string(Size(200), 'x'));
      return request;
    }
    default: {
      WholeRequest request = Posted("head: a pipeline of posts", kPosts[Up(4)], "{}");
      request.times = static_cast<int>(Size(300));
      return request;
    }
  }
}

// What costs once it has a key and a body.
WholeRequest WholeRequests::OfBody(int kind) {
  const auto text = [this](size_t most) { return Escaped(Filled(Size(most))); };
  switch (kind) {
    case 0:
      return Posted("tokenize: a long text", "/tokenize",
                    absl::StrCat(R"({"model":"chat","prompt":")", text(max_bytes_), "\"",
                                 Up(2) == 0 ? R"(,"return_token_strs":true)" : "", "}"));
    case 1:
      return Posted("tokenize: one long word", "/tokenize",
                    absl::StrCat(R"({"model":"chat","prompt":")", std::string(Size(max_bytes_), 'a'),
                                 R"(","return_token_strs":true})"));
    case 2: {
      std::string body = bodies_.Next().text;
      if (Up(2) == 0 && !body.empty() && body.back() == '}') {
        body.back() = ',';
        body += R"("return_token_strs":true})";
      }
      return Posted("tokenize: a chat", "/tokenize", body);
    }
    case 3:
      return Posted("tokenize: escapes", "/tokenize",
                    absl::StrCat(R"({"model":"chat","prompt":")",
                                 [&] {
                                   std::string all;
                                   const size_t most = Size(max_bytes_);
                                   while (all.size() < most) all += Up(2) == 0 ? "\\u0000" : "\\ud83d\\ude00";
                                   return all;
                                 }(),
                                 R"(","return_token_strs":true})"));
    case 4:
    case 5:
      return Posted("detokenize: many tokens", "/detokenize",
                    absl::StrCat(R"({"model":"chat","tokens":[)", Tokens(Size(max_bytes_ / 4)), "]}"));
    case 6:
      return Posted("detokenize: one token", "/detokenize", [&] {
        const std::string one = absl::StrCat(Up(500), ",");
        std::string all = R"({"model":"chat","tokens":[)";
        for (size_t count = Size(max_bytes_ / 4); count > 0; --count) all += one;
        return all + "1]}";
      }());
    case 7:
      return Posted("completions: a long text", "/v1/completions",
                    absl::StrCat(R"({"model":"chat","prompt":")", text(max_bytes_), "\"}"));
    case 8:
      return Posted("completions: tokens", "/v1/completions",
                    absl::StrCat(R"({"model":"chat","prompt":[)", Tokens(Size(max_bytes_ / 4)), "]}"));
    case 9:
      return Posted("completions: many prompts", "/v1/completions", [&] {
        std::string all = R"({"model":"chat","prompt":[)";
        for (size_t count = Size(max_bytes_ / 8); count > 0; --count) all += Up(2) == 0 ? "\"a\"," : "[1],";
        return all + "\"a\"]}";
      }());
    case 10:
      return Posted(
          "completions: choices and log-probabilities", "/v1/completions",
          absl::StrCat(R"({"model":"chat","prompt":"a","n":)", Up(200), R"(,"logprobs":)", Up(30),
                       R"(,"stream":)", Up(2) == 0 ? "true" : "false", R"(,"stop":[")", text(4000), "\"]}"));
    case 11:
      return Posted("completions: unknown fields", "/v1/completions", [&] {
        std::string all = R"({"model":"chat","prompt":"a")";
        const size_t count = Size(max_bytes_ / 16);
        for (size_t i = 0; i < count; ++i) absl::StrAppend(&all, ",\"f", i, "\":0");
        return all + "}";
      }());
    case 12:
      return Posted("completions: a long model", "/v1/completions",
                    absl::StrCat(R"({"prompt":"a","model":")", text(max_bytes_), "\"}"));
    case 13:
      return Posted("not for this route", kPosts[Up(4)], Filled(Size(max_bytes_)));
    default:
      break;
  }
  RequestBody chat = bodies_.Next();
  return Posted(absl::StrCat("chat: ", chat.kind), "/v1/chat/completions", chat.text);
}

WholeRequest WholeRequests::Next() {
  const int kind = next_++ % (kHeadKinds + kBodyKinds);
  return kind < kHeadKinds ? OfHead(kind) : OfBody(kind - kHeadKinds);
}

void WholeRequests::ChangeText(std::string* text, const std::string& other, size_t most) {
  const auto place = [this](const std::string& of) {
    return static_cast<size_t>(Up(static_cast<int64_t>(of.size()) + 1));
  };
  switch (Up(6)) {
    case 0: {  // a piece again and again
      const size_t at = place(*text);
      const std::string piece = text->substr(at, Size(std::max<size_t>(text->size() / 2, 1)));
      for (size_t times = Size(1000); times > 0 && text->size() + piece.size() <= most; --times)
        text->insert(at, piece);
      break;
    }
    case 1:  // a piece less
      text->erase(place(*text), Size(std::max<size_t>(text->size(), 1)));
      break;
    case 2:  // a piece of another one
      text->insert(place(*text), other.substr(place(other), Size(std::max<size_t>(other.size(), 1))));
      break;
    case 3: {  // other numbers
      for (char& c : *text) {
        if (c >= '0' && c <= '9' && Up(4) == 0) c = static_cast<char>('0' + Up(10));
      }
      break;
    }
    case 4:  // one byte
      if (!text->empty()) (*text)[place(*text) % text->size()] = "\"\\{}[],:09aZ -.eE%\x80"[Up(19)];
      break;
    default:
      text->insert(place(*text), Filled(Size(64)));
  }
  if (text->size() > most) text->resize(most);
}

WholeRequest WholeRequests::Change(const WholeRequest& request, const WholeRequest& other) {
  WholeRequest changed = request;
  if (!changed.kind.ends_with(", changed")) changed.kind += ", changed";
  for (int64_t count = 1 + Up(3); count > 0; --count) {
    switch (Up(12)) {
      case 0:
        ChangeText(&changed.headers, other.headers, kHeaderRoom);
        break;
      case 1:
        ChangeText(&changed.target, other.target, kHeaderRoom);
        break;
      case 2:
        changed.chunk_bytes = Up(2) == 0 ? 0 : Size(4096);
        break;
      case 3:
        changed.times = static_cast<int>(Size(100));
        break;
      case 4:
        changed.keyed = Up(4) != 0;
        break;
      default:
        ChangeText(&changed.body, other.body, max_bytes_);
    }
  }
  while (changed.times > 1 && changed.times * changed.body.size() > max_bytes_) changed.times /= 2;
  return changed;
}

}  // namespace aludel
