#include "server/host/codec_sets.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/codec.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A side of a format that says when it is freed.
class Side {
 public:
  Side(const std::string& name, const std::string& hash, int* freed) : freed_(freed) {
    spec_.name = name;
    spec_.artifact_hash = hash;
  }
  ~Side() { ++*freed_; }
  const CodecSpec& spec() const { return spec_; }

 private:
  CodecSpec spec_;
  int* const freed_;
};

using Sets = CodecSets<Side>;

class CodecSetsTest : public ::testing::Test {
 protected:
  // An artifact whose format "a" is of this encoder; "raw" is of none.
  Sets::Handle Make(const std::string& hash) {
    auto set = std::make_shared<CodecSet<Side>>();
    set->origin.version = hash;
    set->codecs.push_back(std::make_unique<Side>("a", hash, &freed_));
    set->codecs.push_back(std::make_unique<Side>("raw", "", &unrelated_));
    return set;
  }
  std::vector<std::string> Offered() const {
    std::vector<std::string> versions;
    for (const auto& set : sets_.offered()) versions.push_back(set->origin.version);
    return versions;
  }
  absl::Status Switch(Sets::Handle next) { return sets_.Switch(std::move(next), now_, keep_); }
  std::string Hash(const std::string& name, const std::string& hash) {
    const auto found = sets_.Find(name, hash, now_);
    return found == nullptr ? "none" : found->spec().artifact_hash;
  }

  int freed_ = 0;
  int unrelated_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  absl::Duration keep_ = absl::Seconds(60);
  Sets sets_{Make("e1")};
};

TEST_F(CodecSetsTest, BothEndsOfASwitchAreFoundByTheirEncoders) {
  EXPECT_EQ(Hash("a", "e2"), "e1") << "of the name, to say what there is";
  ASSERT_TRUE(Switch(Make("e2")).ok());
  EXPECT_THAT(Offered(), ElementsAre("e2", "e1"));
  EXPECT_EQ(Hash("a", "e1"), "e1");
  EXPECT_EQ(Hash("a", "e2"), "e2");
  EXPECT_EQ(Hash("a", "e3"), "e2");
  EXPECT_EQ(Hash("raw", ""), "");
  EXPECT_EQ(Hash("b", "e1"), "none");
  EXPECT_EQ(sets_.Find("a")->spec().artifact_hash, "e2");
}

TEST_F(CodecSetsTest, TheOneBeforeIsKeptWhileItIsUsed) {
  ASSERT_TRUE(Switch(Make("e2")).ok());
  now_ += absl::Seconds(50);
  EXPECT_EQ(Hash("a", "e1"), "e1");
  now_ += absl::Seconds(50);
  sets_.Tend(now_, keep_);
  EXPECT_THAT(Offered(), ElementsAre("e2", "e1"));
  EXPECT_EQ(Hash("a", "e2"), "e2") << "which is no use of the other";
  now_ += absl::Seconds(10);
  sets_.Tend(now_, keep_);
  EXPECT_THAT(Offered(), ElementsAre("e2"));
  EXPECT_EQ(freed_, 1);
}

TEST_F(CodecSetsTest, ASetIsFreedBehindItsLastUserAndByTendAlone) {
  std::shared_ptr<const Side> ticket = sets_.Find("a");
  ASSERT_TRUE(Switch(Make("e2")).ok());
  sets_.Tend(now_, absl::ZeroDuration());
  EXPECT_THAT(Offered(), ElementsAre("e2"));
  EXPECT_EQ(sets_.held(), 2);
  EXPECT_EQ(ticket->spec().artifact_hash, "e1") << "it goes on";
  ticket = nullptr;
  EXPECT_EQ(freed_, 0) << "on this thread, which may be an engine's";
  sets_.Tend(now_, absl::ZeroDuration());
  EXPECT_EQ(freed_, 1);
  EXPECT_EQ(sets_.held(), 1);
}

TEST_F(CodecSetsTest, SwitchesWaitForUsersOfOldOnes) {
  keep_ = absl::ZeroDuration();  // nothing else waits
  const std::shared_ptr<const Side> first = sets_.Find("a");
  ASSERT_TRUE(Switch(Make("e2")).ok());
  std::shared_ptr<const Side> second = sets_.Find("a");
  ASSERT_TRUE(Switch(Make("e3")).ok());
  EXPECT_EQ(sets_.held(), 3);
  const Sets::Handle fourth = Make("e4");
  EXPECT_THAT(std::string(Switch(fourth).message()), HasSubstr("still use"));
  EXPECT_THAT(Offered(), ElementsAre("e3", "e2"));
  sets_.Tend(now_, absl::Seconds(1));
  EXPECT_FALSE(Switch(fourth).ok()) << "the first one is used";
  EXPECT_TRUE(absl::IsAborted(sets_.CheckRoom(now_, keep_))) << "so that it is tried again";
}

TEST_F(CodecSetsTest, SetsThatNobodyAsksForAnyMoreCountAsLongAsTheyAreHeld) {
  keep_ = absl::ZeroDuration();
  const std::shared_ptr<const Side> first = sets_.Find("a");
  std::vector<std::shared_ptr<const Side>> users;
  for (const char* next : {"e2", "e3"}) {
    ASSERT_TRUE(sets_.CheckRoom(now_, keep_).ok()) << next;
    ASSERT_TRUE(Switch(Make(next)).ok()) << next;
    users.push_back(sets_.Find("a"));
    sets_.Tend(now_, keep_);
    EXPECT_EQ(Offered().size(), 1u);
  }
  EXPECT_EQ(sets_.held(), 3);
  EXPECT_TRUE(absl::IsAborted(sets_.CheckRoom(now_, keep_)));
  EXPECT_FALSE(Switch(Make("e4")).ok());
  users.erase(users.begin());  // of the second one
  sets_.Tend(now_, keep_);
  EXPECT_TRUE(Switch(Make("e4")).ok());
}

TEST_F(CodecSetsTest, AThirdWaitsWhileBothOthersAreAskedFor) {
  ASSERT_TRUE(Switch(Make("e2")).ok());
  now_ += absl::Seconds(50);
  EXPECT_EQ(Hash("a", "e1"), "e1") << "a peer has nothing else";
  EXPECT_EQ(Hash("a", "e2"), "e2") << "and another has followed";
  const Sets::Handle third = Make("e3");
  EXPECT_TRUE(absl::IsAborted(sets_.CheckRoom(now_, keep_)));
  EXPECT_THAT(std::string(Switch(third).message()), HasSubstr("both asked for"));
  EXPECT_THAT(Offered(), ElementsAre("e2", "e1"));
  now_ += absl::Seconds(50);
  EXPECT_EQ(Hash("a", "e2"), "e2");
  EXPECT_TRUE(absl::IsAborted(sets_.CheckRoom(now_, keep_)));
  now_ += absl::Seconds(10);
  EXPECT_TRUE(Switch(third).ok()) << "nobody asks for the first one any more";
  EXPECT_THAT(Offered(), ElementsAre("e3", "e2"));
}

// Else an end that has what no peer takes, and a peer that waits for it to let go of the one that both have, would
// wait for each other.
TEST_F(CodecSetsTest, AThirdTakesThePlaceOfOneThatNobodyHasAskedFor) {
  ASSERT_TRUE(Switch(Make("e2")).ok());
  EXPECT_EQ(Hash("raw", ""), "") << "which asks for no version";
  now_ += absl::Seconds(50);
  EXPECT_EQ(Hash("a", "e1"), "e1");
  ASSERT_TRUE(sets_.CheckRoom(now_, keep_).ok());
  ASSERT_TRUE(Switch(Make("e3")).ok());
  EXPECT_THAT(Offered(), ElementsAre("e3", "e1"));
  sets_.Tend(now_, keep_);
  EXPECT_EQ(freed_, 1);
  EXPECT_EQ(sets_.held(), 2);
}

TEST_F(CodecSetsTest, RollingBackTakesTheKeptOne) {
  const Sets::Handle first = sets_.current();
  const Sets::Handle second = Make("e2");
  ASSERT_TRUE(Switch(second).ok());
  ASSERT_TRUE(Switch(first).ok());
  EXPECT_THAT(Offered(), ElementsAre("e1", "e2"));
  ASSERT_TRUE(Switch(first).ok()) << "it is current";
  EXPECT_THAT(Offered(), ElementsAre("e1", "e2"));
  EXPECT_EQ(sets_.held(), 2);
}

}  // namespace
}  // namespace aludel
