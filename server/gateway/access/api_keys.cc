#include "server/gateway/access/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/files/regular_file.h"

namespace aludel {
namespace {

// Every request is compared with every key.
constexpr size_t kMaxKeys = 10000;
constexpr uint32_t kMaxLimit = 1000000000;
constexpr uint32_t kMaxWeight = 1000;

bool IsSha256Hex(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

absl::Status ReadLimit(absl::string_view word, const std::string& where, KeyLimits* limits) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  uint32_t value = 0;
  if (!absl::SimpleAtoi(parts.second, &value) || value > kMaxLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": found \"", word, "\", want NAME=NUMBER with a number from 0 to ", kMaxLimit));
  }
  if (parts.first == "requests_per_minute") {
    limits->requests_per_minute = value;
  } else if (parts.first == "tokens_per_minute") {
    limits->tokens_per_minute = value;
  } else if (parts.first == "max_concurrent") {
    limits->max_concurrent = static_cast<int>(value);
  } else if (parts.first == "max_n") {
    limits->max_n = static_cast<int>(value);
  } else if (parts.first == "weight") {
    if (value < 1 || value > kMaxWeight) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": found \"", word, "\", want a weight from 1 to ", kMaxWeight));
    }
    limits->weight = static_cast<int>(value);
  } else if (parts.first == "may_set_priority" || parts.first == "admin") {
    if (value > 1)
      return absl::InvalidArgumentError(absl::StrCat(where, ": found \"", word, "\", want 0 or 1"));
    (parts.first == "admin" ? limits->admin : limits->may_set_priority) = value == 1;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": found \"", parts.first,
                     "\", want requests_per_minute, tokens_per_minute, max_concurrent, max_n, weight, "
                     "may_set_priority or admin"));
  }
  return absl::OkStatus();
}

}  // namespace

std::array<uint8_t, 32> HashApiKey(absl::string_view key) {
  std::array<uint8_t, 32> hash;
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), hash.data());
  return hash;
}

absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(absl::string_view text, const std::string& path,
                                                 const KeyLimits& defaults) {
  std::vector<ApiKey> keys;
  std::set<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string where = absl::StrCat(path, ":", ++number);
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() < 2 || !IsSha256Hex(words[1])) {
      // What stands there may be a key in the clear: it is not repeated.
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": want NAME SHA256-IN-HEX, the hash being 64 hex digits"));
    }
    ApiKey key{.name = std::string(words[0]), .limits = defaults};
    if (!names.insert(key.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": found name \"", key.name, "\" twice, want each once"));
    }
    const std::string hash = absl::HexStringToBytes(words[1]);
    std::copy(hash.begin(), hash.end(), key.sha256.begin());
    for (size_t i = 2; i < words.size(); ++i) {
      if (absl::Status status = ReadLimit(words[i], where, &key.limits); !status.ok()) return status;
    }
    keys.push_back(std::move(key));
    if (keys.size() > kMaxKeys) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": more than ", kMaxKeys, " keys"));
    }
  }
  return keys;
}

absl::StatusOr<std::vector<ApiKey>> LoadApiKeys(const std::string& path, const KeyLimits& defaults) {
  if (absl::Status regular = CheckRegularFile(path); !regular.ok()) return regular;
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.is_open() || in.bad()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot read API keys: ", std::strerror(errno)));
  }
  return ParseApiKeys(text, path, defaults);
}

}  // namespace aludel
