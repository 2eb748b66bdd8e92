#include "server/decode/plan/prefill_pool.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/host/model_host.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A consumer with formats "aludel" and "raw", and a producer that fits it.
class Compatible : public ::testing::Test {
 protected:
  Compatible() {
    model_.set_layers(8);
    model_.set_kv_heads(4);
    model_.set_head_dim(32);
    model_.set_tokenizer_fingerprint("t0");
    model_.set_vocabulary_fingerprint("v0");
    model_.set_rope("theta 500000");
    formats_.resize(2);
    formats_[0].set_name("aludel");
    formats_[0].set_artifact_hash("a0");
    formats_[1].set_name("raw");
    *peer_.mutable_model() = model_;
    peer_.set_protocol_version(kHandoffVersion);
    for (int i = 1; i >= 0; --i) *peer_.add_formats() = formats_[i];
  }
  std::string Refusal() { return std::string(CheckCompatible(model_, formats_, peer_, &shared_).message()); }
  v1::ModelIdentity model_;
  std::vector<v1::WireFormat> formats_;
  v1::PrefillDescription peer_;
  std::vector<std::string> shared_;
};

TEST_F(Compatible, SharedFormatsComeInTheConsumersOrder) {
  EXPECT_EQ(Refusal(), "");
  EXPECT_THAT(shared_, ElementsAre("aludel", "raw"));
}

TEST_F(Compatible, AFormatOfAnotherArtifactIsNotShared) {
  peer_.mutable_formats(1)->set_artifact_hash("a1");
  EXPECT_EQ(Refusal(), "");
  EXPECT_THAT(shared_, ElementsAre("raw"));
  peer_.mutable_formats()->RemoveLast();
  peer_.mutable_formats(0)->set_name("other");
  EXPECT_EQ(Refusal(), "no format in common: it has other@, want one of aludel@a0, raw@");
}

TEST_F(Compatible, AMismatchIsRefusedWithFoundAndExpected) {
  peer_.set_protocol_version(kHandoffVersion + 1);
  EXPECT_EQ(Refusal(), absl::StrCat("protocol version is ", kHandoffVersion + 1, ", want ", kHandoffVersion));
  peer_.set_protocol_version(kHandoffVersion);
  peer_.mutable_model()->set_tokenizer_fingerprint("t1");
  EXPECT_EQ(Refusal(), "") << "of another tokenizer with the same vocabulary";
  peer_.mutable_model()->set_vocabulary_fingerprint("v1");
  EXPECT_EQ(Refusal(), "vocabulary fingerprint is v1, want v0");
  *peer_.mutable_model() = model_;
  peer_.mutable_model()->set_kv_heads(8);
  EXPECT_EQ(Refusal(), "kv_heads is 8, want 4");
  peer_.mutable_model()->set_layers(9);
  EXPECT_EQ(Refusal(), "layers is 9, want 8; kv_heads is 8, want 4");
  *peer_.mutable_model() = model_;
  peer_.mutable_model()->set_rope("theta 10000");
  EXPECT_EQ(Refusal(), "") << "K travels before it is rotated";
}

}  // namespace
}  // namespace aludel
