#include "server/config/setting_rules.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aludel/v1/config.pb.h"
#include "aludel/v1/setting.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Every message of the three configurations.
void Collect(const Descriptor* message, std::set<const Descriptor*>* found) {
  if (!found->insert(message).second) return;
  for (int i = 0; i < message->field_count(); ++i) {
    if (message->field(i)->message_type() != nullptr) Collect(message->field(i)->message_type(), found);
  }
}

std::set<const Descriptor*> Messages() {
  std::set<const Descriptor*> found;
  Collect(v1::PrefillConfig::descriptor(), &found);
  Collect(v1::DecodeConfig::descriptor(), &found);
  Collect(v1::GatewayConfig::descriptor(), &found);
  return found;
}

bool IsNumber(const FieldDescriptor* field) {
  return field->message_type() == nullptr && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
         field->cpp_type() != FieldDescriptor::CPPTYPE_BOOL;
}

TEST(SettingRules, EveryDefaultIsAllowed) {
  for (const Descriptor* message : Messages()) {
    const auto* defaults = google::protobuf::MessageFactory::generated_factory()->GetPrototype(message);
    for (int i = 0; i < message->field_count(); ++i) {
      const FieldDescriptor* field = message->field(i);
      if (field->is_repeated() || !field->has_default_value()) continue;
      const auto fault = FindFault(*defaults, field);
      EXPECT_FALSE(fault.has_value())
          << field->full_name() << ": " << fault->found << ", want " << fault->want;
    }
  }
}

TEST(SettingRules, EveryNumberStatesItsRangeAndTheUnitOfItsName) {
  int numbers = 0;
  for (const Descriptor* message : Messages()) {
    for (int i = 0; i < message->field_count(); ++i) {
      const FieldDescriptor* field = message->field(i);
      if (!IsNumber(field)) continue;
      ++numbers;
      EXPECT_THAT(AllowedValues(field), Not(IsEmpty())) << field->full_name();
      const v1::Setting& setting = field->options().GetExtension(v1::setting);
      EXPECT_TRUE(setting.has_unit() || field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ||
                  field->name() == "seed")
          << field->full_name();
      for (const std::string unit : {"ms", "s", "bytes", "tokens"}) {
        if (absl::EndsWith(field->name(), "_" + unit)) {
          EXPECT_EQ(setting.unit(), unit) << field->full_name();
        }
      }
    }
  }
  EXPECT_GT(numbers, 60);
}

TEST(SettingRules, ANumberOutOfItsRangeIsAFault) {
  v1::DecodeConfig config;
  const auto fault = [&](const char* name) {
    const auto found = FindFault(config, config.GetDescriptor()->FindFieldByName(name));
    return found ? absl::StrCat(found->found, ", want ", found->want) : "";
  };
  EXPECT_EQ(fault("watchdog_timeout_ms"), "");
  config.set_watchdog_timeout_ms(1000);
  EXPECT_EQ(fault("watchdog_timeout_ms"), "");
  config.set_watchdog_timeout_ms(999);
  EXPECT_EQ(fault("watchdog_timeout_ms"), "999, want 1000 to 86400000 ms");
  config.set_watchdog_timeout_ms(86400001);
  EXPECT_EQ(fault("watchdog_timeout_ms"), "86400001, want 1000 to 86400000 ms");
  config.set_probe_interval_ms(500);
  config.set_probe_max_interval_ms(499);
  EXPECT_EQ(fault("probe_max_interval_ms"), "499, want at least probe_interval_ms, 500");
  config.set_receive_arena_bytes((uint64_t{1} << 44) + 1);
  EXPECT_EQ(fault("receive_arena_bytes"), "17592186044417, want 4096 to 17592186044416 bytes");
}

TEST(SettingRules, TextHasItsForm) {
  v1::DecodeConfig config;
  config.add_prefill_targets("h:1");
  config.add_prefill_targets("h:65536");
  config.add_prefill_targets("h:1");
  config.add_gateway_identities("");
  const auto fault = [&](const char* name, int index) {
    const auto found = FindFault(config, config.GetDescriptor()->FindFieldByName(name), index);
    return found ? absl::StrCat(found->found, ", want ", found->want) : "";
  };
  EXPECT_EQ(fault("prefill_targets", 0), "");
  EXPECT_EQ(fault("prefill_targets", 1),
            "\"h:65536\", want host:port, dns:///name:port, file:PATH or another gRPC target");
  EXPECT_EQ(fault("prefill_targets", 2), "\"h:1\" twice, want each value once");
  config.add_prefill_targets("dns:///[fd00::1]:7");
  EXPECT_EQ(fault("prefill_targets", 3), "");
  config.add_prefill_targets("dns:///name");  // without its port
  EXPECT_NE(fault("prefill_targets", 4), "");
  EXPECT_EQ(fault("gateway_identities", 0), "nothing, want a value");
  EXPECT_EQ(fault("admin_listen", -1), "");
  config.set_admin_listen("");  // switched off
  EXPECT_EQ(fault("admin_listen", -1), "");
  config.set_listen("");
  EXPECT_EQ(fault("listen", -1), "\"\", want host:port with a port from 0 to 65535");
}

TEST(SettingRules, TheTableNamesEverySettingWithDefaultAndRange) {
  const std::string table = SettingsTable(v1::DecodeConfig::descriptor());
  EXPECT_THAT(table, HasSubstr("\nlisten                               \"127.0.0.1:7200\"   host:port"));
  EXPECT_THAT(table, HasSubstr("\nengine.directory                     (required)\n"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "\nengine.block_tokens                  16                 a power of two, 1 to 1024 tokens\n"));
  EXPECT_THAT(table, HasSubstr("\nplanner.losses[].kl "));
  EXPECT_THAT(table, HasSubstr("\nplanner.balanced_kl                  0.1                0 or more nats\n"));
  EXPECT_THAT(SettingsTable(v1::GatewayConfig::descriptor()),
              HasSubstr("\nmodels[].name                        (required)\n"));
}

}  // namespace
}  // namespace aludel
