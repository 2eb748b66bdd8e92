// Kills a process that writes a prefix store, at random points, and looks at what it left: no byte may be wrong, the
// store must open, and its limit must hold. A thousand kills are a command: store_crash_test --kills 1000.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/store/prefix_store.h"
#include "spdlog/spdlog.h"
#include "tests/testing/fake_codec.h"

extern char** environ;

namespace aludel {
namespace {

constexpr uint64_t kLimit = 4 << 20;
constexpr uint64_t kPrompts = 150;
constexpr int kMaxMicroseconds = 40000;
constexpr int kReady = 3;  // where a writer says that it has opened its store

int kills = 40;
std::string program;

// Everything about a prompt follows from its number.
std::vector<int32_t> PromptOf(uint64_t number) {
  std::mt19937_64 random(number);
  std::vector<int32_t> prompt(4 + random() % 12);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 50);
  prompt[0] = static_cast<int32_t>(number % 40);  // some share their beginnings
  return prompt;
}

std::vector<StoredFrame> FramesOf(const std::vector<int32_t>& prompt, int64_t begin, int64_t end) {
  uint64_t seed = 1;
  for (int64_t i = 0; i < end; ++i) seed = seed * 1000003 + static_cast<uint64_t>(prompt[i]);
  std::mt19937_64 random(seed);
  std::vector<StoredFrame> frames;
  for (uint16_t layer = 0; layer < 2; ++layer) {
    std::vector<uint8_t> payload(100 + random() % 30000);
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
    frames.push_back(
        {{layer, 1, 0, static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)}, payload});
  }
  return frames;
}

PrefixStore::Options Options(const std::string& directory) {
  return {.producer = "base",
          .memory_bytes = 256 << 10,
          .disk = PrefixStore::Disk{.path = directory, .bytes = kLimit, .read_threads = 2},
          .encoders = {EncoderTag(FakeSpec())}};
}

// Checks what is stored of a prompt, and returns its tokens; -1 where a byte is wrong.
int64_t Check(PrefixStore& store, const std::vector<int32_t>& prompt, StorePosition* at) {
  *at = store.Begin(FakeSpec(), "");
  for (const StoredChunk& chunk : store.Find(prompt, absl::InfiniteDuration(), at)) {
    std::promise<StoredFrames> loaded;
    StoredFrames frames = chunk.frames;
    if (frames == nullptr) {
      store.Load(chunk, prompt, [&loaded](StoredFrames read) { loaded.set_value(std::move(read)); });
      frames = loaded.get_future().get();
    }
    if (frames == nullptr) continue;
    const std::vector<StoredFrame> want = FramesOf(prompt, chunk.token_begin, chunk.end.tokens);
    if (frames->size() != want.size()) return -1;
    for (size_t i = 0; i < want.size(); ++i) {
      if ((*frames)[i].payload != want[i].payload) return -1;
      if ((*frames)[i].coverage.first_layer != want[i].coverage.first_layer) return -1;
    }
  }
  return at->tokens;
}

[[noreturn]] void WriteUntilKilled(const std::string& directory, uint64_t seed) {
  std::mt19937_64 random(seed);
  PrefixStore store(Options(directory));
  // The parent may have gone on already.
  signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t told = write(kReady, "r", 1);
  for (;;) {
    const std::vector<int32_t> prompt = PromptOf(random() % kPrompts);
    StorePosition at;
    if (Check(store, prompt, &at) < 0) std::exit(1);
    while (at.tokens < static_cast<int64_t>(prompt.size())) {
      const int64_t end = std::min<int64_t>(at.tokens + 4, static_cast<int64_t>(prompt.size()));
      if (!store.Put(prompt, end, FramesOf(prompt, at.tokens, end), &at)) break;
    }
    if (random() % 500 == 0) store.Clear([](const absl::Status&) {});
  }
}

uint64_t FileBytes(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    struct stat status = {};
    stat(file.path().c_str(), &status);
    bytes += std::max<uint64_t>(static_cast<uint64_t>(status.st_blocks) * 512,
                                static_cast<uint64_t>(status.st_size));
  }
  return bytes;
}

// Returns once it has opened its store, or before where `may_be_early`.
pid_t StartWriter(const std::string& directory, const std::string& seed, bool may_be_early) {
  int ready[2] = {};
  EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Onto itself, which clears the close-on-exec flag, should the pipe's end be that one.
  posix_spawn_file_actions_adddup2(&actions, ready[1], kReady);
  const char* arguments[] = {program.c_str(), "--writer", directory.c_str(), seed.c_str(), nullptr};
  pid_t pid = -1;
  EXPECT_EQ(
      posix_spawn(&pid, program.c_str(), &actions, nullptr, const_cast<char* const*>(arguments), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ready[1]);
  char byte = 0;
  if (!may_be_early) {
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
  }
  close(ready[0]);
  return pid;
}

TEST(StoreCrash, AKillAtAnyPointLeavesNoWrongByteAndAStoreThatOpensWithinItsLimit) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/store-crash-", getpid());
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  std::mt19937_64 random(7);
  int64_t tokens = 0;
  uint64_t damaged = 0;
  int with_chunks = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t writer = StartWriter(directory, absl::StrCat(random()), i % 4 == 0);
    absl::SleepFor(absl::Microseconds(random() % kMaxMicroseconds));
    kill(writer, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer found a wrong byte";
    ASSERT_LE(FileBytes(directory), kLimit) << "after kill " << i;
    PrefixStore store(Options(directory));
    ASSERT_TRUE(store.stats().disk.open) << "after kill " << i;
    with_chunks += store.stats().disk.entries > 0 ? 1 : 0;
    for (uint64_t number = 0; number < kPrompts; ++number) {
      StorePosition at;
      const int64_t found = Check(store, PromptOf(number), &at);
      ASSERT_GE(found, 0) << "a wrong byte after kill " << i;
      tokens += found;
    }
    damaged += store.stats().damaged;
  }
  std::printf("%d kills, %d stores with chunks, %lld tokens read back, %llu damaged records refused\n", kills,
              with_chunks, static_cast<long long>(tokens), static_cast<unsigned long long>(damaged));
  EXPECT_GT(with_chunks, kills / 2);
  EXPECT_GT(tokens, 0);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);
  aludel::program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (argc == 4 && std::string(argv[1]) == "--writer") {
    aludel::WriteUntilKilled(argv[2], std::strtoull(argv[3], nullptr, 10));
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--kills") aludel::kills = std::atoi(argv[2]);
  return RUN_ALL_TESTS();
}
