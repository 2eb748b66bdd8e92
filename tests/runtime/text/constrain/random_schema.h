#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace aludel {

// A schema of the supported subset, the same for the same seed.
class SchemaGenerator {
 public:
  explicit SchemaGenerator(uint32_t seed) : random_(seed) {}

  nlohmann::ordered_json Root() {
    nlohmann::ordered_json schema = Schema(3);
    schema["$defs"] = {
        {"leaf", Schema(0)},
        {"tree",
         {{"type", "object"},
          {"properties",
           {{"leaf", {{"$ref", "#/$defs/leaf"}}},
            {"more", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}}}},
          {"required", {"leaf"}},
          {"additionalProperties", false}}}};
    return schema;
  }

 private:
  int Upto(int count) { return static_cast<int>(random_() % count); }
  bool Flip() { return Upto(2) == 0; }

  nlohmann::ordered_json Schema(int depth) {
    switch (Upto(depth > 0 ? 11 : 7)) {
      case 0:
        return String();
      case 1:
        return Number("integer");
      case 2:
        return Number("number");
      case 3:
        return {{"type", "boolean"}};
      case 4:
        return {{"type", "null"}};
      case 5:
        return {{"enum", {"red", "two\nlines", 3, nullptr, true, {{"x", 1}}}}};
      case 6:
        return {{"const", Flip() ? nlohmann::ordered_json("caf\xc3\xa9") : nlohmann::ordered_json(-12.5)}};
      case 7:
        return Array(depth);
      case 8:
        return Branches(depth);
      case 9:
        return {{"$ref", Flip() ? "#/$defs/tree" : "#/$defs/leaf"}};
      default:
        return Object(depth);
    }
  }

  nlohmann::ordered_json String() {
    nlohmann::ordered_json schema = {{"type", "string"}};
    const int min = Upto(4);
    if (Flip()) schema["minLength"] = min;
    if (Flip()) schema["maxLength"] = min + Upto(8);
    return schema;
  }

  nlohmann::ordered_json Number(const std::string& type) {
    nlohmann::ordered_json schema = {{"type", type}};
    const int min = Upto(400) - 200;
    if (Flip()) schema[Flip() ? "minimum" : "exclusiveMinimum"] = min;
    if (Flip()) schema[Flip() ? "maximum" : "exclusiveMaximum"] = min + 2 + Upto(300);
    return schema;
  }

  nlohmann::ordered_json Array(int depth) {
    nlohmann::ordered_json schema = {{"type", "array"}, {"items", Schema(depth - 1)}};
    const int min = Upto(3);
    if (Flip()) schema["minItems"] = min;
    schema["maxItems"] = min + Upto(3);
    return schema;
  }

  nlohmann::ordered_json Branches(int depth) {
    if (Flip()) return {{"anyOf", {Schema(depth - 1), Schema(depth - 1)}}};
    return {{"oneOf", {String(), Number("number"), {{"type", "null"}}, Object(depth)}}};
  }

  nlohmann::ordered_json Object(int depth) {
    nlohmann::ordered_json properties = nlohmann::ordered_json::object();
    nlohmann::ordered_json required = nlohmann::ordered_json::array();
    for (int i = Upto(5); i > 0; --i) {
      const std::string name = absl::StrCat(Flip() ? "name" : "n\"\\", i);
      properties[name] = Schema(depth - 1);
      if (Flip()) required.push_back(name);
    }
    nlohmann::ordered_json schema = {{"type", "object"}, {"properties", properties}, {"required", required}};
    if (Flip()) schema["additionalProperties"] = Flip() ? nlohmann::ordered_json(false) : Schema(0);
    return schema;
  }

  std::mt19937 random_;
};

inline nlohmann::ordered_json RandomSchema(uint32_t seed) { return SchemaGenerator(seed).Root(); }

// A validator of the same subset, for keywords as the standard states them and nothing else.
inline bool Validates(const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema,
                      const nlohmann::ordered_json& value) {
  using nlohmann::ordered_json;
  if (schema.is_boolean()) return schema.get<bool>();
  for (const auto& [key, rule] : schema.items()) {
    const auto count_matching = [&rule = rule, &root, &value] {
      int matching = 0;
      for (const ordered_json& branch : rule) matching += Validates(root, branch, value) ? 1 : 0;
      return matching;
    };
    bool valid = true;
    if (key == "$ref") {
      valid = Validates(root, root[ordered_json::json_pointer(rule.get<std::string>().substr(1))], value);
    } else if (key == "type") {
      const std::string type = rule;
      const bool whole = value.is_number() && value.get<double>() == std::floor(value.get<double>());
      valid = type == "string"    ? value.is_string()
              : type == "integer" ? whole
              : type == "number"  ? value.is_number()
              : type == "boolean" ? value.is_boolean()
              : type == "null"    ? value.is_null()
              : type == "array"   ? value.is_array()
                                  : value.is_object();
    } else if (key == "const") {
      valid = value == rule;
    } else if (key == "enum") {
      valid = std::find(rule.begin(), rule.end(), value) != rule.end();
    } else if (key == "anyOf") {
      valid = count_matching() > 0;
    } else if (key == "oneOf") {
      valid = count_matching() == 1;
    } else if (value.is_string() && (key == "minLength" || key == "maxLength")) {
      int64_t length = 0;
      for (const char byte : value.get<std::string>()) length += (byte & 0xc0) != 0x80 ? 1 : 0;
      valid = key == "minLength" ? length >= rule : length <= rule;
    } else if (value.is_number() && key == "minimum") {
      valid = value >= rule;
    } else if (value.is_number() && key == "maximum") {
      valid = value <= rule;
    } else if (value.is_number() && key == "exclusiveMinimum") {
      valid = value > rule;
    } else if (value.is_number() && key == "exclusiveMaximum") {
      valid = value < rule;
    } else if (value.is_array() && key == "minItems") {
      valid = value.size() >= rule.get<size_t>();
    } else if (value.is_array() && key == "maxItems") {
      valid = value.size() <= rule.get<size_t>();
    } else if (value.is_array() && key == "items") {
      for (const ordered_json& item : value) valid = valid && Validates(root, rule, item);
    } else if (value.is_object() && key == "required") {
      for (const ordered_json& name : rule) valid = valid && value.contains(name.get<std::string>());
    } else if (value.is_object() && key == "properties") {
      for (const auto& [name, property] : rule.items()) {
        if (value.contains(name)) valid = valid && Validates(root, property, value[name]);
      }
    } else if (value.is_object() && key == "additionalProperties") {
      for (const auto& [name, member] : value.items()) {
        if (!schema.contains("properties") || !schema["properties"].contains(name)) {
          valid = valid && Validates(root, rule, member);
        }
      }
    }
    if (!valid) return false;
  }
  return true;
}

}  // namespace aludel
