#include "server/process/reloader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace aludel {
namespace {

bool Becomes(const std::atomic<int>& value, int wanted) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (value != wanted && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  return value == wanted;
}

TEST(Reloader, ReloadsAFileThatWasReplacedAndNoOther) {
  const std::string changing = absl::StrCat(::testing::TempDir(), "reloader_a");
  const std::string quiet = absl::StrCat(::testing::TempDir(), "reloader_b");
  std::ofstream(changing) << "1";
  std::ofstream(quiet) << "1";
  std::atomic<int> reloads = 0;
  std::atomic<int> others = 0;
  Reloader reloader({{{changing},
                      [&] {
                        ++reloads;
                        return absl::OkStatus();
                      }},
                     {{quiet},
                      [&] {
                        ++others;
                        return absl::OkStatus();
                      }}},
                    absl::Milliseconds(5));
  absl::SleepFor(absl::Milliseconds(30));
  EXPECT_EQ(reloads, 0);
  std::ofstream(changing + ".new") << "22";
  std::filesystem::rename(changing + ".new", changing);
  EXPECT_TRUE(Becomes(reloads, 1));
  EXPECT_EQ(others, 0);
}

TEST(Reloader, ReloadsEverythingWhenPokedAndGoesOnAfterAFailure) {
  std::atomic<int> reloads = 0;
  Reloader reloader({{{"/nonexistent"},
                      [&] {
                        ++reloads;
                        return absl::NotFoundError("gone");
                      }}},
                    absl::Hours(1));
  reloader.Poke();
  EXPECT_TRUE(Becomes(reloads, 1));
  reloader.Poke();
  EXPECT_TRUE(Becomes(reloads, 2));
}

}  // namespace
}  // namespace aludel
