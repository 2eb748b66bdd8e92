#include "tests/e2e/hostile_messages.h"

#include <iterator>
#include <limits>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace aludel {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxDepth = 4;
// Some values of a repeated field are as many as a message of four megabytes holds; most are few.
constexpr uint64_t kMany = 100000;

}  // namespace

uint64_t HostileMessages::Number() {
  constexpr uint64_t kNumbers[] = {
      0,     1,          2,          15,         16,         17,         64,         100,        4096, 65535,
      65536, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 40, 1ull << 62, 1ull << 63, ~0ull};
  const uint64_t drawn = kNumbers[Up(std::size(kNumbers))];
  return Up(3) == 0 ? drawn + Up(5) - 2 : drawn;
}

double HostileMessages::Real() {
  constexpr double kReals[] = {0, -0.0, 1, -1, 0.5, 1e-9, 2, 100, 1e300, -1e300, 1e-320};
  switch (Up(5)) {
    case 0:
      return std::numeric_limits<double>::quiet_NaN();
    case 1:
      return Up(2) == 0 ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    default:
      return kReals[Up(std::size(kReals))];
  }
}

std::string HostileMessages::Text() {
  constexpr const char* kTexts[] = {"raw",
                                    "scd",
                                    "exact",
                                    "\n",
                                    "\x1b[2J",
                                    "\r\nlevel=info",
                                    "\xe2\x80\xae",
                                    "a b",
                                    "%s%n",
                                    "127.0.0.1:1",
                                    "unix:/tmp/x",
                                    "{}",
                                    "{\"type\":\"object\"}",
                                    "[",
                                    "../../etc/passwd"};
  switch (Up(6)) {
    case 0:
      return "";
    case 1:
      return std::string(Number() % 70000, static_cast<char>('a' + Up(26)));
    case 2: {
      // Fields of text must be UTF-8, or the message is refused as a whole.
      std::string ascii(Up(200), '\0');
      for (char& byte : ascii) byte = static_cast<char>(Up(128));
      return ascii;
    }
    default:
      return kTexts[Up(std::size(kTexts))];
  }
}

void HostileMessages::SetValue(Message* message, const FieldDescriptor* field, int depth) {
  const Reflection& access = *message->GetReflection();
  const bool repeated = field->is_repeated();
  const auto set = [&](auto setter, auto adder, auto value) {
    if (repeated) {
      (access.*adder)(message, field, value);
    } else {
      (access.*setter)(message, field, value);
    }
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return set(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(Number()));
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::SetInt64, &Reflection::AddInt64, static_cast<int64_t>(Number()));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<uint32_t>(Number()));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::SetUInt64, &Reflection::AddUInt64, Number());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(&Reflection::SetFloat, &Reflection::AddFloat, static_cast<float>(Real()));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::SetDouble, &Reflection::AddDouble, Real());
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::SetBool, &Reflection::AddBool, Up(2) == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(&Reflection::SetEnumValue, &Reflection::AddEnumValue, static_cast<int>(Number()));
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string value = Text();
      if (field->type() == FieldDescriptor::TYPE_BYTES) {
        if (Up(2) == 0) value.assign(Up(3) == 0 ? 16 : Up(100), '\0');
        for (char& byte : value) byte = static_cast<char>(Up(256));
      }
      return set(&Reflection::SetString, &Reflection::AddString, value);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth >= kMaxDepth) return;
      return Fill(repeated ? access.AddMessage(message, field) : access.MutableMessage(message, field),
                  depth + 1);
  }
}

void HostileMessages::Fill(Message* message, int depth) {
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (Up(3) == 0) continue;
    uint64_t count = 1;
    if (type.field(i)->is_repeated()) count = Up(50) == 0 ? Up(kMany) : Up(40);
    // Many long texts would be a message that gRPC refuses for its size alone.
    if (type.field(i)->cpp_type() == FieldDescriptor::CPPTYPE_STRING) count %= 40;
    for (; count > 0; --count) SetValue(message, type.field(i), depth);
  }
}

void HostileMessages::Spoil(Message* message) {
  for (uint64_t changes = 1 + Up(3); changes > 0; --changes) {
    // Down to a message somewhere inside.
    Message* at = message;
    for (;;) {
      const Reflection& access = *at->GetReflection();
      std::vector<const FieldDescriptor*> set;
      access.ListFields(*at, &set);
      std::erase_if(set, [](const FieldDescriptor* field) {
        return field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated();
      });
      if (set.empty() || Up(2) == 0) break;
      at = access.MutableMessage(at, set[Up(set.size())]);
    }
    const google::protobuf::Descriptor& type = *at->GetDescriptor();
    if (type.field_count() == 0) continue;
    const FieldDescriptor* field =
        type.field(static_cast<int>(Up(static_cast<uint64_t>(type.field_count()))));
    if (Up(4) == 0) {
      at->GetReflection()->ClearField(at, field);
    } else {
      SetValue(at, field, 0);
    }
  }
}

std::string HostileMessages::SpoilBytes(std::string bytes) {
  const auto place = [&] { return static_cast<size_t>(Up(bytes.size() + 1)); };
  if (Up(8) == 0) {
    bytes.resize(Up(300));
    for (char& byte : bytes) byte = static_cast<char>(Up(256));
    return bytes;
  }
  for (uint64_t changes = 1 + Up(4); changes > 0; --changes) {
    switch (Up(5)) {
      case 0:
        if (!bytes.empty()) bytes[place() % bytes.size()] ^= static_cast<char>(1u << Up(8));
        break;
      case 1:
        bytes.resize(place());
        break;
      case 2:  // fields that come twice
        if (bytes.size() < (1 << 20)) bytes += bytes.substr(place());
        break;
      case 3:  // a group or a length that goes nowhere
        bytes += Up(2) == 0 ? std::string(1 + Up(200), '\x0b') : std::string("\x0a\xff\xff\xff\xff\x0f");
        break;
      default:
        bytes.insert(place(), 1, static_cast<char>(Up(256)));
    }
  }
  return bytes;
}

}  // namespace aludel
