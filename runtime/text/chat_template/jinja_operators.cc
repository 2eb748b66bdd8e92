#include <algorithm>
#include <cmath>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "runtime/files/stop_scope.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_strings.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using Result = absl::StatusOr<JinjaValue>;

// Jinja's own bound for a sandbox.
constexpr int64_t kMaxRange = 100'000;
// Text and steps have one purse: 16 bytes cost as much as a step.
constexpr size_t kBytesPerStep = 16;
constexpr int64_t kStepsPerItem = 4;

absl::Status UndefinedError(const JinjaValue& value) {
  return absl::InvalidArgumentError(absl::StrCat(value.name(), " is undefined"));
}

Result MissingAttribute(const JinjaValue& object, absl::string_view name) {
  if (object.is_undefined()) return UndefinedError(object);
  return JinjaValue::Undefined(absl::StrCat("'", name, "' of ", object.Describe()));
}

JinjaValue Mutator(const std::string& name) {
  return JinjaValue::MakeFunction(name, [name](const JinjaArguments&) -> Result {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' changes its object, which templates may not"));
  });
}

Result Pair(JinjaValue first, JinjaValue second) {
  return JinjaValue::MakeTuple({std::move(first), std::move(second)});
}

std::optional<JinjaValue> DictMethod(const JinjaValue& dict, const std::string& name, JinjaBudget* budget) {
  if (name == "clear" || name == "pop" || name == "popitem" || name == "setdefault" || name == "update") {
    return Mutator(name);
  }
  if (name == "get") {
    return JinjaValue::MakeFunction(name, [dict](const JinjaArguments& arguments) -> Result {
      ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("get", {"key", "default"}));
      if (bound[0] == nullptr) return absl::InvalidArgumentError("get got nothing, wants a key");
      const JinjaValue* found = bound[0]->is_string() ? dict.Find(bound[0]->AsString()) : nullptr;
      if (found != nullptr) return *found;
      return bound[1] != nullptr ? *bound[1] : JinjaValue::None();
    });
  }
  if (name == "copy") {
    return JinjaValue::MakeFunction(name, [dict](const JinjaArguments&) -> Result { return dict; });
  }
  if (name != "items" && name != "keys" && name != "values") return std::nullopt;
  return JinjaValue::MakeFunction(name, [dict, name, budget](const JinjaArguments& arguments) -> Result {
    ALUDEL_RETURN_IF_ERROR(arguments.Bind(name, {}).status());
    ALUDEL_RETURN_IF_ERROR(budget->Items(dict.AsDict().size()));
    JinjaValue::List list;
    for (const auto& [key, value] : dict.AsDict()) {
      if (name == "values") {
        list.push_back(value);
      } else if (name == "keys") {
        list.push_back(JinjaValue::String(key));
      } else {
        ALUDEL_ASSIGN_OR_RETURN(JinjaValue pair, Pair(JinjaValue::String(key), value));
        list.push_back(std::move(pair));
      }
    }
    return JinjaValue::MakeList(std::move(list));
  });
}

std::optional<JinjaValue> ListMethod(const JinjaValue& list, const std::string& name, JinjaBudget* budget) {
  for (const absl::string_view mutator :
       {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}) {
    if (name == mutator && list.kind() == JinjaValue::Kind::kList) return Mutator(name);
  }
  if (name != "index" && name != "count") return std::nullopt;
  return JinjaValue::MakeFunction(name, [list, name, budget](const JinjaArguments& arguments) -> Result {
    ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"value"}));
    if (bound[0] == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(name, " got nothing, wants a value"));
    ALUDEL_RETURN_IF_ERROR(budget->Items(list.AsList().size()));
    int64_t count = 0;
    for (size_t i = 0; i < list.AsList().size(); ++i) {
      if (!JinjaEquals(list.AsList()[i], *bound[0])) continue;
      if (name == "index") return JinjaValue::Int(static_cast<int64_t>(i));
      ++count;
    }
    if (name == "index") return absl::InvalidArgumentError("index: the value is not in the list");
    return JinjaValue::Int(count);
  });
}

// Index of a sequence of `size`, counted from the end where it is negative.
std::optional<size_t> ResolveIndex(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

// The positions that Python's slice selects.
absl::StatusOr<std::vector<size_t>> SliceIndices(const JinjaValue* start, const JinjaValue* stop,
                                                 const JinjaValue* step, size_t size) {
  const auto length = static_cast<int64_t>(size);
  const auto read = [&](const JinjaValue* bound, int64_t fallback) -> absl::StatusOr<int64_t> {
    if (bound == nullptr || bound->is_none()) return fallback;
    if (!bound->is_integral()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a slice bound is ", bound->Describe(), ", want an integer"));
    }
    return bound->AsInt();
  };
  ALUDEL_ASSIGN_OR_RETURN(const int64_t stride, read(step, 1));
  if (stride == 0) return absl::InvalidArgumentError("a slice has step 0");
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? length : length - 1;
  const auto clamp = [&](const JinjaValue* bound, int64_t fallback) -> absl::StatusOr<int64_t> {
    if (bound == nullptr || bound->is_none()) return fallback;
    ALUDEL_ASSIGN_OR_RETURN(int64_t value, read(bound, fallback));
    if (value < 0) value = value < -length ? low : value + length;
    return std::clamp(value, low, high);
  };
  ALUDEL_ASSIGN_OR_RETURN(const int64_t first, clamp(start, stride > 0 ? low : high));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t last, clamp(stop, stride > 0 ? high : low));
  std::vector<size_t> indices;
  // A stride beyond the length selects one position; clamping it keeps the sum from overflowing.
  const int64_t bounded = std::clamp(stride, -length - 1, length + 1);
  for (int64_t i = first; stride > 0 ? i < last : i > last; i += bounded)
    indices.push_back(static_cast<size_t>(i));
  return indices;
}

Result IntArithmetic(const std::string& name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (name == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (name == "**") {
    if (b < 0) return JinjaValue::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = 1;
    if (b > 64 && a != 0 && a != 1 && a != -1) overflow = true;
    if (b > 64) b = 64 + b % 2;  // powers of 0, 1 and -1 repeat
    for (int64_t i = 0; i < b && !overflow; ++i) overflow = __builtin_mul_overflow(result, a, &result);
  } else {
    if (b == 0) return absl::InvalidArgumentError("division by zero");
    if (a == INT64_MIN && b == -1) return absl::InvalidArgumentError("an integer exceeds 64 bits");
    const bool rounds = a % b != 0 && (a < 0) != (b < 0);
    result = name == "//" ? a / b - rounds : a % b + (rounds ? b : 0);
  }
  if (overflow) return absl::InvalidArgumentError("an integer exceeds 64 bits");
  return JinjaValue::Int(result);
}

Result FloatArithmetic(const std::string& name, double a, double b) {
  if (name == "+") return JinjaValue::Float(a + b);
  if (name == "-") return JinjaValue::Float(a - b);
  if (name == "*") return JinjaValue::Float(a * b);
  if (name == "**") return JinjaValue::Float(std::pow(a, b));
  if (b == 0.0) return absl::InvalidArgumentError("division by zero");
  if (name == "/") return JinjaValue::Float(a / b);
  if (name == "//") return JinjaValue::Float(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return JinjaValue::Float(remainder != 0.0 && (remainder < 0.0) != (b < 0.0) ? remainder + b : remainder);
}

Result Repeat(const JinjaValue& value, int64_t count, JinjaBudget* budget) {
  const size_t size = value.is_string() ? value.AsString().size() : value.AsList().size();
  size_t total = 0;
  if (count < 0) count = 0;
  if (__builtin_mul_overflow(size, static_cast<size_t>(count), &total)) total = SIZE_MAX / 8;
  if (value.is_string()) {
    ALUDEL_RETURN_IF_ERROR(budget->Text(total));
    std::string text;
    text.reserve(total);
    for (size_t i = 0; size > 0 && i < total / size; ++i) text += value.AsString();
    return JinjaValue::String(std::move(text));
  }
  ALUDEL_RETURN_IF_ERROR(budget->Items(total));
  JinjaValue::List list;
  for (size_t i = 0; i < total; ++i) list.push_back(value.AsList()[i % size]);
  return value.kind() == JinjaValue::Kind::kList ? JinjaValue::MakeList(std::move(list))
                                                 : JinjaValue::MakeTuple(std::move(list));
}

Result Range(const JinjaArguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("range", {"start", "stop", "step"}));
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i] == nullptr) continue;
    if (!bound[i]->is_integral()) {
      return absl::InvalidArgumentError(absl::StrCat("range got ", bound[i]->Describe(), ", wants integers"));
    }
    numbers[i] = bound[i]->AsInt();
  }
  if (bound[0] == nullptr) return absl::InvalidArgumentError("range got nothing, wants integers");
  if (bound[1] == nullptr) {
    numbers[1] = numbers[0];
    numbers[0] = 0;
  }
  if (numbers[2] == 0) return absl::InvalidArgumentError("range has step 0");
  const double count = std::ceil((static_cast<double>(numbers[1]) - static_cast<double>(numbers[0])) /
                                 static_cast<double>(numbers[2]));
  if (count > kMaxRange) {
    return absl::InvalidArgumentError(absl::StrCat("range has ", count, " items, wants at most ", kMaxRange));
  }
  ALUDEL_RETURN_IF_ERROR(budget->Items(static_cast<size_t>(std::max(count, 0.0))));
  JinjaValue::List list;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
    list.push_back(JinjaValue::Int(numbers[0] + i * numbers[2]));
  }
  return JinjaValue::MakeList(std::move(list));
}

Result Namespace(const JinjaArguments& arguments) {
  const JinjaValue result = JinjaValue::MakeNamespace();
  if (arguments.positional.size() > 1 ||
      (arguments.positional.size() == 1 && !arguments.positional[0].is_dict())) {
    return absl::InvalidArgumentError("namespace wants named values, or one dictionary");
  }
  if (!arguments.positional.empty()) {
    for (const auto& [name, value] : arguments.positional[0].AsDict()) result.SetMember(name, value);
  }
  for (const auto& [name, value] : arguments.named) {
    if (!value.is_data())
      return absl::InvalidArgumentError(absl::StrCat("a namespace cannot hold ", value.Describe()));
    result.SetMember(name, value);
  }
  return result;
}

Result MakeDictionary(const JinjaArguments& arguments) {
  JinjaValue::Dict items;
  for (const JinjaValue& value : arguments.positional) {
    if (!value.is_dict()) return absl::InvalidArgumentError("dict wants a dictionary or named values");
    items.insert(items.end(), value.AsDict().begin(), value.AsDict().end());
  }
  items.insert(items.end(), arguments.named.begin(), arguments.named.end());
  return JinjaValue::MakeDict(std::move(items));
}

Result StrftimeNow(const JinjaArguments& arguments) {
  constexpr size_t kMaxDate = 1024;
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("strftime_now", {"format"}));
  if (bound[0] == nullptr || !bound[0]->is_string()) {
    return absl::InvalidArgumentError("strftime_now wants a format string");
  }
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[kMaxDate];
  const size_t written = std::strftime(buffer, sizeof(buffer), bound[0]->AsString().c_str(), &local);
  return JinjaValue::String(ReplaceInvalidUtf8(absl::string_view(buffer, written)));
}

Result RaiseException(const JinjaArguments& arguments) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("raise_exception", {"message"}));
  // Aborted tells the template's own errors from ours until Render has seen them.
  return absl::AbortedError(bound[0] == nullptr ? "the chat template raised an exception"
                                                : JinjaText(*bound[0]));
}

}  // namespace

absl::Status JinjaBudget::Take(int64_t steps) {
  steps_ -= steps;
  if (steps_ >= 0) return CheckStop();
  return absl::InvalidArgumentError("the template exceeds its bound on steps and text");
}

absl::Status JinjaBudget::Fits(size_t bytes) const {
  if (bytes <= max_text_bytes_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a text of ", bytes, " bytes exceeds the bound of ", max_text_bytes_));
}

absl::Status JinjaBudget::Text(size_t bytes) {
  ALUDEL_RETURN_IF_ERROR(Fits(bytes));
  return Take(static_cast<int64_t>(bytes / kBytesPerStep) + 1);
}

absl::Status JinjaBudget::Items(size_t items) {
  if (items > static_cast<size_t>(std::max<int64_t>(steps_, 0))) return Take(steps_ + 1);
  return Take(kStepsPerItem * static_cast<int64_t>(items));
}

Result JinjaAttribute(const JinjaValue& object, const std::string& name, JinjaBudget* budget) {
  switch (object.kind()) {
    case JinjaValue::Kind::kString: {
      std::optional<JinjaValue> method = JinjaStringMethod(object.AsString(), name, budget);
      if (method.has_value()) return *std::move(method);
      break;
    }
    case JinjaValue::Kind::kDict: {
      std::optional<JinjaValue> method = DictMethod(object, name, budget);
      if (method.has_value()) return *std::move(method);
      if (const JinjaValue* found = object.Find(name); found != nullptr) return *found;
      break;
    }
    case JinjaValue::Kind::kNamespace:
      if (const JinjaValue* found = object.Find(name); found != nullptr) return *found;
      break;
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple: {
      std::optional<JinjaValue> method = ListMethod(object, name, budget);
      if (method.has_value()) return *std::move(method);
      break;
    }
    case JinjaValue::Kind::kObject:
      return object.AsObject()->Attribute(name);
    default:
      break;
  }
  return MissingAttribute(object, name);
}

Result JinjaItem(const JinjaValue& object, const JinjaValue& key, JinjaBudget* budget) {
  if (object.is_dict() && key.is_string()) {
    if (const JinjaValue* found = object.Find(key.AsString()); found != nullptr) return *found;
  }
  if (object.is_sequence() && key.is_integral()) {
    const std::optional<size_t> index = ResolveIndex(key.AsInt(), object.AsList().size());
    if (index.has_value()) return object.AsList()[*index];
  }
  if (object.is_string() && key.is_integral()) {
    ALUDEL_RETURN_IF_ERROR(budget->Text(object.AsString().size()));
    const std::vector<absl::string_view> characters = SplitCodePoints(object.AsString());
    const std::optional<size_t> index = ResolveIndex(key.AsInt(), characters.size());
    if (index.has_value()) return JinjaValue::String(std::string(characters[*index]));
  }
  if (key.is_string()) return JinjaAttribute(object, key.AsString(), budget);
  return MissingAttribute(object, JinjaText(key));
}

Result JinjaSlice(const JinjaValue& object, const JinjaValue* start, const JinjaValue* stop,
                  const JinjaValue* step, JinjaBudget* budget) {
  if (object.is_string()) {
    ALUDEL_RETURN_IF_ERROR(budget->Text(object.AsString().size()));
    const std::vector<absl::string_view> characters = SplitCodePoints(object.AsString());
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<size_t> indices,
                            SliceIndices(start, stop, step, characters.size()));
    std::string text;
    for (const size_t i : indices) absl::StrAppend(&text, characters[i]);
    return JinjaValue::String(std::move(text));
  }
  if (!object.is_sequence()) {
    if (object.is_undefined()) return UndefinedError(object);
    return absl::InvalidArgumentError(absl::StrCat("cannot slice ", object.Describe()));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<size_t> indices,
                          SliceIndices(start, stop, step, object.AsList().size()));
  ALUDEL_RETURN_IF_ERROR(budget->Items(indices.size()));
  JinjaValue::List list;
  for (const size_t i : indices) list.push_back(object.AsList()[i]);
  return object.kind() == JinjaValue::Kind::kList ? JinjaValue::MakeList(std::move(list))
                                                  : JinjaValue::MakeTuple(std::move(list));
}

absl::StatusOr<JinjaValue::List> JinjaIterate(const JinjaValue& value, JinjaBudget* budget) {
  JinjaValue::List list;
  switch (value.kind()) {
    case JinjaValue::Kind::kUndefined:
      return list;
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      ALUDEL_RETURN_IF_ERROR(budget->Items(value.AsList().size()));
      return value.AsList();
    case JinjaValue::Kind::kDict:
      ALUDEL_RETURN_IF_ERROR(budget->Items(value.AsDict().size()));
      for (const auto& [key, item] : value.AsDict()) list.push_back(JinjaValue::String(key));
      return list;
    case JinjaValue::Kind::kString: {
      const std::vector<absl::string_view> characters = SplitCodePoints(value.AsString());
      ALUDEL_RETURN_IF_ERROR(budget->Items(characters.size()));
      for (const absl::string_view character : characters)
        list.push_back(JinjaValue::String(std::string(character)));
      return list;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("cannot iterate over ", value.Describe()));
  }
}

absl::StatusOr<bool> JinjaContains(const JinjaValue& container, const JinjaValue& item) {
  if (container.is_undefined()) return false;
  if (container.is_dict()) return item.is_string() && container.Find(item.AsString()) != nullptr;
  if (container.is_sequence()) {
    return std::any_of(container.AsList().begin(), container.AsList().end(),
                       [&](const JinjaValue& member) { return JinjaEquals(member, item); });
  }
  if (container.is_string() && item.is_string()) {
    return container.AsString().find(item.AsString()) != std::string::npos;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot look for ", item.Describe(), " in ", container.Describe()));
}

Result JinjaArithmetic(const std::string& name, const JinjaValue& left, const JinjaValue& right,
                       JinjaBudget* budget) {
  if (left.is_integral() && right.is_integral() && name != "/") {
    return IntArithmetic(name, left.AsInt(), right.AsInt());
  }
  if (left.is_number() && right.is_number()) return FloatArithmetic(name, left.AsFloat(), right.AsFloat());
  if (name == "+" && left.is_string() && right.is_string()) {
    ALUDEL_RETURN_IF_ERROR(budget->Text(left.AsString().size() + right.AsString().size()));
    return JinjaValue::String(left.AsString() + right.AsString());
  }
  if (name == "+" && left.is_sequence() && left.kind() == right.kind()) {
    ALUDEL_RETURN_IF_ERROR(budget->Items(left.AsList().size() + right.AsList().size()));
    JinjaValue::List list = left.AsList();
    list.insert(list.end(), right.AsList().begin(), right.AsList().end());
    return left.kind() == JinjaValue::Kind::kList ? JinjaValue::MakeList(std::move(list))
                                                  : JinjaValue::MakeTuple(std::move(list));
  }
  const auto repeats = [](const JinjaValue& a, const JinjaValue& b) {
    return (a.is_string() || a.is_sequence()) && b.is_integral();
  };
  if (name == "*" && repeats(left, right)) return Repeat(left, right.AsInt(), budget);
  if (name == "*" && repeats(right, left)) return Repeat(right, left.AsInt(), budget);
  if (left.is_undefined()) return UndefinedError(left);
  if (right.is_undefined()) return UndefinedError(right);
  return absl::InvalidArgumentError(
      absl::StrCat("cannot compute ", left.Describe(), " ", name, " ", right.Describe()));
}

JinjaValue JinjaGlobal(const std::string& name, JinjaBudget* budget) {
  if (name == "range") {
    return JinjaValue::MakeFunction(
        name, [budget](const JinjaArguments& arguments) { return Range(arguments, budget); });
  }
  if (name == "namespace") return JinjaValue::MakeFunction(name, Namespace);
  if (name == "dict") return JinjaValue::MakeFunction(name, MakeDictionary);
  if (name == "raise_exception") return JinjaValue::MakeFunction(name, RaiseException);
  if (name == "strftime_now") return JinjaValue::MakeFunction(name, StrftimeNow);
  return JinjaValue::Undefined(absl::StrCat("'", name, "'"));
}

}  // namespace aludel
