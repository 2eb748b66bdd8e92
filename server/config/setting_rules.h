#pragma once

#include <optional>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace aludel {

// What the option (setting) of a field in config.proto asks of its value, read by reflection.

struct SettingFault {
  std::string found;
  std::string want;
};

// What is wrong with the value of `field` in `message`, a number or a string; with the element at `index` where the
// field is a list. An element of a list is never empty, and is there once where the setting asks for that.
std::optional<SettingFault> FindFault(const google::protobuf::Message& message,
                                      const google::protobuf::FieldDescriptor* field, int index = -1);

// Whether the field must have a value, or a list an element.
bool IsRequired(const google::protobuf::FieldDescriptor* field);

// What the field may hold: "1 to 65536 tokens", "one of bf16, f32". "" where its type says all.
std::string AllowedValues(const google::protobuf::FieldDescriptor* field);

// Every setting of a configuration, one a line: path, default and allowed values. For --settings.
std::string SettingsTable(const google::protobuf::Descriptor* config);

}  // namespace aludel
