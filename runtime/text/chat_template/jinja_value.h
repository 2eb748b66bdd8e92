#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

class JinjaValue;

// What a call, filter or test is given.
struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;

  // Values in the order of `names`, nullptr where one is not given. InvalidArgument for arguments without
  // a name.
  absl::StatusOr<std::vector<const JinjaValue*>> Bind(absl::string_view callee,
                                                      std::initializer_list<absl::string_view> names) const;
};

// Something with attributes that is no plain data: `loop`.
class JinjaObject {
 public:
  virtual ~JinjaObject() = default;
  virtual absl::StatusOr<JinjaValue> Attribute(const std::string& name) = 0;
};

// A value of a template, with Python's meaning of truth, equality, order and text. Immutable except for
// namespaces, whose members are plain data, so that no value can contain itself. Cheap to copy.
class JinjaValue {
 public:
  using List = std::vector<JinjaValue>;
  using Dict = std::vector<std::pair<std::string, JinjaValue>>;  // in order of insertion
  using Function = std::function<absl::StatusOr<JinjaValue>(const JinjaArguments&)>;
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kFunction,
    kObject
  };

  // How deep lists and dictionaries may nest: it bounds every recursion over values.
  static constexpr int kMaxDepth = 100;

  JinjaValue() = default;  // undefined
  static JinjaValue Undefined(std::string what);
  static JinjaValue None();
  static JinjaValue Bool(bool value);
  static JinjaValue Int(int64_t value);
  static JinjaValue Float(double value);
  static JinjaValue String(std::string value);
  // InvalidArgument where the items nest too deep, or are no plain data (functions, loops, namespaces).
  static absl::StatusOr<JinjaValue> MakeList(List items);
  static absl::StatusOr<JinjaValue> MakeTuple(List items);
  static absl::StatusOr<JinjaValue> MakeDict(Dict&& items);
  static JinjaValue MakeNamespace();
  static JinjaValue MakeFunction(std::string name, Function function);
  static JinjaValue MakeObject(std::shared_ptr<JinjaObject> object);
  static absl::StatusOr<JinjaValue> FromJson(const nlohmann::ordered_json& json);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // True is 1 in Python
  bool is_data() const { return kind_ < Kind::kNamespace; }

  // Each wants its kind (AsInt and AsFloat also a bool; AsFloat an int).
  int64_t AsInt() const { return int_; }
  double AsFloat() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const std::string& AsString() const;
  const List& AsList() const;
  const Dict& AsDict() const;  // also of a namespace
  const Function& AsFunction() const;
  JinjaObject* AsObject() const;
  void SetMember(const std::string& name, JinjaValue value) const;  // of a namespace

  // The undefined thing, as it appears in errors ("'x' is undefined").
  const std::string& name() const;
  // Member of a dictionary or namespace; nullptr where there is none.
  const JinjaValue* Find(const std::string& key) const;

  bool Truth() const;
  // "a string", "a list", ... for errors.
  const char* Describe() const;
  int depth() const;

 private:
  struct Container;

  Kind kind_ = Kind::kUndefined;
  int64_t int_ = 0;
  double float_ = 0.0;
  std::shared_ptr<Container> container_;
};

// Python's ==; 1 == 1.0 == True. Undefined equals undefined.
bool JinjaEquals(const JinjaValue& a, const JinjaValue& b);
// Negative, zero or positive as in Python's <; InvalidArgument where Python cannot order the two.
absl::StatusOr<int> JinjaCompare(const JinjaValue& a, const JinjaValue& b);
// Python's str(): a string is itself, a list prints its items as Python spells them.
std::string JinjaText(const JinjaValue& value);
// Python's repr().
std::string JinjaRepr(const JinjaValue& value);

// json.dumps with its options; InvalidArgument for values that JSON has no form for.
struct JinjaJsonOptions {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> JinjaJson(const JinjaValue& value, const JinjaJsonOptions& options);

// White space as Python's str methods see it: Unicode's and U+001C to U+001F.
bool IsPythonSpace(char32_t code_point);

}  // namespace aludel
