#include "runtime/codec/artifact/artifact_versions.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/artifact/artifact_files.h"

namespace aludel {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kDemo[] = "deploy/demo/codec";
constexpr char kEncoder[] = "aludel-p2.encoder.safetensors";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A directory of versions, and artifacts to publish there: the demo's, each with a manifest of its own.
class Versions : public ::testing::Test {
 protected:
  Versions() {
    std::string pattern = ::testing::TempDir() + "/versionsXXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    root_ = folder_ + "/codec";
  }
  ~Versions() override { fs::remove_all(folder_); }

  // Spaces behind the manifest: another hash, and the same files.
  std::string MakeArtifact(int spaces) {
    const std::string path = absl::StrCat(folder_, "/artifact-", spaces);
    fs::copy(kDemo, path, fs::copy_options::recursive);
    std::ofstream(path + "/artifact.json", std::ios::app) << std::string(spaces, ' ');
    return path;
  }
  std::string Publish(const std::string& source) {
    const auto version = PublishVersion(root_, source);
    EXPECT_TRUE(version.ok()) << version.status();
    return version.ok() ? version->name : "";
  }
  // What servers would load.
  std::string Current() const {
    const auto resolved = ResolveArtifact(root_);
    return resolved.ok() ? fs::path(*resolved).filename().string() : Message(resolved.status());
  }
  void Corrupt(const std::string& file) const {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-1, std::ios::end);
    bytes.put('?');
  }

  std::string folder_;
  std::string root_;
};

TEST_F(Versions, PublishingSwitchesAndRollingBackSwitchesBack) {
  const std::string first = MakeArtifact(1), second = MakeArtifact(2);
  EXPECT_EQ(Publish(first), "0001");
  EXPECT_EQ(Current(), "0001");
  EXPECT_EQ(Publish(second), "0002");
  EXPECT_EQ(Current(), "0002");
  EXPECT_EQ(*HashManifest(*ResolveArtifact(root_)), *HashManifest(second));
  EXPECT_TRUE(VerifyArtifact(*LoadArtifactManifest(root_ + "/current")).ok());
  EXPECT_EQ(RollBackVersion(root_)->name, "0001");
  EXPECT_EQ(Current(), "0001");
  EXPECT_EQ(RollBackVersion(root_)->name, "0002") << "and forward again";
  EXPECT_EQ(Publish(first), "0003");
  EXPECT_EQ(RollBackVersion(root_, "0001")->name, "0001");
  const auto versions = ListVersions(root_);
  ASSERT_TRUE(versions.ok()) << versions.status();
  ASSERT_THAT(*versions, SizeIs(3));
  EXPECT_TRUE((*versions)[0].current);
  EXPECT_TRUE((*versions)[2].previous);
  for (const ArtifactVersion& version : *versions) EXPECT_TRUE(version.status.ok()) << version.status;
}

TEST_F(Versions, AManifestIsReadWithTheFilesOfItsOwnVersion) {
  Publish(MakeArtifact(1));
  const auto manifest = LoadArtifactManifest(root_ + "/current");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Publish(MakeArtifact(2));
  EXPECT_EQ(fs::path(manifest->directory).filename(), "0001") << "whatever is current by now";
}

TEST_F(Versions, WhatIsNotWholeIsNotSwitchedTo) {
  Publish(MakeArtifact(1));
  const std::string torn = MakeArtifact(2), missing = MakeArtifact(3);
  Corrupt(torn + "/" + kEncoder);
  fs::remove(missing + "/" + kEncoder);
  EXPECT_THAT(Message(PublishVersion(root_, torn).status()), HasSubstr("the manifest says"));
  EXPECT_THAT(Message(PublishVersion(root_, missing).status()), HasSubstr(kEncoder));
  EXPECT_THAT(Message(PublishVersion(root_, folder_ + "/none").status()), HasSubstr("artifact.json"));
  EXPECT_EQ(Current(), "0001");
  EXPECT_THAT(*ListVersions(root_), SizeIs(1)) << "and nothing is left of them";
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(root_ + "/versions")) ++entries;
  EXPECT_EQ(entries, 1);

  Publish(MakeArtifact(4));
  Corrupt(root_ + "/versions/0001/" + kEncoder);
  EXPECT_THAT(Message(RollBackVersion(root_).status()), HasSubstr("the manifest says"));
  EXPECT_EQ(Current(), "0002");
  EXPECT_FALSE(RollBackVersion(root_, "0009").ok());
  EXPECT_FALSE(RollBackVersion(root_, "../../etc").ok());
  EXPECT_FALSE(RollBackVersion(kDemo).ok());
  EXPECT_FALSE(PublishVersion(MakeArtifact(5), kDemo).ok()) << "an artifact is no directory of versions";
}

TEST_F(Versions, LocationsAreFollowedOrTakenAsTheyAre) {
  EXPECT_EQ(*ResolveArtifact(""), "");
  EXPECT_EQ(*ResolveArtifact(kDemo), kDemo) << "no link: as it was given";
  EXPECT_EQ(*ResolveArtifact("nowhere"), "nowhere") << "loading says what is wrong";
  EXPECT_FALSE(FollowsVersions(kDemo));
  EXPECT_FALSE(FollowsVersions(""));
  Publish(kDemo);
  for (const std::string& location : {root_, root_ + "/", root_ + "/current", root_ + "/current/"}) {
    EXPECT_TRUE(FollowsVersions(location)) << location;
    EXPECT_EQ(fs::path(*ResolveArtifact(location)).filename(), "0001") << location;
    EXPECT_EQ(fs::path(*VersionsOf(location)), fs::path(root_)) << location;
  }
  EXPECT_FALSE(VersionsOf(kDemo));
  const std::string circle = folder_ + "/circle";
  fs::create_directories(circle + "/versions");
  EXPECT_EQ(*ResolveArtifact(circle), circle) << "nothing was published yet";
  fs::create_directory_symlink(".", circle + "/current");
  EXPECT_FALSE(ResolveArtifact(circle).ok());
  const std::string link = folder_ + "/link";
  fs::create_directory_symlink(root_, link);
  EXPECT_EQ(fs::path(*ResolveArtifact(link)).filename(), "0001");

  fs::remove_all(root_ + "/versions/0001");
  EXPECT_THAT(Message(ResolveArtifact(root_).status()), HasSubstr("leads to no artifact"));
  EXPECT_FALSE(LoadArtifactManifest(root_ + "/current").ok());
  EXPECT_EQ(Publish(kDemo), "0001") << "a dangling link is replaced";
  EXPECT_EQ(Current(), "0001");
}

// What a kill between the links leaves.
TEST_F(Versions, ASwitchThatWasCutOffIsSaidAndMendedByName) {
  Publish(MakeArtifact(1));
  Publish(MakeArtifact(2));
  Publish(MakeArtifact(3));
  fs::remove(root_ + "/previous");
  fs::create_symlink("versions/0003", root_ + "/previous");
  fs::create_symlink("versions/0001", root_ + "/.current.new");
  fs::create_directories(root_ + "/versions/.copy-abcdef");
  EXPECT_EQ(Current(), "0003");
  EXPECT_THAT(Message(RollBackVersion(root_).status()), HasSubstr("a switch was cut off: name a version"));
  EXPECT_EQ(RollBackVersion(root_, "0002")->name, "0002");
  EXPECT_EQ(RollBackVersion(root_)->name, "0003");
  EXPECT_EQ(Publish(MakeArtifact(4)), "0004");
  EXPECT_FALSE(fs::exists(root_ + "/versions/.copy-abcdef"));
}

TEST_F(Versions, PublishersAtATimeGetAVersionEach) {
  std::vector<std::string> sources;
  for (int i = 1; i <= 4; ++i) sources.push_back(MakeArtifact(i));
  std::vector<std::string> names(sources.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sources.size(); ++i) {
    threads.emplace_back([&, i] { names[i] = Publish(sources[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()),
            (std::set<std::string>{"0001", "0002", "0003", "0004"}));
  EXPECT_EQ(Current(), "0004");
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(*HashManifest(root_ + "/versions/" + names[i]), *HashManifest(sources[i]));
  }
}

// At whatever step the publisher dies, what is current is whole, and the next publisher is not held up.
TEST_F(Versions, AKilledPublisherLeavesAWholeVersionCurrent) {
  const std::string source = MakeArtifact(1);
  Publish(MakeArtifact(2));
  // Some are killed when they have published, too, however slow this disk is.
  const auto published = [&] { return ListVersions(root_).value_or(std::vector<ArtifactVersion>()).size(); };
  for (int delay_us = 0; delay_us < 40'000 || (published() < 3 && delay_us < 500'000); delay_us += 2500) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      while (true) PublishVersion(root_, source).status().IgnoreError();
    }
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto manifest = LoadArtifactManifest(root_);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    ASSERT_TRUE(VerifyArtifact(*manifest).ok());
    const auto versions = ListVersions(root_);
    ASSERT_TRUE(versions.ok()) << versions.status();
    for (const ArtifactVersion& version : *versions) EXPECT_TRUE(version.status.ok()) << version.status;
  }
  EXPECT_GE(published(), 3u);
  const std::string last = Publish(source);
  EXPECT_EQ(Current(), last);
}

TEST_F(Versions, ACalibrationIntoADirectoryOfVersionsAddsOne) {
  Publish(kDemo);
  const std::string destination = root_ + "/current";
  const auto old = FindArtifact(destination);
  ASSERT_TRUE(old.ok() && old->has_value()) << old.status();
  ArtifactManifest manifest{.producer = (*old)->producer, .producer_hash = (*old)->producer_hash};
  {
    auto writer = ArtifactWriter::Begin(destination);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(KeepFormats(**old, {"scd"}, /*replace_controls=*/true, &*writer, &manifest).ok());
    EXPECT_EQ(Current(), "0001") << "until it is whole";
    const absl::Status published = writer->Publish(manifest);
    ASSERT_TRUE(published.ok()) << published;
  }
  EXPECT_EQ(Current(), "0002");
  const auto now = LoadArtifactManifest(destination);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_THAT(now->formats, SizeIs((*old)->formats.size() - 1));
  EXPECT_TRUE(VerifyArtifact(*now).ok());
  EXPECT_EQ(RollBackVersion(root_)->name, "0001");
}

TEST_F(Versions, SaysWhichFileIsHeldByAnotherThatPublishes) {
  const std::string first = MakeArtifact(1);
  ASSERT_EQ(Publish(first), "0001");
  const std::string lock = root_ + "/.lock";
  const int held = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(held, 0);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  for (const absl::Status& status : {PublishVersion(root_, first, absl::ZeroDuration()).status(),
                                     RollBackVersion(root_, "0001", absl::ZeroDuration()).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr(lock + " is held by another process"));
  }
  // Once it is let go, the one that waits goes on.
  std::thread publisher([&] { EXPECT_EQ(Publish(first), "0002"); });
  ::close(held);
  publisher.join();
  EXPECT_EQ(Current(), "0002");
}

}  // namespace
}  // namespace aludel
