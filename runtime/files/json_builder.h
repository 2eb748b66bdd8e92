#pragma once

#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/files/stop_scope.h"

namespace aludel {

struct JsonLimits {
  int max_depth = 64;
  size_t max_members = std::numeric_limits<size_t>::max();     // of one object
  size_t max_containers = std::numeric_limits<size_t>::max();  // objects and lists together
};

// What is wrong with a text.
struct JsonFault {
  enum class Kind { kNone, kSyntax, kNumber, kDepth, kMembers, kContainers, kDuplicate, kStopped };
  Kind kind = Kind::kNone;
  size_t byte = 0;      // kSyntax: where
  std::string message;  // kSyntax: the parser's own words
  std::string key;      // kDuplicate
  std::string place;    // of the object at fault: "tools[0].function"; empty: the whole text
};

// Makes a value of a text in one pass that is linear in its bytes, or as good as that for a Json that sorts
// its members. The library's own ways are not: its ordered type looks every key up among those before it, and
// its parser with a callback, the only one that tells of keys, walks a whole object each time that a
// member ends.
template <typename Json>
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  // False where `fault` says why not.
  static bool Parse(absl::string_view text, const JsonLimits& limits, Json* value, JsonFault* fault) {
    JsonBuilder builder(limits, value, fault);
    return Json::sax_parse(text.begin(), text.end(), static_cast<Base*>(&builder));
  }

  // Up to 64 bytes of a key, for messages.
  static std::string Shown(const std::string& key) {
    return key.size() <= kShownKeyBytes ? key : absl::StrCat(key.substr(0, kShownKeyBytes), "...");
  }

 private:
  using Base = nlohmann::json_sax<Json>;
  using Object = typename Json::object_t;
  // nlohmann's ordered object is a vector of pairs.
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  // Up to so many members a walk over them finds a key sooner than a hash does.
  static constexpr size_t kHashedMembers = 16;
  static constexpr size_t kShownKeyBytes = 64;
  static constexpr int kNumberOutOfRange = 406;  // nlohmann's id

  struct Frame {
    Json* value;             // an open object or list; its parent does not grow until it is closed
    const std::string* key;  // of an object's newest member
    Json* slot;              // and that member's value
    std::unique_ptr<absl::flat_hash_set<std::string>> keys;  // of an ordered object with many members
  };

  JsonBuilder(const JsonLimits& limits, Json* root, JsonFault* fault)
      : limits_(limits), root_(root), fault_(fault) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(typename Base::number_integer_t value) override { return Put(value); }
  bool number_unsigned(typename Base::number_unsigned_t value) override { return Put(value); }
  bool number_float(typename Base::number_float_t value, const typename Base::string_t&) override {
    return Put(value);
  }
  bool string(typename Base::string_t& value) override { return Put(std::move(value)); }
  bool binary(typename Base::binary_t&) override { return Fail(JsonFault::Kind::kSyntax); }  // no JSON text
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(typename Base::string_t& key) override {
    Frame& frame = frames_.back();
    auto& members = frame.value->template get_ref<Object&>();
    if (members.size() >= limits_.max_members) return Fail(JsonFault::Kind::kMembers);
    if constexpr (kOrdered) {
      if (IsKnown(&frame, members, key)) return FailTwice(key);
      auto& member = members.emplace_back(std::move(key), nullptr);
      frame.key = &member.first;
      frame.slot = &member.second;
    } else {
      const auto [member, added] = members.try_emplace(std::move(key), nullptr);
      if (!added) return FailTwice(member->first);
      frame.key = &member->first;
      frame.slot = &member->second;
    }
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& fault) override {
    fault_->byte = at;
    fault_->message = fault.what();
    return Fail(fault.id == kNumberOutOfRange ? JsonFault::Kind::kNumber : JsonFault::Kind::kSyntax);
  }

  static bool IsKnown(Frame* frame, const Object& members, const std::string& key) {
    if (members.size() < kHashedMembers) {
      for (const auto& [name, value] : members) {
        if (name == key) return true;
      }
      return false;
    }
    if (frame->keys == nullptr) {
      frame->keys = std::make_unique<absl::flat_hash_set<std::string>>();
      for (const auto& [name, value] : members) frame->keys->insert(name);
    }
    return !frame->keys->insert(key).second;
  }

  Json* Place(Json value) {
    Json* slot = root_;
    if (!frames_.empty() && frames_.back().value->is_array()) {
      auto& items = frames_.back().value->template get_ref<typename Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    if (!frames_.empty()) slot = frames_.back().slot;
    *slot = std::move(value);
    return slot;
  }

  bool Put(Json value) {
    Place(std::move(value));
    return CheckStop().ok() || Fail(JsonFault::Kind::kStopped);
  }

  bool Open(Json value) {
    if (static_cast<int>(frames_.size()) >= limits_.max_depth) return Fail(JsonFault::Kind::kDepth);
    if (++containers_ > limits_.max_containers) return Fail(JsonFault::Kind::kContainers);
    Json* const placed = Place(std::move(value));
    frames_.push_back({placed, nullptr, nullptr, nullptr});
    return CheckStop().ok() || Fail(JsonFault::Kind::kStopped);
  }

  bool Close() {
    frames_.pop_back();
    return true;
  }

  bool FailTwice(const std::string& key) {
    fault_->key = Shown(key);
    return Fail(JsonFault::Kind::kDuplicate);
  }

  bool Fail(JsonFault::Kind kind) {
    fault_->kind = kind;
    for (size_t i = 0; i + 1 < frames_.size(); ++i) {
      const Frame& frame = frames_[i];
      if (frame.value->is_array()) {
        absl::StrAppend(&fault_->place, "[", frame.value->size() - 1, "]");
      } else {
        absl::StrAppend(&fault_->place, fault_->place.empty() ? "" : ".", Shown(*frame.key));
      }
    }
    return false;
  }

  const JsonLimits limits_;
  Json* const root_;
  JsonFault* const fault_;
  std::vector<Frame> frames_;
  size_t containers_ = 0;
};

}  // namespace aludel
