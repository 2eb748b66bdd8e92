#include "server/decode/plan/chosen_artifact.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace aludel {
namespace {

// A format that nothing is decoded by.
class Named : public DecoderFactory {
 public:
  Named(const std::string& name, const std::string& encoder, const std::string& decoder)
      : DecoderFactory({.name = name, .artifact_hash = encoder, .decoder_hash = decoder},
                       /*flops_per_token=*/0) {}
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return absl::UnimplementedError("it has a name alone");
  }
};

// Of formats by name, encoder and decoder.
CodecSet<DecoderFactory> Version(
    const std::string& name, const std::vector<std::tuple<std::string, std::string, std::string>>& formats) {
  CodecSet<DecoderFactory> set;
  set.origin = {.directory = "codec/versions/" + name, .version = name, .manifest_hash = "of " + name};
  for (const auto& [format, encoder, decoder] : formats) {
    set.codecs.push_back(std::make_unique<Named>(format, encoder, decoder));
  }
  return set;
}

class Chosen : public ::testing::Test {
 protected:
  Chosen() {
    for (const char* format : {"coded", "tuned", "same", "gone", "raw"})
      costs_.ObserveStored(format, 100, 0.5);
  }
  bool Knows(const std::string& format) const { return costs_.PredictStored(format, 100).has_value(); }

  CostModel costs_;
  const CodecSet<DecoderFactory> first_ = Version("0001", {{"coded", "e1", "d1"},
                                                           {"tuned", "e1", "d1"},
                                                           {"same", "e1", "d1"},
                                                           {"gone", "e1", "d1"},
                                                           {"raw", "", ""}});
  const CodecSet<DecoderFactory> second_ =
      Version("0002", {{"coded", "e2", "d2"}, {"tuned", "e1", "d2"}, {"same", "e1", "d1"}, {"raw", "", ""}});
  ChosenArtifact chosen_{first_, &costs_};
};

TEST_F(Chosen, WhatIsLearnedOfTheOldOneStaysWhileItIsChosen) {
  chosen_.Choose(first_);
  EXPECT_EQ(costs_.forgotten(), 0u);
  EXPECT_TRUE(Knows("coded"));
  // A switch that no prefill server has followed is none: what is learned meanwhile goes with it.
  costs_.ObserveStored("coded", 200, 1);
  chosen_.Choose(second_);
  EXPECT_FALSE(Knows("coded"));
}

TEST_F(Chosen, FormatsOfAnotherEncoderOrDecoderAreForgottenAndNoOthers) {
  chosen_.Choose(second_);
  EXPECT_FALSE(Knows("coded"));
  EXPECT_FALSE(Knows("tuned"));
  EXPECT_FALSE(Knows("gone"));
  EXPECT_TRUE(Knows("same"));
  EXPECT_TRUE(Knows("raw"));
  costs_.ObserveStored("coded", 100, 0.5);
  chosen_.Choose(second_);
  EXPECT_TRUE(Knows("coded")) << "it is chosen already";
  chosen_.Choose(first_);
  EXPECT_FALSE(Knows("coded")) << "rolled back";
  EXPECT_EQ(costs_.forgotten(), 2u);
}

}  // namespace
}  // namespace aludel
