#include "server/gateway/routing/decode_targets.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Three servers of one model and one of another, that no probe asks.
class DecodeTargetsTest : public ::testing::Test {
 protected:
  DecodeTargetsTest()
      : targets_({{.expectation = {.model = "chat", .tokenizer_fingerprint = ""},
                   .decode_targets = {"a:1", "b:1", "c:1"},
                   .list = "file:list"},
                  {.expectation = {.model = "json", .tokenizer_fingerprint = ""}, .decode_targets = {"d:1"}}},
                 grpc::InsecureChannelCredentials(), &metrics_, {.policy = RoutingPolicy::kLeastPending}) {}

  DecodeTarget* Find(const std::string& name) {
    for (const auto& target : targets_.all()) {
      if (target->name() == name) return target.get();
    }
    return nullptr;
  }
  DecodeTarget* Ready(const std::string& name, uint64_t context, uint32_t choices,
                      const std::vector<std::string>& formats = {}, const std::string& numerics = "n1",
                      const std::string& model = "chat", const std::vector<std::string>& adapters = {},
                      uint64_t adapter_changes = 0) {
    v1::DecodeDescription description;
    description.set_protocol_version(kHandoffVersion);
    description.set_served_model_name(model);
    description.set_max_context(context);
    description.set_max_choices(choices);
    description.set_numerics(numerics);
    for (const std::string& format : formats) description.add_formats(format);
    for (const std::string& adapter : adapters) description.add_adapters(adapter);
    description.set_adapter_changes(adapter_changes);
    Find(name)->Described(description);
    return Find(name);
  }
  std::string Picked(const std::vector<DecodeTarget*>& tried = {}, const std::string& numerics = "",
                     const std::string& adapter = "") {
    const auto target =
        targets_.Pick({.model = "chat", .keys = {}, .tried = tried, .numerics = numerics, .adapter = adapter})
            .target;
    if (target == nullptr) return "";
    target->Ended(grpc::Status::OK);
    return target->name();
  }
  // So many requests that do not end.
  void Load(const std::string& name, int requests) {
    std::vector<DecodeTarget*> others;
    for (const auto& target : targets_.all()) {
      if (target->name() != name) others.push_back(target.get());
    }
    for (int i = 0; i < requests; ++i) {
      const auto target =
          targets_.Pick({.model = "chat", .keys = {}, .tried = others, .numerics = "", .adapter = ""}).target;
      ASSERT_NE(target, nullptr);
      target->outstanding.fetch_add(1);
    }
  }

  Metrics metrics_;
  DecodeTargets targets_;
};

TEST_F(DecodeTargetsTest, NoneIsPickedBeforeItHasAnswered) {
  EXPECT_THAT(targets_.all(), SizeIs(4));
  EXPECT_EQ(Picked(), "");
  EXPECT_FALSE(targets_.StateOf("chat").ready);
  EXPECT_THAT(targets_.StateOf("chat").reason, HasSubstr("a:1: not probed yet; b:1"));
  EXPECT_EQ(targets_.Places("chat"), std::nullopt);
}

TEST_F(DecodeTargetsTest, PicksTheOneWithTheFewestRequests) {
  DecodeTarget* a = Ready("a:1", 100, 4);
  DecodeTarget* b = Ready("b:1", 100, 4);
  Load("a:1", 3);
  Load("b:1", 2);
  EXPECT_EQ(Picked(), "b:1");
  EXPECT_EQ(Picked({b}), "a:1");
  EXPECT_EQ(Picked({a, b}), "");
  EXPECT_EQ(targets_.Outstanding("chat"), 5);
  EXPECT_EQ(targets_.Outstanding("json"), 0);
}

TEST_F(DecodeTargetsTest, OnlyAServerOfTheSameNumericsGoesOn) {
  DecodeTarget* a = Ready("a:1", 100, 4, {}, "n1");
  DecodeTarget* b = Ready("b:1", 100, 4, {}, "n2");
  Load("a:1", 3);
  EXPECT_EQ(Picked({}, a->numerics()), "a:1");
  EXPECT_FALSE(targets_.HasOther("chat", {a, Find("c:1")}, a->numerics()));
  EXPECT_TRUE(targets_.HasOther("chat", {a}, a->numerics()));  // c may turn out to be one
  EXPECT_TRUE(targets_.HasOther("chat", {b, Find("c:1")}, ""));
  EXPECT_FALSE(targets_.HasOther("chat", {a, b, Find("c:1")}, ""));
}

TEST_F(DecodeTargetsTest, AnAdaptersRequestsGoToServersThatHaveIt) {
  Ready("a:1", 100, 4, {}, "n1", "chat", {"x"}, 1);
  Ready("b:1", 100, 4, {}, "n1", "chat", {"y", "z"}, 2);
  Load("a:1", 5);
  EXPECT_EQ(Picked({}, "", "x"), "a:1");
  EXPECT_EQ(Picked({}, "", "y"), "b:1");
  EXPECT_EQ(Picked({}, "", "w"), "");
  EXPECT_EQ(Picked(), "b:1");
  EXPECT_THAT(targets_.Adapters("chat"), ElementsAre("x", "y", "z"));
  EXPECT_EQ(targets_.BaseOf("z"), "chat");
  EXPECT_EQ(targets_.BaseOf("chat"), std::nullopt);
  Find("b:1")->Down("gone");
  EXPECT_EQ(targets_.BaseOf("z"), std::nullopt);
}

TEST_F(DecodeTargetsTest, AnAdaptersNumericsAreItsFilesAndWhoseCacheItAnswersFrom) {
  const auto numerics = [&](const std::string& hash, const std::string& cache_of) {
    v1::DecodeDescription description;
    description.set_protocol_version(kHandoffVersion);
    description.set_served_model_name("chat");
    description.set_numerics("n1");
    description.add_adapters("x");
    v1::AdapterDescription& adapter = *description.add_adapter_descriptions();
    adapter.set_name("x");
    adapter.set_hash(hash);
    adapter.set_cache_of(cache_of);
    Find("a:1")->Described(description);
    return Find("a:1")->numerics("x");
  };
  const std::string one = numerics("h1", "adapter");
  EXPECT_EQ(numerics("h1", "adapter"), one);
  EXPECT_NE(numerics("h2", "adapter"), one);
  EXPECT_NE(numerics("h1", "base"), one);
  EXPECT_NE(one, Find("a:1")->numerics());
  EXPECT_EQ(Find("a:1")->numerics("y"), "");
  DecodeTarget* older = Ready("b:1", 100, 4, {}, "n1", "chat", {"x"});
  EXPECT_EQ(older->numerics("x"), "");
  EXPECT_FALSE(older->BeginsAsBase("x"));
}

TEST_F(DecodeTargetsTest, AnOlderAnswerDoesNotBringAnAdapterBack) {
  Ready("a:1", 100, 4, {}, "n1", "chat", {"x"}, 2);
  Ready("a:1", 100, 4, {}, "n1", "chat", {"x", "y"}, 1);
  EXPECT_THAT(targets_.Adapters("chat"), ElementsAre("x"));
  Ready("a:1", 100, 4, {}, "n1", "chat", {}, 3);
  EXPECT_THAT(targets_.Adapters("chat"), IsEmpty());
}

TEST_F(DecodeTargetsTest, SaysWhatItsReadyServersHaveInCommon) {
  Ready("a:1", 100, 4, {"aludel", "int8", "raw"});
  Ready("b:1", 80, 16, {"raw", "aludel"});
  const DecodeTargets::State state = targets_.StateOf("chat");
  EXPECT_TRUE(state.ready);
  EXPECT_EQ(state.max_context, 80);
  EXPECT_EQ(state.max_choices, 16);
  EXPECT_EQ(state.reason, "c:1: not probed yet");
  EXPECT_THAT(targets_.Formats("chat"), ElementsAre("aludel", "raw"));
  EXPECT_EQ(targets_.Places("chat"), 20);
  Find("b:1")->Down("gone");
  EXPECT_THAT(targets_.Formats("chat"), ElementsAre("aludel", "int8", "raw"));
  EXPECT_EQ(targets_.StateOf("chat").max_context, 80);  // it may come back
  EXPECT_EQ(targets_.Places("chat"), 4);
}

TEST_F(DecodeTargetsTest, KnowsNothingOfAnotherModel) {
  Ready("d:1", 100, 4, {"raw"}, "n1", "json");
  EXPECT_EQ(Picked(), "");
  EXPECT_FALSE(targets_.StateOf("none").ready);
  EXPECT_THAT(targets_.Formats("none"), IsEmpty());
  EXPECT_EQ(targets_.Places("none"), std::nullopt);
  EXPECT_EQ(targets_.Pick({.model = "none", .keys = {}, .tried = {}, .numerics = "", .adapter = ""}).target,
            nullptr);
  EXPECT_FALSE(targets_.HasOther("none", {}, ""));
}

TEST_F(DecodeTargetsTest, ServersComeAndGo) {
  Ready("a:1", 100, 4);
  DecodeTarget* const b = Ready("b:1", 100, 4);
  targets_.SetTargets("chat", {ServerName("b:1"), ServerName("e:1")});
  EXPECT_EQ(Find("a:1"), nullptr);
  EXPECT_EQ(Find("b:1"), b);  // as it was, and ready
  EXPECT_EQ(Picked(), "b:1");
  EXPECT_EQ(Picked({b}), "");
  Ready("e:1", 100, 4);
  EXPECT_EQ(Picked({b}), "e:1");
  EXPECT_EQ(targets_.Places("chat"), 8);
  EXPECT_THAT(targets_.Of("json"), SizeIs(1));
}

TEST_F(DecodeTargetsTest, AServerThatGoesEndsWhatItHasAndIsForgotten) {
  Ready("a:1", 100, 4);
  const auto running =
      targets_.Pick({.model = "chat", .keys = {}, .tried = {}, .numerics = "", .adapter = ""}).target;
  EXPECT_THAT(metrics_.Render(), HasSubstr("target=\"a:1\""));
  Ready("b:1", 100, 4);
  targets_.SetTargets("chat", {ServerName("b:1")});
  EXPECT_EQ(Picked(), "b:1");
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("target=\"a:1\"")));
  // A probe that was under way.
  v1::DecodeDescription late;
  late.set_protocol_version(kHandoffVersion);
  late.set_served_model_name("chat");
  running->Described(late);
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("target=\"a:1\"")));
  // Its slot is not another's while it has a request.
  targets_.SetTargets("chat", {ServerName("b:1"), ServerName("f:1")});
  EXPECT_NE(Find("f:1")->slot(), running->slot());
  running->Ended(grpc::Status::OK);
}

TEST_F(DecodeTargetsTest, AListThatIsReplacedKeepsAServerUntilAnotherIsUsable) {
  Ready("a:1", 100, 4);
  targets_.SetTargets("chat", {ServerName("e:1"), ServerName("f:1")});
  EXPECT_EQ(Find("b:1"), nullptr);  // which was of no use
  EXPECT_EQ(Picked(), "a:1");
  EXPECT_FALSE(targets_.Settle());
  targets_.SetTargets("chat", {ServerName("e:1"), ServerName("g:1")});
  EXPECT_TRUE(targets_.StateOf("chat").ready);
  Ready("e:1", 100, 4);
  Load("e:1", 3);
  EXPECT_EQ(Picked(), "e:1");  // a spare is for want of others
  EXPECT_TRUE(targets_.Settle());
  EXPECT_EQ(Find("a:1"), nullptr);
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("target=\"a:1\"")));
  EXPECT_FALSE(targets_.Settle());
}

TEST_F(DecodeTargetsTest, ASpareThatIsGoneIsNoSpare) {
  Ready("a:1", 100, 4);
  targets_.SetTargets("chat", {ServerName("e:1")});
  Find("a:1")->Down("gone");
  EXPECT_TRUE(targets_.Settle());
  EXPECT_EQ(Find("a:1"), nullptr);
  // A list without a server wants none.
  Ready("e:1", 100, 4);
  targets_.SetTargets("chat", {});
  EXPECT_THAT(targets_.Of("chat"), IsEmpty());
  EXPECT_EQ(targets_.StateOf("chat").reason, "no server is named by file:list");
}

TEST_F(DecodeTargetsTest, ASpareThatIsNamedAgainIsNoSpare) {
  Ready("a:1", 100, 4);
  targets_.SetTargets("chat", {ServerName("e:1")});
  targets_.SetTargets("chat", {ServerName("e:1"), ServerName("a:1")});
  Ready("e:1", 100, 4);
  EXPECT_FALSE(targets_.Settle());
  EXPECT_NE(Find("a:1"), nullptr);
}

TEST_F(DecodeTargetsTest, ManyServersMayComeAndGo) {
  for (int i = 0; i < 3 * Metrics::kMaxLabelValues; ++i) {
    const std::string name = absl::StrCat("10.0.0.", i, ":1");
    targets_.SetTargets("chat", {ServerName(name)});
    EXPECT_LT(Find(name)->slot(), 5u);
    EXPECT_THAT(metrics_.Render(), HasSubstr(absl::StrCat("target=\"", name, "\"")));
  }
}

TEST_F(DecodeTargetsTest, TwoModelsThatTakeOneProducersCodesHaveOnePrefillSource) {
  const auto says = [&](const std::string& name, const std::string& model, const std::string& weights,
                        const std::string& encoder) {
    v1::DecodeDescription description;
    description.set_protocol_version(kHandoffVersion);
    description.set_served_model_name(model);
    description.mutable_model()->set_weights_hash(weights);
    description.set_producer(encoder.empty() ? "" : "base");
    description.set_encoder(encoder);
    Find(name)->Described(description);
  };
  EXPECT_EQ(targets_.PrefillSourceOf("chat"), "") << "none is usable";
  says("a:1", "chat", "w1", "");  // an older one
  EXPECT_EQ(targets_.PrefillSourceOf("chat"), "");
  says("b:1", "chat", "w1", "e1");
  says("d:1", "json", "w2", "e1");
  EXPECT_NE(targets_.PrefillSourceOf("chat"), "");
  EXPECT_EQ(targets_.PrefillSourceOf("chat"), targets_.PrefillSourceOf("json"));
  says("d:1", "json", "w2", "e2");
  EXPECT_NE(targets_.PrefillSourceOf("chat"), targets_.PrefillSourceOf("json"));
  EXPECT_EQ(targets_.PrefillSourceOf("none"), "");
}

}  // namespace
}  // namespace aludel
