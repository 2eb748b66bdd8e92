#include "runtime/text/chat_template/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {

struct JinjaValue::Container {
  std::string text;  // string, name of an undefined or function
  List list;
  Dict dict;
  absl::flat_hash_map<std::string, size_t> index;  // of a large dict, into it
  Function function;
  std::shared_ptr<JinjaObject> object;
  int depth = 0;
};

namespace {

constexpr size_t kIndexedDict = 16;

absl::Status CheckItem(const JinjaValue& item, int* depth) {
  if (!item.is_data()) {
    return absl::InvalidArgumentError(absl::StrCat("a list or dictionary cannot hold ", item.Describe()));
  }
  *depth = std::max(*depth, item.depth() + 1);
  if (*depth > JinjaValue::kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat("values nest deeper than ", JinjaValue::kMaxDepth));
  }
  return absl::OkStatus();
}

}  // namespace

JinjaValue JinjaValue::Undefined(std::string what) {
  JinjaValue value;
  value.container_ = std::make_shared<Container>();
  value.container_->text = std::move(what);
  return value;
}

JinjaValue JinjaValue::None() {
  JinjaValue value;
  value.kind_ = Kind::kNone;
  return value;
}

JinjaValue JinjaValue::Bool(bool value) {
  JinjaValue result;
  result.kind_ = Kind::kBool;
  result.int_ = value;
  return result;
}

JinjaValue JinjaValue::Int(int64_t value) {
  JinjaValue result;
  result.kind_ = Kind::kInt;
  result.int_ = value;
  return result;
}

JinjaValue JinjaValue::Float(double value) {
  JinjaValue result;
  result.kind_ = Kind::kFloat;
  result.float_ = value;
  return result;
}

JinjaValue JinjaValue::String(std::string value) {
  JinjaValue result;
  result.kind_ = Kind::kString;
  result.container_ = std::make_shared<Container>();
  result.container_->text = std::move(value);
  return result;
}

absl::StatusOr<JinjaValue> JinjaValue::MakeList(List items) {
  JinjaValue result;
  result.kind_ = Kind::kList;
  result.container_ = std::make_shared<Container>();
  for (const JinjaValue& item : items) ALUDEL_RETURN_IF_ERROR(CheckItem(item, &result.container_->depth));
  result.container_->list = std::move(items);
  return result;
}

absl::StatusOr<JinjaValue> JinjaValue::MakeTuple(List items) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue result, MakeList(std::move(items)));
  result.kind_ = Kind::kTuple;
  return result;
}

absl::StatusOr<JinjaValue> JinjaValue::MakeDict(Dict&& items) {
  JinjaValue result;
  result.kind_ = Kind::kDict;
  result.container_ = std::make_shared<Container>();
  Container& container = *result.container_;
  for (auto& [key, item] : items) {
    ALUDEL_RETURN_IF_ERROR(CheckItem(item, &container.depth));
    // A key given again keeps its place and takes the new value, as in Python.
    const auto [it, is_new] = container.index.emplace(key, container.dict.size());
    if (is_new) {
      container.dict.emplace_back(std::move(key), std::move(item));
    } else {
      container.dict[it->second].second = std::move(item);
    }
  }
  if (container.dict.size() < kIndexedDict) container.index.clear();
  return result;
}

JinjaValue JinjaValue::MakeNamespace() {
  JinjaValue result;
  result.kind_ = Kind::kNamespace;
  result.container_ = std::make_shared<Container>();
  return result;
}

JinjaValue JinjaValue::MakeFunction(std::string name, Function function) {
  JinjaValue result;
  result.kind_ = Kind::kFunction;
  result.container_ = std::make_shared<Container>();
  result.container_->text = std::move(name);
  result.container_->function = std::move(function);
  return result;
}

JinjaValue JinjaValue::MakeObject(std::shared_ptr<JinjaObject> object) {
  JinjaValue result;
  result.kind_ = Kind::kObject;
  result.container_ = std::make_shared<Container>();
  result.container_->object = std::move(object);
  return result;
}

absl::StatusOr<JinjaValue> JinjaValue::FromJson(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return None();
    case nlohmann::ordered_json::value_t::boolean:
      return Bool(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return absl::InvalidArgumentError(absl::StrCat("integer ", json.dump(), " is beyond 64 bits"));
      }
      return Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (FirstInvalidUtf8(text) != text.size()) return absl::InvalidArgumentError("a string is not UTF-8");
      return String(text);
    }
    case nlohmann::ordered_json::value_t::array: {
      List items;
      for (const auto& item : json) {
        ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, FromJson(item));
        items.push_back(std::move(value));
      }
      return MakeList(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict items;
      for (const auto& [key, item] : json.items()) {
        ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, FromJson(item));
        items.emplace_back(key, std::move(value));
      }
      return MakeDict(std::move(items));
    }
    default:
      return absl::InvalidArgumentError("the context holds a value that is no JSON");
  }
}

const std::string& JinjaValue::AsString() const {
  ALUDEL_CHECK(kind_ == Kind::kString);
  return container_->text;
}

const JinjaValue::List& JinjaValue::AsList() const {
  ALUDEL_CHECK(is_sequence());
  return container_->list;
}

const JinjaValue::Dict& JinjaValue::AsDict() const {
  ALUDEL_CHECK(kind_ == Kind::kDict || kind_ == Kind::kNamespace);
  return container_->dict;
}

const JinjaValue::Function& JinjaValue::AsFunction() const {
  ALUDEL_CHECK(kind_ == Kind::kFunction);
  return container_->function;
}

JinjaObject* JinjaValue::AsObject() const {
  ALUDEL_CHECK(kind_ == Kind::kObject);
  return container_->object.get();
}

void JinjaValue::SetMember(const std::string& name, JinjaValue value) const {
  ALUDEL_CHECK(kind_ == Kind::kNamespace && value.is_data());
  for (auto& [key, member] : container_->dict) {
    if (key == name) {
      member = std::move(value);
      return;
    }
  }
  container_->dict.emplace_back(name, std::move(value));
}

const std::string& JinjaValue::name() const {
  static const std::string* const kUnnamed = new std::string("the value");
  return container_ == nullptr ? *kUnnamed : container_->text;
}

const JinjaValue* JinjaValue::Find(const std::string& key) const {
  if (!container_->index.empty()) {
    const auto it = container_->index.find(key);
    return it == container_->index.end() ? nullptr : &container_->dict[it->second].second;
  }
  for (const auto& [name, value] : container_->dict) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool JinjaValue::Truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0.0;
    case Kind::kString:
      return !container_->text.empty();
    case Kind::kList:
    case Kind::kTuple:
      return !container_->list.empty();
    case Kind::kDict:
      return !container_->dict.empty();
    case Kind::kNamespace:
    case Kind::kFunction:
    case Kind::kObject:
      return true;
  }
  return false;
}

const char* JinjaValue::Describe() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a float";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kDict:
      return "a dictionary";
    case Kind::kNamespace:
      return "a namespace";
    case Kind::kFunction:
      return "a function";
    case Kind::kObject:
      return "a loop";
  }
  return "a value";
}

int JinjaValue::depth() const { return container_ == nullptr ? 0 : container_->depth; }

absl::StatusOr<std::vector<const JinjaValue*>> JinjaArguments::Bind(
    absl::string_view callee, std::initializer_list<absl::string_view> names) const {
  if (positional.size() > names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(callee, " got ", positional.size(), " arguments, wants at most ", names.size()));
  }
  std::vector<const JinjaValue*> bound(names.size(), nullptr);
  for (size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto it = std::find(names.begin(), names.end(), absl::string_view(name));
    if (it == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(callee, " got an unknown argument '", name, "'"));
    }
    bound[it - names.begin()] = &value;
  }
  return bound;
}

bool JinjaEquals(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_integral() && b.is_integral()) return a.AsInt() == b.AsInt();
  if (a.is_number() && b.is_number()) return a.AsFloat() == b.AsFloat();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case JinjaValue::Kind::kString:
      return a.AsString() == b.AsString();
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      return a.AsList().size() == b.AsList().size() &&
             std::equal(a.AsList().begin(), a.AsList().end(), b.AsList().begin(), JinjaEquals);
    case JinjaValue::Kind::kDict:
      return a.AsDict().size() == b.AsDict().size() &&
             std::all_of(a.AsDict().begin(), a.AsDict().end(), [&](const auto& item) {
               const JinjaValue* other = b.Find(item.first);
               return other != nullptr && JinjaEquals(item.second, *other);
             });
    case JinjaValue::Kind::kUndefined:
    case JinjaValue::Kind::kNone:
      return true;
    default:
      return false;  // functions, loops and namespaces equal nothing that a template could compare them with
  }
}

absl::StatusOr<int> JinjaCompare(const JinjaValue& a, const JinjaValue& b) {
  const auto three_way = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_integral() && b.is_integral()) return three_way(a.AsInt(), b.AsInt());
  if (a.is_number() && b.is_number()) return three_way(a.AsFloat(), b.AsFloat());
  // UTF-8 orders as its code points do, which is Python's order.
  if (a.is_string() && b.is_string()) return three_way(a.AsString(), b.AsString());
  if (a.is_sequence() && a.kind() == b.kind()) {
    const size_t common = std::min(a.AsList().size(), b.AsList().size());
    for (size_t i = 0; i < common; ++i) {
      if (JinjaEquals(a.AsList()[i], b.AsList()[i])) continue;
      return JinjaCompare(a.AsList()[i], b.AsList()[i]);
    }
    return three_way(a.AsList().size(), b.AsList().size());
  }
  for (const JinjaValue* value : {&a, &b}) {
    if (value->is_undefined())
      return absl::InvalidArgumentError(absl::StrCat(value->name(), " is undefined"));
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot order ", a.Describe(), " and ", b.Describe()));
}

bool IsPythonSpace(char32_t code_point) {
  return IsWhiteSpace(code_point) || (code_point >= 0x1c && code_point <= 0x1f);
}

}  // namespace aludel
