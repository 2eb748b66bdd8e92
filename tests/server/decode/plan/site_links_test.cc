#include "server/decode/plan/site_links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decode/plan/planner.h"

namespace aludel {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(1000 + seconds); }

TEST(SiteLinks, ASiteWithoutALimitIsFree) {
  SiteLinks links({{"far", 1000}});
  links.Begin({"near", 1e12}, At(0));
  EXPECT_TRUE(links.Open("near", At(0)));
  EXPECT_EQ(links.UsedShare("near", At(0)), 0);
  EXPECT_THAT(links.sites(), testing::ElementsAre("far"));
}

TEST(SiteLinks, NothingBeginsWhileABucketIsEmpty) {
  SiteLinks links({{"far", 1000}});
  EXPECT_TRUE(links.Open("far", At(0)));
  links.Begin({"far", 12000}, At(0));  // ten seconds' worth was there
  EXPECT_FALSE(links.Open("far", At(0)));
  EXPECT_FALSE(links.Open("far", At(1.9)));
  EXPECT_TRUE(links.Open("far", At(2.1)));
  EXPECT_NEAR(links.UsedShare("far", At(2.1)), .99, 1e-9);
  // It was a tenth of what was expected.
  links.End({"far", 12000}, 1200, At(2.1));
  EXPECT_EQ(links.UsedShare("far", At(2.1)), 0);
}

TEST(SiteLinks, WhatIsAskedForWheneverThereIsRoomIsWithinTheLimit) {
  SiteLinks links({{"far", 1000}});
  double taken = 0;
  for (double now = 0; now < 1000; now += .1) {
    if (!links.Open("far", At(now))) continue;
    links.Begin({"far", 700}, At(now));
    links.End({"far", 700}, 800, At(now));  // more than expected, each time
    taken += 800;
  }
  EXPECT_LE(taken, 1000 * (1000 + 10) + 800);
  EXPECT_GT(taken, 1000 * (1000 + 9));
}

// A decode server whose own prefill is slow, and a prefill server behind a link that is `kLimit` for this server: prompts come
// by a day's curve, in virtual seconds. Both prefill in order of arrival.
class Day {
 public:
  static constexpr double kLocalSeconds = 2e-3;  // a token
  static constexpr double kFarSeconds = .3e-3;
  static constexpr double kRate = 4e6;         // bytes a second that the link carries
  static constexpr uint64_t kLimit = 350'000;  // less than all prompts of the busy hours would take
  static constexpr double kBytesPerToken = 800;
  static constexpr double kSeconds = 864;  // a day at 1/100 of its time

  struct Result {
    double mean_ttft = 0;
    double bytes = 0;
    int refused = 0;  // handoffs, for the limit
  };

  Day(uint32_t seed, double peak) {
    std::mt19937 random(seed);
    std::exponential_distribution<double> gap(1);
    std::lognormal_distribution<double> length(std::log(800), .9);
    for (double now = 0;;) {
      const double load =
          peak * (1 - std::cos(2 * std::numbers::pi * now / kSeconds)) / 2;  // prompts a second
      now += gap(random) / std::max(load, .05);
      if (now >= kSeconds) break;
      prompts_.push_back({now, static_cast<int64_t>(std::clamp(length(random), 50.0, 8000.0))});
    }
  }

  // `threshold`: handed over from this length on, as long as the link's bucket has something; nothing: as the planner says.
  Result Run(std::optional<int64_t> threshold) const {
    SiteLinks links({{"far", kLimit}});
    PlannerOptions options{.min_remote_tokens = 32, .recomputed_tail_tokens = 1, .by_prediction = true};
    double local_free = 0, far_free = 0, link_free = 0;
    std::multimap<double, SiteLinks::Use> ends;
    Result result;
    for (const auto& [now, tokens] : prompts_) {
      while (!ends.empty() && ends.begin()->first <= now) {
        links.End(ends.begin()->second, ends.begin()->second.expected_bytes, At(ends.begin()->first));
        ends.erase(ends.begin());
      }
      const auto length = static_cast<double>(tokens);
      const double bytes = length * kBytesPerToken;
      const double local = std::max(now, local_free) + length * kLocalSeconds - now;
      const double made = std::max(now, far_free) + length * kFarSeconds;
      const double remote = std::max(made, std::max(now, link_free) + bytes / kRate) - now;
      const bool open = links.Open("far", At(now));
      bool far = threshold && tokens >= *threshold && open;
      if (!threshold) {
        const PlanTarget target{
            .name = "far", .ready = true, .formats = {"codes"}, .site = "far", .link_open = open};
        const auto predict = [&](std::optional<size_t> place, const std::string&) -> Prediction {
          return {place ? remote : local, false};
        };
        const auto plan = MakePlan(options, {"codes"}, {target}, {.prompt_tokens = tokens}, predict);
        EXPECT_TRUE(plan.ok());
        far = plan->remote();
        result.refused += plan->reason == PlanReason::kSiteLimit ? 1 : 0;
      }
      if (far) {
        far_free = made;
        link_free = now + remote;
        result.bytes += bytes;
        links.Begin({"far", bytes}, At(now));
        ends.emplace(now + remote, SiteLinks::Use{"far", bytes});
      } else {
        local_free = now + local;
      }
      result.mean_ttft += (far ? remote : local) / static_cast<double>(prompts_.size());
    }
    return result;
  }

 private:
  struct Prompt {
    double at;
    int64_t tokens;
  };
  std::vector<Prompt> prompts_;
};

TEST(SiteLinks, OverADayItIsAboutAsSoonAsTheBestFixedThreshold) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  constexpr int kDays = 20;
  double sum = 0;
  for (uint32_t i = 0; i < kDays; ++i) {
    const Day day(seed + i, /*peak=*/.8);
    const Day::Result ours = day.Run(std::nullopt);
    EXPECT_LT(ours.bytes, 1.05 * static_cast<double>(Day::kLimit) * Day::kSeconds);
    EXPECT_GT(ours.refused, 10);
    double best = 1e9;  // of any length, chosen when the day is over
    for (const int64_t threshold : {0, 100, 200, 400, 600, 800, 1000, 1500, 2000, 3000, 5000, 100000}) {
      best = std::min(best, day.Run(threshold).mean_ttft);
    }
    EXPECT_LT(ours.mean_ttft, 1.5 * best);
    sum += ours.mean_ttft / best;
  }
  EXPECT_LT(sum / kDays, 1.05);
}

}  // namespace
}  // namespace aludel
