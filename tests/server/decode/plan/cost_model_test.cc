#include "server/decode/plan/cost_model.h"

#include <numeric>
#include <optional>

#include "gtest/gtest.h"
#include "server/decode/plan/cost_fit.h"

namespace aludel {
namespace {

TEST(CostFit, FindsTheLineAndForgetsAnOldOne) {
  CostFit fit;
  EXPECT_FALSE(fit.At(1).has_value());
  fit.Add(100, 2);
  EXPECT_NEAR(*fit.At(200), 4, 1e-9);  // one sample: in proportion
  for (int i = 0; i < 100; ++i) fit.Add(100 + i, 1 + 0.5 * (100 + i));
  EXPECT_NEAR(*fit.At(1000), 501, 10);
  for (int i = 0; i < 400; ++i) fit.Add(100 + 10 * (i % 200), 7);
  EXPECT_NEAR(*fit.At(1000), 7, 0.1);
  for (int i = 0; i < 100; ++i) fit.Add(100 + 10 * i, 2000 - i);  // falling: nothing takes less for more
  EXPECT_GT(*fit.At(5000), 0);
}

TEST(CostFit, FindsTheSquareOfAttentionAtShortAndLongPromptsAlike) {
  const auto seconds = [](double tokens) { return 1e-3 + 1e-4 * tokens + 5e-8 * tokens * tokens; };
  CostFit fit;
  for (int i = 0; i < 30; ++i)
    fit.Add(60 + 70 * (i % 14), seconds(60 + 70 * (i % 14)) * (i % 2 ? 1.02 : 0.98));
  for (const double tokens : {60.0, 100.0, 500.0, 2000.0})
    EXPECT_NEAR(*fit.At(tokens), seconds(tokens), 0.1 * seconds(tokens)) << tokens;
}

TEST(CostFit, ASignedLineMayFallBelowZero) {
  CostFit fit;
  EXPECT_EQ(fit.SignedAt(10), 0);
  fit.Add(100, -3);
  EXPECT_NEAR(fit.SignedAt(1000), -3, 1e-9);  // one sample: the same everywhere
  for (int i = 0; i < 400; ++i) fit.Add(100 + 10 * (i % 100), 2 - 0.01 * (100 + 10 * (i % 100)));
  EXPECT_NEAR(fit.SignedAt(50), 1.5, 0.1);
  EXPECT_NEAR(fit.SignedAt(1000), -8, 0.1);
}

// A world in which everything takes exactly what its figures say.
struct World {
  double link = 1e6;  // bytes per second
  double bytes_per_token = 500;
  double producer = 1e-4;  // seconds per token
  double consumer = 2e-5;
  double overhead = 0.004;

  double Ttft(int64_t tokens, int64_t cached = 0) const {
    return overhead + std::max(producer * (tokens - cached), tokens * bytes_per_token / link) +
           consumer * tokens;
  }
  // `step_wait`: beside local prefill it is that much later.
  void Show(CostModel& model, const std::string& format, const std::vector<int32_t>& prompt,
            int64_t cached = 0, const std::string& salt = "", double step_wait = 0) const {
    const auto tokens = static_cast<double>(prompt.size());
    const double made_in = producer * (tokens - cached);
    const double sent_in = tokens * bytes_per_token / link;
    StageSeconds stages;
    stages.reconstruct = consumer * tokens;
    stages.ttft = Ttft(static_cast<int64_t>(tokens), cached) + step_wait;
    model.ObserveRemote({.name = "a"}, format, prompt, salt, stages, {.prefill = made_in},
                        {.bytes = static_cast<uint64_t>(tokens * bytes_per_token),
                         .first_bytes = static_cast<uint64_t>(tokens * bytes_per_token / 8),
                         .seconds = std::max(made_in, sent_in) * 7 / 8,
                         .step_wait = step_wait,
                         .beside_local = step_wait > 0});
  }
};

std::vector<int32_t> Prompt(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(CostModel, WhatASlowLinkTookIsExpectedOfStoredPromptsToo) {
  const World slow{.link = 1e5};
  CostModel model;
  slow.Show(model, "raw", Prompt(400));  // one says nothing of the link's rate yet
  EXPECT_NEAR(*model.PredictRemote({.name = "a"}, "raw", Prompt(400, 9000), "", /*stored=*/400),
              slow.Ttft(400), .2 * slow.Ttft(400));
}

TEST(CostModel, WhatWaitedForLocalPrefillIsNotExpectedToDoSoWithoutIt) {
  const World world;
  CostModel model;
  // Handoffs are chosen when prompts are waiting here.
  for (int i = 0; i < 40; ++i) world.Show(model, "raw", Prompt(100 + 10 * (i % 20), 1000 * i), 0, "", .05);
  const auto expected = [&] { return *model.PredictRemote({.name = "a"}, "raw", Prompt(300, 77777), ""); };
  EXPECT_NEAR(expected(), world.Ttft(300), .1 * world.Ttft(300));
  model.BeginLocal(500);
  EXPECT_NEAR(expected(), world.Ttft(300) + .05, .1 * world.Ttft(300));
  model.EndLocal(500);
  world.Show(model, "raw", Prompt(300, 50000));
  EXPECT_NEAR(expected(), world.Ttft(300), .1 * world.Ttft(300));
}

TEST(CostModel, KnowsHowManyRequestsCome) {
  CostModel model;
  absl::Time now = absl::UnixEpoch() + absl::Hours(400000);
  EXPECT_EQ(model.ArrivalsPerSecond(now), 0);
  for (int i = 0; i < 600; ++i) model.Arrive(now += absl::Milliseconds(200));
  EXPECT_NEAR(model.ArrivalsPerSecond(now), 5, .1);
  EXPECT_LT(model.ArrivalsPerSecond(now + absl::Minutes(2)), .05);
}

TEST(CostModel, ExpectsOfWhatIsStoredHereTheConsumersPartAndThenWhatItTook) {
  CostModel model;
  EXPECT_EQ(model.PredictStored("aludel", 400), std::nullopt);
  const World world;
  for (int i = 0; i < 8; ++i) world.Show(model, "aludel", Prompt(400, 1000 * i));
  EXPECT_NEAR(*model.PredictStored("aludel", 400), world.consumer * 400, 1e-4);
  EXPECT_EQ(model.PredictStored("raw", 400), std::nullopt);
  for (int i = 0; i < 8; ++i) model.ObserveStored("aludel", 400, .05);  // a slow disk
  EXPECT_NEAR(*model.PredictStored("aludel", 400), .05, .01);
}

TEST(CostModel, OneSlowReplayEndsNothingForGood) {
  CostModel model;
  const World world;
  for (int i = 0; i < 8; ++i) world.Show(model, "aludel", Prompt(400, 1000 * i));
  const double expected = *model.PredictStored("aludel", 400);
  model.ObserveStored("aludel", 400, 100 * expected);  // the first one, from a cold disk
  EXPECT_LE(*model.PredictStored("aludel", 400), 2.001 * expected);
  // It is tried again, as whatever was not chosen for long, also where the prefill servers are known by name.
  model.SetTargets({"a"});
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_TRUE(model.IsStale("", "aludel", now));
  model.Chosen("", "aludel", now);
  model.SetTargets({"a", "b"});
  EXPECT_FALSE(model.IsStale("", "aludel", now + absl::Seconds(29)));
  EXPECT_TRUE(model.IsStale("", "", now + absl::Seconds(29))) << "local prefill is another plan";
  EXPECT_TRUE(model.IsStale("", "aludel", now + absl::Seconds(31)));
}

TEST(CostModel, OneSlowPrefillSaysLittleAndManySayAll) {
  CostModel model;
  const auto observe = [&](double seconds) {
    model.ObserveLocal(100, 0, {.prefill = seconds, .ttft = seconds});
  };
  for (int i = 0; i < 10; ++i) observe(0.01);
  observe(1);
  EXPECT_LT(*model.PredictLocal(100), 0.013);
  for (int i = 0; i < 100; ++i) observe(0.05);
  EXPECT_GT(*model.PredictLocal(100), 0.045);
  for (int i = 0; i < 100; ++i) observe(0.001);
  EXPECT_LT(*model.PredictLocal(100), 0.0015);
}

TEST(CostModel, DoesNotTakeACachedPromptForAFastPrefill) {
  const auto seconds = [](int64_t computed) { return 0.001 + 3e-4 * static_cast<double>(computed); };
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    const int64_t tokens = 200 + 40 * i;
    const int64_t cached = i % 2 == 0 ? 0 : (tokens - 1) / 16 * 16;  // every second prompt is a repeated one
    StageSeconds stages;
    stages.ttft = seconds(tokens - cached);
    model.ObserveLocal(tokens, cached, stages);
  }
  EXPECT_NEAR(*model.PredictLocal(1000), seconds(1000), 0.001);
  EXPECT_NEAR(*model.PredictLocal(8), seconds(8), 0.001);
}

TEST(CostModel, ManyPromptsThatWaitAreNotOneLongPrompt) {
  const auto seconds = [](int64_t tokens) {
    return 0.001 + 1e-4 * static_cast<double>(tokens) + 1e-6 * static_cast<double>(tokens * tokens);
  };
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    StageSeconds stages;
    stages.ttft = seconds(100 + 40 * i);
    model.ObserveLocal(100 + 40 * i, 0, stages);
  }
  EXPECT_FALSE(model.local_busy());
  for (int i = 0; i < 10; ++i) model.BeginLocal(400);
  EXPECT_TRUE(model.local_busy());
  EXPECT_NEAR(*model.PredictLocal(400), 10.5 * seconds(400), 0.05 * seconds(400));
}

TEST(CostModel, PredictsWhatItHasSeenAtOtherLengths) {
  CostModel model;
  EXPECT_FALSE(model.PredictLocal(100).has_value());
  EXPECT_FALSE(model.PredictRemote({.name = "a"}, "raw", Prompt(100), "").has_value());
  for (int i = 0; i < 10; ++i) {
    StageSeconds stages;
    const int64_t tokens = 100 + 50 * i;
    stages.ttft = 0.001 + 3e-4 * tokens;
    model.ObserveLocal(tokens, 0, stages);
  }
  EXPECT_NEAR(*model.PredictLocal(1000), 0.301, 0.005);
  model.BeginLocal(500);
  EXPECT_NEAR(*model.PredictLocal(1000), 0.301 + 0.151 / 2, 0.01);
  model.EndLocal(500);
  EXPECT_NEAR(*model.PredictLocal(1000), 0.301, 0.005);

  for (const double link : {1e5, 1e6, 1e9}) {
    CostModel remote;
    const World world{.link = link};
    for (int i = 0; i < 10; ++i) world.Show(remote, "raw", Prompt(100 + 50 * i, 1000 * i));
    EXPECT_NEAR(*remote.PredictRemote({.name = "a"}, "raw", Prompt(900, 77777), ""), world.Ttft(900),
                0.05 * world.Ttft(900))
        << link;
    if (link < 1e7) {
      EXPECT_NEAR(remote.LinkRates().at("a"), link, 0.01 * link);
    } else {
      EXPECT_EQ(remote.LinkRates().at("a"), 0);  // never what took long
    }
  }
}

TEST(CostModel, APauseIsNotASlowLink) {
  CostModel model;
  const World codes{.link = 1e9, .bytes_per_token = 10};
  const World raw{.link = 1e9, .bytes_per_token = 4000};
  codes.Show(model, "aludel-p2", Prompt(250));
  raw.Show(model, "raw", Prompt(250, 1000));
  const World few{.link = 1e4, .bytes_per_token = 10};  // a quarter of a second for 2.5 kB
  for (int i = 0; i < 5; ++i) few.Show(model, "aludel-p2", Prompt(250, 2000 + 1000 * i));
  EXPECT_LT(*model.PredictRemote({.name = "a"}, "raw", Prompt(250, 77777), ""), 1);
  const World once{.link = 1e5, .bytes_per_token = 4000};  // ten seconds, once
  once.Show(model, "raw", Prompt(250, 90000));
  raw.Show(model, "raw", Prompt(250, 91000));
  EXPECT_EQ(model.LinkRates().at("a"), 0);
  for (int i = 0; i < 3; ++i)
    once.Show(model, "raw", Prompt(250, 92000 + 1000 * i));  // from now on it is the link
  EXPECT_NEAR(model.LinkRates().at("a"), 1e5, 1e3);
  codes.Show(model, "aludel-p2", Prompt(250, 96000));  // a burst of little says nothing either
  EXPECT_NEAR(model.LinkRates().at("a"), 1e5, 1e3);
}

TEST(CostModel, LearnsWhatOverlapsWithTheOtherSideAndWhatDoesNotWhenThatHasItCached) {
  // Half of the own work runs beside the prefill server's; nothing does where that only sends.
  const auto ttft = [](double tokens, bool cached) { return 0.002 + tokens * (cached ? 4e-5 : 1e-4 + 2e-5); };
  CostModel model;
  const auto show = [&](const std::vector<int32_t>& prompt, bool cached) {
    const auto tokens = static_cast<double>(prompt.size());
    StageSeconds stages;
    stages.recompute = 4e-5 * tokens;
    stages.ttft = ttft(tokens, cached);
    model.ObserveRemote({.name = "a"}, "aludel-p2", prompt, "", stages,
                        {.prefill = cached ? 0 : 1e-4 * tokens}, {.bytes = 1});
  };
  for (int i = 0; i < 20; ++i) {
    show(Prompt(100 + 50 * i, 1000 * i), false);
    show(Prompt(100 + 50 * i, 1000 * i), true);
  }
  for (const int64_t tokens : {70, 300, 1000}) {
    const double fresh = *model.PredictRemote({.name = "a"}, "aludel-p2", Prompt(tokens, 700000), "");
    EXPECT_NEAR(fresh, ttft(static_cast<double>(tokens), false), 0.1 * fresh) << tokens;
  }
  const double again = *model.PredictRemote({.name = "a"}, "aludel-p2", Prompt(600, 10000), "");
  EXPECT_NEAR(again, ttft(600, true), 0.1 * again);
}

TEST(CostModel, AnArrivalThatIsNotKnownTeachesNothing) {
  CostModel model;
  const World world;
  for (int i = 0; i < 8; ++i) world.Show(model, "raw", Prompt(100, 1000 * i));
  const CostModel::Target target{.name = "a"};
  const double before = *model.PredictRemote(target, "raw", Prompt(300, 500000), "");
  // When its last frame came is not known either: as long ago as the clock is old, and so long was it waited for.
  StageSeconds stages;
  stages.ttft = 1e5;
  model.ObserveRemote(target, "raw", Prompt(300, 600000), "", stages, {.prefill = 0.01},
                      {.step_wait = 59461});
  EXPECT_EQ(*model.PredictRemote(target, "raw", Prompt(300, 700000), ""), before);
}

TEST(CostModel, CountsTheQueueOfTheOtherSide) {
  CostModel model;
  World{}.Show(model, "raw", Prompt(100));
  const double idle =
      *model.PredictRemote({.name = "a", .tokens_per_second = 1000}, "raw", Prompt(100, 5000), "");
  const double busy = *model.PredictRemote({.name = "a", .waiting_tokens = 500, .tokens_per_second = 1000},
                                           "raw", Prompt(100, 5000), "");
  EXPECT_NEAR(busy - idle, 0.5, 1e-9);
}

TEST(CostModel, KnowsWhatAServerHasCachedUnlessItDoesNotCache) {
  const World world{.link = 1e9, .producer = 1e-3};
  CostModel model;
  for (int i = 0; i < 5; ++i) world.Show(model, "raw", Prompt(200 + 50 * i, 1000 * i));
  const double fresh = *model.PredictRemote({.name = "a"}, "raw", Prompt(300, 90000), "");
  EXPECT_NEAR(fresh, world.Ttft(300), 0.05 * fresh);
  world.Show(model, "raw", Prompt(200, 0), /*cached=*/200);
  EXPECT_LT(*model.PredictRemote({.name = "a"}, "raw", Prompt(200, 0), ""), fresh / 5);
  world.Show(model, "raw", Prompt(200, 0), /*cached=*/0);  // it computed the same prompt again
  EXPECT_GT(*model.PredictRemote({.name = "a"}, "raw", Prompt(200, 0), ""), fresh / 3);
}

TEST(CostModel, DoesNotTellOneTenantWhatAServerHasCachedForAnother) {
  const World world{.link = 1e9, .producer = 1e-3};
  CostModel model;
  for (int i = 0; i < 5; ++i) world.Show(model, "raw", Prompt(200 + 50 * i, 1000 * i));
  world.Show(model, "raw", Prompt(300, 50000), /*cached=*/0, "alice");
  const double fresh = *model.PredictRemote({.name = "a"}, "raw", Prompt(300, 90000), "bob");
  EXPECT_EQ(*model.PredictRemote({.name = "a"}, "raw", Prompt(300, 50000), "bob"), fresh);
  EXPECT_EQ(*model.PredictRemote({.name = "a"}, "raw", Prompt(300, 50000), ""), fresh);
  EXPECT_LT(*model.PredictRemote({.name = "a"}, "raw", Prompt(300, 50000), "alice"), fresh / 5);
}

TEST(CostModel, WhatAServerSaysThatItHasCountsInPlaceOfWhatItWasAskedFor) {
  CostModel model;
  const World world{.link = 1e9, .producer = 1e-3};
  for (int64_t i = 0; i < 20; ++i)
    world.Show(model, "raw", Prompt(100 + 20 * i, static_cast<int32_t>(1000 * i)));
  const auto predict = [&](int32_t first, std::optional<int64_t> stored = std::nullopt) {
    return *model.PredictRemote({.name = "a"}, "raw", Prompt(300, first), "", stored);
  };
  const double fresh = predict(90000), again = predict(10000);
  EXPECT_LT(again, fresh / 3);
  EXPECT_EQ(predict(10000, 0), fresh);    // it has been evicted
  EXPECT_EQ(predict(90000, 300), again);  // others have asked for it
  EXPECT_EQ(predict(90000, 1000), again);
  EXPECT_LT(predict(90000, 200), fresh);
  EXPECT_GT(predict(90000, 200), again);
}

TEST(CostModel, LearnsNothingOfAServerThatHasGone) {
  CostModel model;
  const World world;
  const absl::Time now = absl::UnixEpoch();
  model.SetTargets({"a", "b"});
  for (int i = 0; i < 3; ++i) world.Show(model, "raw", Prompt(100, 1000 * i));
  model.Chosen("a", "raw", now);
  EXPECT_TRUE(model.LinkRates().contains("a"));
  EXPECT_FALSE(model.IsStale("a", "raw", now));
  model.SetTargets({"b"});
  // A run that ends late.
  world.Show(model, "raw", Prompt(100, 5000));
  model.ObserveOvertaken({.name = "a"}, "raw", Prompt(100), "", now, now + absl::Seconds(1));
  model.Chosen("a", "raw", now);
  model.Chosen("", "", now);
  EXPECT_TRUE(model.LinkRates().empty());
  EXPECT_TRUE(model.IsStale("a", "raw", now));
  EXPECT_FALSE(model.IsStale("", "", now));
  model.SetTargets({"a"});
  world.Show(model, "raw", Prompt(100, 6000));
  EXPECT_TRUE(model.LinkRates().contains("a"));
}

TEST(CostModel, ForgetsWhatItLearnedOfAnotherArtifact) {
  CostModel model;
  const World world;
  const absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 3; ++i) {
    world.Show(model, "coded", Prompt(100, 1000 * i));
    world.Show(model, "raw", Prompt(100, 1000 * i));
  }
  model.Chosen("a", "coded", now);
  model.Chosen("a", "raw", now);
  model.ObserveStored("coded", 100, 0.5);
  model.ObserveStored("raw", 100, 0.5);
  model.Forget({});
  EXPECT_EQ(model.forgotten(), 0u);
  EXPECT_TRUE(model.PredictStored("coded", 100).has_value());
  model.Forget({"coded"});
  EXPECT_EQ(model.forgotten(), 1u) << "so that what still runs is told apart";
  EXPECT_FALSE(model.PredictStored("coded", 100).has_value());
  EXPECT_TRUE(model.PredictStored("raw", 100).has_value());
  EXPECT_EQ(model.BytesPerToken("coded", 100), 0);
  EXPECT_FALSE(model.PredictRemote({.name = "a"}, "coded", Prompt(100), "").has_value());
  EXPECT_TRUE(model.IsStale("a", "coded", now)) << "it may be tried at once";
  EXPECT_GT(model.BytesPerToken("raw", 100), 0);
  EXPECT_TRUE(model.PredictRemote({.name = "a"}, "raw", Prompt(100), "").has_value());
  EXPECT_FALSE(model.IsStale("a", "raw", now));
}

TEST(CostModel, SaysWhatWasLongNotChosen) {
  CostModel model;
  const absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(model.IsStale("a", "raw", now));
  model.Chosen("a", "raw", now);
  EXPECT_FALSE(model.IsStale("a", "raw", now + absl::Seconds(29)));
  EXPECT_TRUE(model.IsStale("a", "raw", now + absl::Seconds(31)));
}

TEST(CostModel, TriesWhatWasOvertakenLessOften) {
  CostModel model;
  absl::Time now = absl::UnixEpoch();
  const auto stale_after = [&](absl::Duration age) { return model.IsStale("a", "raw", now + age); };
  const absl::Duration moment = absl::Seconds(1);
  EXPECT_TRUE(stale_after(absl::ZeroDuration()));
  model.Chosen("a", "raw", now);
  EXPECT_FALSE(stale_after(CostModel::kStale));
  EXPECT_TRUE(stale_after(CostModel::kStale + moment));
  for (int i = 1; i <= 2 * CostModel::kMaxDoublings; ++i) {
    const absl::Time begin = now + i * moment;
    model.ObserveOvertaken({.name = "a"}, "raw", Prompt(100), "", begin, begin + moment / 2);
    const absl::Duration age = CostModel::kStale * (1 << std::min(i, CostModel::kMaxDoublings));
    EXPECT_FALSE(stale_after(age)) << i;
    EXPECT_TRUE(stale_after(age + moment)) << i;
  }
  EXPECT_EQ(model.Waited("a", "raw"), 0.5);
  model.Chosen("a", "raw", now);
  EXPECT_EQ(model.Waited("a", "raw"), std::nullopt) << "it is being tried";
  // Nothing is known of it all the same: how long it would have taken nobody saw.
  EXPECT_FALSE(model.PredictRemote({.name = "a"}, "raw", Prompt(100), "").has_value());
  World().Show(model, "raw", Prompt(100, 500));
  EXPECT_TRUE(stale_after(CostModel::kStale + moment));
}

TEST(CostModel, ExpectsMoreOfAHandoffThatWasOvertaken) {
  const World world;
  CostModel model;
  for (int i = 0; i < 10; ++i) world.Show(model, "raw", Prompt(100 + 10 * i, 1000 * i));
  const auto predict = [&] { return *model.PredictRemote({.name = "a"}, "raw", Prompt(150, 77777), ""); };
  const double before = predict();
  EXPECT_NEAR(before, world.Ttft(150), 0.1 * world.Ttft(150));
  const auto overtake = [&](int i, absl::Time begin, double seconds) {
    model.ObserveOvertaken({.name = "a"}, "raw", Prompt(150, 50000 + 1000 * i), "", begin,
                           begin + absl::Seconds(seconds));
  };
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 20; ++i) overtake(i, now += absl::Hours(1), 10 * before);
  const double after = predict();
  EXPECT_GT(after, 3 * before);
  // It was waited for less long than it is expected to take.
  for (int i = 20; i < 40; ++i) overtake(i, now += absl::Hours(1), 2 * before);
  EXPECT_EQ(predict(), after);
}

TEST(CostModel, CountsOneStallOnceHoweverManyHandoffsItOvertakes) {
  const World world;
  CostModel model;
  for (int i = 0; i < 10; ++i) world.Show(model, "raw", Prompt(100 + 10 * i, 1000 * i));
  const auto predict = [&] { return *model.PredictRemote({.name = "a"}, "raw", Prompt(150, 77777), ""); };
  const double before = predict();
  const absl::Time now = absl::UnixEpoch();
  model.Chosen("a", "raw", now);
  const auto overtake = [&](absl::Duration begin, absl::Duration end) {
    model.ObserveOvertaken({.name = "a"}, "raw", Prompt(150, 50000), "", now + begin, now + end);
  };
  const absl::Duration stall = absl::Seconds(1000 * before);
  for (int i = 0; i < 10; ++i) overtake(i * absl::Milliseconds(10), stall + i * absl::Milliseconds(10));
  EXPECT_FALSE(model.IsStale("a", "raw", now + CostModel::kStale * 2));
  EXPECT_TRUE(model.IsStale("a", "raw", now + CostModel::kStale * 2 + absl::Seconds(1)));
  EXPECT_LE(predict(), 2 * before);
  // One that was chosen after that counts again.
  overtake(stall + absl::Seconds(1), 2 * stall);
  EXPECT_FALSE(model.IsStale("a", "raw", now + CostModel::kStale * 4));
}

TEST(CostModel, SecondPartsOfFramesAreNoneOfTheFirstTokensBytes) {
  CostModel model;
  model.ObserveUpgrade("coded", 100, 900);
  EXPECT_EQ(model.UpgradeBytes("coded", 100), 0) << "no handoff in that format is known";
  const World world;
  for (int i = 0; i < 4; ++i) world.Show(model, "coded", Prompt(100 + 100 * i, i));
  EXPECT_EQ(model.UpgradeBytes("coded", 200), 0);
  const double before = model.BytesPerToken("coded", 200);
  for (int i = 0; i < 4; ++i) model.ObserveUpgrade("coded", 100 + 100 * i, 9 * (100 + 100 * i));
  EXPECT_NEAR(model.UpgradeBytes("coded", 200), 1800, 1);
  EXPECT_NEAR(model.UpgradeBytes("coded", 1000), 9000, 10);
  EXPECT_EQ(model.BytesPerToken("coded", 200), before);
  model.Forget({"coded"});
  EXPECT_EQ(model.UpgradeBytes("coded", 200), 0);
}

}  // namespace
}  // namespace aludel
