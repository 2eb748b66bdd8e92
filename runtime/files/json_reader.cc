#include "runtime/files/json_reader.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_builder.h"
#include "runtime/files/regular_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

absl::Status WrongType(absl::string_view origin, const char* name, const json& found,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(origin, ": ", name, " is ", DescribeJson(found), ", want ", expected));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  ALUDEL_RETURN_IF_ERROR(CheckRegularFile(path));
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr) {
    const int error = errno;
    const std::string message = absl::StrCat(path, ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  std::string content;
  std::vector<char> chunk(size_t{1} << 18);
  while (true) {
    const size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get());
    content.append(chunk.data(), count);
    if (content.size() > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": file is larger than the ", max_bytes, " bytes that are read of such a file"));
    }
    if (count < chunk.size()) break;
  }
  if (std::ferror(file.get())) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  return content;
}

absl::StatusOr<json> ParseJson(absl::string_view text, absl::string_view origin, int max_depth) {
  json value;
  JsonFault fault;
  if (JsonBuilder<json>::Parse(text, {.max_depth = max_depth}, &value, &fault)) return value;
  switch (fault.kind) {
    case JsonFault::Kind::kDepth:
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": JSON nests deeper than the ", max_depth, " levels expected"));
    case JsonFault::Kind::kDuplicate:
      return absl::InvalidArgumentError(absl::StrCat(origin, ": key \"", fault.key, "\" appears twice"));
    case JsonFault::Kind::kStopped:
      return CheckStop();
    default:
      return absl::InvalidArgumentError(absl::StrCat(origin, ": not valid JSON: ", fault.message));
  }
}

std::string DescribeJson(const json& value) {
  constexpr size_t kShown = 60;
  if (value.is_null()) return "null";
  if (value.is_structured()) {
    return absl::StrCat("an ", value.type_name(), " of ", value.size(), " members");
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShown) text = absl::StrCat(text.substr(0, kShown), "...");
  return text;
}

absl::Status CheckMembers(const json& object, std::initializer_list<absl::string_view> known,
                          absl::string_view origin) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, " is ", DescribeJson(object), ", want an object"));
  }
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), absl::string_view(name)) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": ", name, " (", DescribeJson(value), ") is not supported"));
    }
  }
  return absl::OkStatus();
}

const json* FindMember(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<int64_t> IntMember(const json& object, const char* name, int64_t fallback, int64_t min,
                                  int64_t max, absl::string_view origin) {
  const json* member = FindMember(object, name);
  if (member == nullptr) return fallback;
  const std::string expected = absl::StrCat("an integer in [", min, ", ", max, "]");
  if (!member->is_number_integer()) return WrongType(origin, name, *member, expected);
  // An unsigned value above int64 would wrap in get<int64_t>().
  if (member->is_number_unsigned() && member->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return WrongType(origin, name, *member, expected);
  }
  const int64_t value = member->get<int64_t>();
  if (value < min || value > max) return WrongType(origin, name, *member, expected);
  return value;
}

absl::StatusOr<double> NumberMember(const json& object, const char* name, double fallback, double min,
                                    double max, absl::string_view origin) {
  const json* member = FindMember(object, name);
  if (member == nullptr) return fallback;
  const std::string expected = absl::StrCat("a number in [", min, ", ", max, "]");
  if (!member->is_number()) return WrongType(origin, name, *member, expected);
  const double value = member->get<double>();
  if (!std::isfinite(value) || value < min || value > max) return WrongType(origin, name, *member, expected);
  return value;
}

absl::StatusOr<bool> BoolMember(const json& object, const char* name, bool fallback,
                                absl::string_view origin) {
  const json* member = FindMember(object, name);
  if (member == nullptr) return fallback;
  if (!member->is_boolean()) return WrongType(origin, name, *member, "true or false");
  return member->get<bool>();
}

absl::StatusOr<std::string> StringMember(const json& object, const char* name, const std::string& fallback,
                                         absl::string_view origin) {
  const json* member = FindMember(object, name);
  if (member == nullptr) return fallback;
  if (!member->is_string()) return WrongType(origin, name, *member, "a string");
  return member->get<std::string>();
}

}  // namespace aludel
