#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_template/jinja_value.h"

namespace aludel {

// What a rendering may still do. Every step of the evaluator and every byte or item that a builtin makes is
// charged, so that a template cannot run or grow without end.
class JinjaBudget {
 public:
  JinjaBudget(int64_t steps, size_t max_text_bytes) : steps_(steps), max_text_bytes_(max_text_bytes) {}

  absl::Status Step() { return Take(1); }
  // For `bytes` of text that are about to exist in one string.
  absl::Status Text(size_t bytes);
  // Whether one string may be that long.
  absl::Status Fits(size_t bytes) const;
  // For `items` that are about to be walked or listed.
  absl::Status Items(size_t items);

 private:
  absl::Status Take(int64_t steps);

  int64_t steps_;
  size_t max_text_bytes_;
};

// Filters, tests, methods of plain data, and global functions, as Jinja2 and HuggingFace's additions
// define them.
bool IsJinjaFilter(absl::string_view name);
bool IsJinjaTest(absl::string_view name);
absl::StatusOr<JinjaValue> ApplyJinjaFilter(const std::string& name, const JinjaValue& operand,
                                            const JinjaArguments& arguments, JinjaBudget* budget);
absl::StatusOr<bool> ApplyJinjaTest(const std::string& name, const JinjaValue& operand,
                                    const JinjaArguments& arguments);
// `object.name`: a bound method, a member, or undefined.
absl::StatusOr<JinjaValue> JinjaAttribute(const JinjaValue& object, const std::string& name,
                                          JinjaBudget* budget);
// `object[key]`.
absl::StatusOr<JinjaValue> JinjaItem(const JinjaValue& object, const JinjaValue& key, JinjaBudget* budget);
// object[start:stop:step]; nullptr where a bound is left out.
absl::StatusOr<JinjaValue> JinjaSlice(const JinjaValue& object, const JinjaValue* start,
                                      const JinjaValue* stop, const JinjaValue* step, JinjaBudget* budget);
// What a loop over `value` sees: items, keys of a dictionary, characters of a string, nothing of undefined.
absl::StatusOr<JinjaValue::List> JinjaIterate(const JinjaValue& value, JinjaBudget* budget);
// `item in container`.
absl::StatusOr<bool> JinjaContains(const JinjaValue& container, const JinjaValue& item);
// Left operator right, for + - * / // % **.
absl::StatusOr<JinjaValue> JinjaArithmetic(const std::string& name, const JinjaValue& left,
                                           const JinjaValue& right, JinjaBudget* budget);
// range, namespace, dict, raise_exception, strftime_now; undefined for other names.
JinjaValue JinjaGlobal(const std::string& name, JinjaBudget* budget);

}  // namespace aludel
