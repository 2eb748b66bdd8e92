#include "server/decode/plan/planner.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kFormats = {"aludel", "raw"};

PlannerOptions Options() {
  return {.min_remote_tokens = 32,
          .recomputed_tail_tokens = 1,
          .hedged = true,
          .high_kl = 0.02,
          .balanced_kl = 0.1};
}

PlanTarget Ready(const std::string& name, std::vector<std::string> formats = kFormats) {
  return {.name = name, .ready = true, .formats = std::move(formats)};
}

PlanRequest Prompt(int64_t tokens, const std::string& format = "") {
  PlanRequest request;
  request.prompt_tokens = tokens;
  request.format = format;
  return request;
}

PlanRequest Wishing(PlanRequest request, Fidelity fidelity) {
  request.fidelity = fidelity;
  return request;
}

PlanRequest Preferring(PlanRequest request, std::vector<std::string> targets) {
  request.targets = std::move(targets);
  return request;
}

// The plan as one line: "a aludel 99 coded", or "local short_prompt".
std::string Line(const PlannerOptions& options, const std::vector<PlanTarget>& targets,
                 const PlanRequest& request) {
  const auto plan = MakePlan(options, kFormats, targets, request);
  if (!plan.ok()) return std::string(plan.status().message());
  if (!plan->remote()) return absl::StrCat("local ", Name(plan->reason));
  return absl::StrCat(targets[plan->target].name, " ", plan->format, " ", plan->handed_over_tokens, " ",
                      Name(plan->reason));
}

TEST(Planner, NothingComesOverALinkThatIsUsedUp) {
  std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  two[0].link_open = false;
  EXPECT_EQ(Line(Options(), two, Prompt(100)), "b aludel 99 coded");
  EXPECT_EQ(Line(Options(), two, Prompt(100, "raw")), "b raw 99 forced");
  two[1].link_open = false;
  EXPECT_EQ(Line(Options(), two, Prompt(100)), "local site_limit");
  EXPECT_EQ(Line(Options(), two, Prompt(100, "raw")), "local site_limit");
  EXPECT_EQ(Line(Options(), two, Prompt(31)), "local short_prompt");
}

TEST(Planner, ALinkThatIsNearlyUsedUpIsKeptForHandoffsThatSaveMore) {
  PlannerOptions options = Options();
  options.by_prediction = true;
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  // Local prefill is expected after 1 s, .25 s of it of this prompt alone.
  const auto chosen = [&](double a, double a_used, double b, double b_used) -> std::string {
    const auto predict = [&](std::optional<size_t> target, const std::string&) -> Prediction {
      if (!target) return {.ttft = 1};
      return {.ttft = *target == 0 ? a : b, .price = LinkPrice(*target == 0 ? a_used : b_used, 0.25)};
    };
    const auto plan = MakePlan(options, kFormats, two, Prompt(100), predict);
    if (!plan->remote()) return "local";
    EXPECT_EQ(plan->predicted_ttft, plan->target == 0 ? a : b) << "what is expected has no price in it";
    return two[plan->target].name;
  };
  EXPECT_EQ(chosen(0.6, 0, 0.9, 0), "a");
  EXPECT_EQ(chosen(0.6, 0.3, 0.9, 0), "a");
  EXPECT_EQ(chosen(0.6, 0.45, 0.9, 0), "b") << "a saves less than its link costs more";
  EXPECT_EQ(chosen(0.6, 0.5, 2, 0), "local");
  EXPECT_EQ(chosen(0.1, 1, 2, 0), "a") << "it saves more than three times what the prompt takes here";
  EXPECT_EQ(chosen(0.2, 5, 2, 0), "local")
      << "a bucket that is overdrawn costs no more than one that is empty";
  EXPECT_EQ(LinkPrice(0, 3), 0) << "a link without a limit";
}

TEST(Planner, ALongPromptIsHandedOverWhereManyWouldWaitForItHere) {
  PlannerOptions options = Options();
  options.by_prediction = true;
  const std::vector<PlanTarget> one = {Ready("a")};
  const auto chosen = [&](double arrivals, double wait, double alone, double remote) -> std::string {
    const auto predict = [&](std::optional<size_t> target, const std::string&) -> Prediction {
      if (!target) return {.ttft = wait + alone, .price = CrowdPrice(arrivals, wait, alone)};
      return {.ttft = remote, .price = CrowdPrice(arrivals, wait, 0.01)};
    };
    const auto plan = MakePlan(options, kFormats, one, Prompt(100), predict);
    EXPECT_EQ(plan->predicted_ttft, plan->remote() ? remote : wait + alone);
    return plan->remote() ? "a" : "local";
  };
  EXPECT_EQ(chosen(0, 0, 0.2, 0.25), "local") << "nothing else comes";
  EXPECT_EQ(chosen(5, 0, 0.2, 0.25), "a") << "one prompt a .2 s, half of which waits";
  EXPECT_EQ(chosen(5, 0, 0.2, 0.32), "local") << "that is too much for them";
  EXPECT_EQ(chosen(5, 0, 0.02, 0.05), "local") << "a short prompt is in nothing's way";
  EXPECT_EQ(chosen(5, 0.3, 0.2, 0.65), "a");
  EXPECT_EQ(CrowdPrice(1000, 10, 0.2), 0.2) << "however many come";
}

TEST(Planner, AServerThatHasJustStartedGetsItsShareOfPromptsUnlessNoOtherCanTakeThem) {
  std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  two[0].weight = 0.25;
  const auto share = [&] {
    int to_a = 0;
    PlanRequest request = Prompt(100);
    for (request.key = 1; request.key <= 1000; ++request.key) {
      to_a += Line(Options(), two, request) == "a aludel 99 coded" ? 1 : 0;
    }
    return to_a;
  };
  EXPECT_NEAR(share(), 250, 50);
  two[1].waiting_tokens = 1000;
  EXPECT_NEAR(share(), 250, 50) << "nor does it get what waits elsewhere";
  two[1].formats = {"raw"};
  EXPECT_EQ(share(), 1000) << "the other has not the format";
  two[1] = Ready("b");
  two[1].link_open = false;
  EXPECT_EQ(share(), 1000) << "the other's link is used up";
  two[1].link_open = true;
  two[1].ready = false;
  EXPECT_EQ(share(), 1000) << "the other is not ready";
}

TEST(Planner, LongPromptsAreHandedOverAndShortOnesStay) {
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  PlannerOptions options = Options();
  EXPECT_EQ(Line(options, two, Prompt(100)), "a aludel 99 coded");
  EXPECT_EQ(Line(options, two, Prompt(32)), "a aludel 31 coded");
  EXPECT_EQ(Line(options, two, Prompt(31)), "local short_prompt");
  options.recomputed_tail_tokens = 20;
  EXPECT_EQ(Line(options, two, Prompt(100)), "a aludel 80 coded");
}

TEST(Planner, AForcedFormatOverridesTheThresholdButNotArithmetic) {
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  EXPECT_EQ(Line(Options(), two, Prompt(31, "raw")), "a raw 30 forced");
  EXPECT_EQ(Line(Options(), two, Prompt(1, "raw")), "local short_prompt");
  EXPECT_EQ(Line(Options(), {Ready("a", {"aludel"})}, Prompt(100, "raw")), "local no_format");
  PlannerOptions options = Options();
  options.format = "raw";
  EXPECT_EQ(Line(options, two, Prompt(100)), "a raw 99 coded");
}

TEST(Planner, TakesTheFirstTargetThatIsReady) {
  const PlanTarget down = {.name = "a"};
  EXPECT_EQ(Line(Options(), {down, Ready("b")}, Prompt(100)), "b aludel 99 coded");
  EXPECT_EQ(Line(Options(), {down}, Prompt(100)), "local no_target");
  EXPECT_EQ(Line(Options(), {}, Prompt(100)), "local no_target");
}

TEST(Planner, BalancesLoadOverServersThatShareTheFormat) {
  std::vector<PlanTarget> three = {Ready("a"), Ready("b"), Ready("c", {"raw"})};
  three[0].waiting_tokens = 500;
  three[1].waiting_tokens = 400;
  EXPECT_EQ(Line(Options(), three, Prompt(100)), "b aludel 99 coded");
  EXPECT_EQ(Line(Options(), three, Prompt(100, "raw")), "c raw 99 forced");
  three[0].waiting_tokens = 400;  // of equals the first
  EXPECT_EQ(Line(Options(), three, Prompt(100)), "a aludel 99 coded");
  EXPECT_EQ(Line(Options(), three, Preferring(Prompt(100), {"b", "a"})), "b aludel 99 coded");
  // In seconds once all have said how fast they are.
  three[0] = {
      .name = "a", .ready = true, .formats = kFormats, .waiting_tokens = 900, .tokens_per_second = 1000};
  three[1].tokens_per_second = 100;
  EXPECT_EQ(Line(Options(), three, Prompt(100)), "b aludel 99 coded") << "c has not said it";
  three[2].tokens_per_second = 100;
  EXPECT_EQ(Line(Options(), three, Prompt(100)), "a aludel 99 coded");
  three[0].ready = false;
  EXPECT_EQ(Line(Options(), three, Prompt(100)), "b aludel 99 coded");
}

TEST(Planner, TheBestFormatComesBeforeTheOrderOfServers) {
  EXPECT_EQ(Line(Options(), {Ready("a", {"raw"}), Ready("b")}, Prompt(100)), "b aludel 99 coded");
}

TEST(Planner, TheCallerMayReorderTargetsButNotAddAny) {
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  EXPECT_EQ(Line(Options(), two, Preferring(Prompt(100), {"b", "a"})), "b aludel 99 coded");
  EXPECT_EQ(Line(Options(), two, Preferring(Prompt(100), {"evil:1"})), "a aludel 99 coded");
}

TEST(Planner, ASuggestionOfServersThatHaveGoneIsNone) {
  const std::vector<PlanTarget> two = {{.name = "a", .gone = true}, Ready("b")};
  EXPECT_EQ(Line(Options(), two, Preferring(Prompt(100), {"a"})), "b aludel 99 coded");
  EXPECT_EQ(RankedAfter(1, two, {"a"}), std::vector<std::string>({"b"}));
}

TEST(Planner, TheRequestsFidelityOverridesTheServers) {
  const std::vector<PlanTarget> one = {Ready("a")};
  PlannerOptions exact = Options();
  exact.fidelity = Fidelity::kExact;
  EXPECT_EQ(Line(exact, one, Prompt(100)), "local fidelity");
  EXPECT_EQ(Line(Options(), one, Wishing(Prompt(100), Fidelity::kExact)), "local fidelity");
  EXPECT_EQ(Line(exact, one, Wishing(Prompt(100), Fidelity::kFast)), "a aludel 99 coded");
  EXPECT_EQ(Line(exact, one, Prompt(100, "raw")), "a raw 99 forced");
}

TEST(Planner, RefusesWhatItCannotDo) {
  EXPECT_THAT(Line(Options(), {}, Prompt(100, "zip")), HasSubstr("found \"zip\", want one of aludel, raw"));
  EXPECT_THAT(Line(Options(), {}, Wishing(Prompt(100, "raw"), Fidelity::kExact)),
              HasSubstr("found \"raw\" with fidelity exact"));
  EXPECT_EQ(MakePlan(Options(), kFormats, {}, Prompt(100, "zip")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Planner, NeverLosesMoreThanTheFidelityAllows) {
  PlannerOptions options = Options();
  options.losses = {{"aludel", 0.05}, {"raw", 0.001}};
  const std::vector<PlanTarget> one = {Ready("a")};
  EXPECT_EQ(Line(options, one, Wishing(Prompt(100), Fidelity::kHigh)), "a raw 99 coded");
  EXPECT_EQ(Line(options, one, Wishing(Prompt(100), Fidelity::kBalanced)), "a aludel 99 coded");
  EXPECT_EQ(Line(options, one, Wishing(Prompt(100), Fidelity::kFast)), "a aludel 99 coded");
  options.losses = {{"aludel", 0.05}};  // nobody has measured raw
  EXPECT_EQ(Line(options, one, Wishing(Prompt(100), Fidelity::kHigh)), "local no_format");
}

TEST(Planner, TakesThePlanThatIsPredictedToBeSoonest) {
  PlannerOptions options = Options();
  options.by_prediction = true;
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  std::map<std::string, double> seconds = {
      {"local", 0.5}, {"a aludel", 0.3}, {"a raw", 0.9}, {"b aludel", 0.2}, {"b raw", 0.8}};
  const Predict predict = [&](std::optional<size_t> target, const std::string& format) -> Prediction {
    const auto found = seconds.find(target ? absl::StrCat(two[*target].name, " ", format) : "local");
    return found == seconds.end() ? Prediction{.stale = true} : Prediction{.ttft = found->second};
  };
  const auto line = [&](const PlanRequest& request) {
    const Plan plan = *MakePlan(options, kFormats, two, request, predict);
    return absl::StrCat(plan.remote() ? absl::StrCat(two[plan.target].name, " ", plan.format) : "local", " ",
                        Name(plan.reason), " ", plan.predicted_ttft.value_or(-1));
  };
  EXPECT_EQ(line(Prompt(100)), "b aludel fastest 0.2");
  seconds["local"] = 0.1;
  EXPECT_EQ(line(Prompt(100)), "local fastest 0.1");
  EXPECT_EQ(line(Prompt(100, "raw")), "a raw forced 0.9");
  options.losses = {{"raw", 0}};
  seconds["local"] = 0.87;
  EXPECT_EQ(line(Wishing(Prompt(100), Fidelity::kHigh)), "b raw fastest 0.8");
  seconds["local"] = 0.85;  // a handoff must be worth it
  EXPECT_EQ(line(Wishing(Prompt(100), Fidelity::kHigh)), "local fastest 0.85");
  seconds["local"] = 0.0015;
  seconds["b aludel"] = 0.001;
  EXPECT_EQ(line(Prompt(100)), "local fastest 0.0015");
  seconds.erase("a raw");
  EXPECT_EQ(line(Prompt(100)), "a raw explore -1");
  seconds.erase("local");
  EXPECT_EQ(line(Prompt(100)), "local explore -1");
}

TEST(Planner, TriesAnotherPlanOnlyWhereItCostsAtMostTwiceTheBest) {
  PlannerOptions options = Options();
  options.by_prediction = true;
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  std::map<std::string, Prediction> known;
  const Predict predict = [&](std::optional<size_t> target, const std::string& format) {
    return known[target ? absl::StrCat(two[*target].name, " ", format) : "local"];
  };
  const auto line = [&] {
    const Plan plan = *MakePlan(options, kFormats, two, Prompt(100), predict);
    return absl::StrCat(
        plan.remote() ? absl::StrCat(two[plan.target].name, " ", plan.format) : "local", " ",
        Name(plan.reason), plan.hedge_after ? absl::StrCat(" hedge ", *plan.hedge_after) : "",
        plan.move ? absl::StrCat(" move ", plan.move->after, " ", two[plan.move->target].name) : "");
  };
  // Nothing is known but local prefill: it begins so that it is complete after twice its time.
  known = {{"local", {.ttft = 0.5}}, {"b raw", {.stale = true}}};
  EXPECT_EQ(line(), "b raw explore hedge 0.5");
  known["b raw"].stale = false;  // somebody else is trying it, or has lately
  EXPECT_EQ(line(), "local fastest");
  // What a short prompt gave up tells nothing of one that may wait for twice as long.
  known["b raw"].waited = 0.51;
  EXPECT_EQ(line(), "local fastest");
  known["b raw"].waited = 0.49;
  EXPECT_EQ(line(), "b raw explore hedge 0.5");
  known["b raw"].ttft = 0.9;  // that is known now
  EXPECT_EQ(line(), "local fastest");
  // It was late in a bad moment, and that may be over.
  known["b raw"] = {.ttft = 1.1, .stale = true};
  EXPECT_EQ(line(), "b raw explore hedge 0.5");
  known["b raw"] = {.ttft = 0.9, .stale = true};
  EXPECT_EQ(line(), "b raw explore hedge 0.5");

  known = {{"local", {.ttft = 0.5}}, {"a aludel", {.ttft = 0.3}}, {"a raw", {.stale = true}}};
  EXPECT_EQ(line(), "a raw explore hedge 0.1");
  // Local prefill would come too late: another format waits for a prompt for which it does not, ...
  known["a aludel"] = {.ttft = 0.2};
  EXPECT_EQ(line(), "a aludel fastest");
  // ... and another server has the known one behind it.
  known["b aludel"] = {.stale = true};
  EXPECT_EQ(line(), "b aludel explore hedge 0.4 move 0.2 a");
  known["b aludel"] = {.ttft = 0.3, .stale = true};
  EXPECT_EQ(line(), "b aludel explore");
  known["b aludel"] = {.ttft = 0.45, .stale = true};
  EXPECT_EQ(line(), "b aludel explore hedge 0.4 move 0.2 a");
  known.erase("b aludel");
  known["b raw"] = {.ttft = 0.45, .stale = true};
  EXPECT_EQ(line(), "a aludel fastest");
  known.erase("b raw");

  // Local prefill itself.
  known = {{"local", {.ttft = 0.5, .stale = true}}, {"a aludel", {.ttft = 0.3}}};
  EXPECT_EQ(line(), "local explore");
  known["a aludel"] = {.ttft = 0.2, .stale = true};  // nothing to try: it is the best
  EXPECT_EQ(line(), "a aludel fastest");

  // Where nothing limits what trying costs, servers would stay unknown for ever.
  known = {{"local", {.ttft = 0.5}}, {"a aludel", {.ttft = 0.2}}, {"a raw", {.stale = true}}};
  options.hedged = false;
  EXPECT_EQ(line(), "a raw explore");
  known["a raw"].ttft = 0.45;
  EXPECT_EQ(line(), "a aludel fastest");
}

TEST(Planner, TriesWhatWasMeasuredOnlyForSoManySeconds) {
  PlannerOptions options = Options();
  options.by_prediction = true;
  const std::vector<PlanTarget> two = {Ready("a"), Ready("b")};
  std::map<std::string, Prediction> known;
  const Predict predict = [&](std::optional<size_t> target, const std::string& format) {
    return known[target ? absl::StrCat(two[*target].name, " ", format) : "local"];
  };
  const auto line = [&](double try_seconds) {
    PlanRequest request = Prompt(100);
    request.try_seconds = try_seconds;
    const Plan plan = *MakePlan(options, kFormats, two, request, predict);
    return absl::StrCat(plan.remote() ? absl::StrCat(two[plan.target].name, " ", plan.format) : "local", " ",
                        Name(plan.reason), " ", plan.try_seconds);
  };
  known = {{"local", {.ttft = 1}}, {"a raw", {.ttft = 0.5}}, {"b raw", {.ttft = 0.75, .stale = true}}};
  EXPECT_EQ(line(0.25), "b raw explore 0.25");
  EXPECT_EQ(line(0.24), "a raw fastest 0");
  // One that is replaced in time costs no more than that.
  known["b raw"].ttft = 3;
  EXPECT_EQ(line(0.5), "b raw explore 0.5");
  EXPECT_EQ(line(0.49), "a raw fastest 0");
  // One that may as well be sooner costs nothing.
  known["b raw"].ttft = 0.5;
  EXPECT_EQ(line(0), "b raw explore 0");
  // What was never measured is tried whatever it costs: nobody knows.
  known["b raw"].ttft.reset();
  EXPECT_EQ(line(0), "b raw explore 0");
  known = {{"local", {.ttft = 0.75, .stale = true}}, {"a raw", {.ttft = 0.5}}};
  EXPECT_EQ(line(0.25), "local explore 0.25");
  EXPECT_EQ(line(0.24), "a raw fastest 0");
}

// As Line, with what the server's own store has of each format.
std::string LineWithStored(const std::vector<PlanTarget>& targets, const PlanRequest& request,
                           const std::map<std::string, int64_t>& stored) {
  const Plan plan = *MakePlan(Options(), kFormats, targets, request, nullptr, [&](const std::string& format) {
    const auto found = stored.find(format);
    return found == stored.end() ? 0 : found->second;
  });
  return absl::StrCat(Name(plan.kind), " ", plan.format, " ", plan.handed_over_tokens, " ",
                      Name(plan.reason));
}

TEST(Planner, WhatIsStoredHereNeedsNoServer) {
  const std::vector<PlanTarget> one = {Ready("a")};
  EXPECT_EQ(LineWithStored(one, Prompt(100), {{"aludel", 99}}), "stored aludel 99 coded");
  EXPECT_EQ(LineWithStored({}, Prompt(100), {{"aludel", 99}}), "stored aludel 99 coded");
  EXPECT_EQ(LineWithStored(one, Prompt(100), {{"aludel", 1000}}), "stored aludel 99 coded")
      << "all that is asked";
  EXPECT_EQ(LineWithStored(one, Prompt(100), {}), "remote aludel 99 coded");
  // The rest is computed here where asking for all of it is worth less.
  EXPECT_EQ(LineWithStored(one, Prompt(100), {{"aludel", 68}}), "stored aludel 68 coded");
  EXPECT_EQ(LineWithStored(one, Prompt(100), {{"aludel", 67}}), "remote aludel 99 coded");
  // Without a server what would be handed over is enough.
  EXPECT_EQ(LineWithStored({}, Prompt(100), {{"aludel", 32}}), "stored aludel 32 coded");
  EXPECT_EQ(LineWithStored({}, Prompt(100), {{"aludel", 31}}), "local  0 no_target");
  std::vector<PlanTarget> limited = one;
  limited[0].link_open = false;
  EXPECT_EQ(LineWithStored(limited, Prompt(100), {{"aludel", 31}}), "local  0 site_limit");
  EXPECT_EQ(LineWithStored(limited, Prompt(100), {{"aludel", 32}}), "stored aludel 32 coded");
}

TEST(Planner, WhatIsStoredHereInAWorseFormatWaitsForAServerOfABetterOne) {
  EXPECT_EQ(LineWithStored({Ready("a")}, Prompt(100), {{"raw", 99}}), "remote aludel 99 coded");
  EXPECT_EQ(LineWithStored({Ready("a", {"raw"})}, Prompt(100), {{"raw", 99}}), "stored raw 99 coded");
  EXPECT_EQ(LineWithStored({Ready("a", {"raw"})}, Prompt(100), {{"aludel", 99}}), "stored aludel 99 coded");
  EXPECT_EQ(LineWithStored({Ready("a")}, Prompt(100, "raw"), {{"raw", 99}, {"aludel", 99}}),
            "stored raw 99 forced");
}

TEST(Planner, WhatIsStoredHereIsNotForEveryRequest) {
  const std::map<std::string, int64_t> all = {{"aludel", 99}, {"raw", 99}};
  EXPECT_EQ(LineWithStored({}, Wishing(Prompt(100), Fidelity::kExact), all), "local  0 fidelity");
  EXPECT_EQ(LineWithStored({}, Wishing(Prompt(100), Fidelity::kHigh), all), "local  0 no_target")
      << "not measured";
  EXPECT_EQ(LineWithStored({}, Prompt(31), all), "local  0 short_prompt");
  PlanRequest young = Prompt(100);
  young.takes_stored = false;
  EXPECT_EQ(LineWithStored({Ready("a")}, young, all), "remote aludel 99 coded");
}

TEST(Planner, ByPredictionWhatIsStoredHereIsOneMorePlan) {
  PlannerOptions options = Options();
  options.by_prediction = true;
  const std::vector<PlanTarget> one = {Ready("a", {"aludel"})};
  std::map<std::string, Prediction> known;
  const Predict predict = [&](std::optional<size_t> target, const std::string&) {
    return known[!target ? "local" : *target == kOwnStore ? "stored" : "remote"];
  };
  const auto line = [&] {
    const Plan plan = *MakePlan(options, kFormats, one, Prompt(100), predict,
                                [](const std::string& format) { return format == "aludel" ? 40 : 0; });
    return absl::StrCat(Name(plan.kind), " ", plan.handed_over_tokens, " ", Name(plan.reason),
                        plan.hedge_after ? absl::StrCat(" hedge ", *plan.hedge_after) : "");
  };
  known = {{"local", {.ttft = 0.5}}, {"remote", {.ttft = 0.3}}, {"stored", {.ttft = 0.1}}};
  EXPECT_EQ(line(), "stored 40 fastest");
  known["stored"].ttft = 0.35;
  EXPECT_EQ(line(), "remote 99 fastest");
  known["remote"].ttft = 0.6;
  known["stored"].ttft = 0.6;
  EXPECT_EQ(line(), "local 0 fastest");
  known["stored"] = {.stale = true};  // never tried: local prefill is soon enough beside it
  EXPECT_EQ(line(), "stored 40 explore hedge 0.5");
  known = {{"local", {.ttft = 0.5, .stale = true}}, {"remote", {.ttft = 0.6}}, {"stored", {.ttft = 0.3}}};
  EXPECT_EQ(line(), "local 0 explore")
      << "what serves all requests from the store hides what computing costs";
}

TEST(Planner, RanksOneServerBeforeTheRequestsOthers) {
  const std::vector<PlanTarget> three = {Ready("a"), Ready("b"), Ready("c")};
  using Names = std::vector<std::string>;
  EXPECT_EQ(RankedAfter(1, three, {}), (Names{"b", "a", "c"}));
  EXPECT_EQ(RankedAfter(0, three, {"c", "a", "elsewhere"}), (Names{"a", "c"}));
}

const std::vector<std::vector<FormatOffer>> kSets = {{{"a", "new"}, {"raw", ""}},
                                                     {{"a", "old"}, {"raw", ""}}};

PlanTarget Offering(std::vector<FormatOffer> offers, bool ready = true) {
  return {.name = "t", .ready = ready, .offers = std::move(offers)};
}

TEST(ChooseSet, TakesTheArtifactThatMostServersHave) {
  const PlanTarget old = Offering({{"raw", ""}, {"a", "old"}}), both = Offering({{"a", "new"}, {"a", "old"}}),
                   now = Offering({{"a", "new"}, {"raw", ""}}), raw = Offering({{"raw", ""}});
  EXPECT_EQ(ChooseSet(kSets, {}), 0);
  EXPECT_EQ(ChooseSet(kSets, {raw}), 0) << "which tells nothing";
  EXPECT_EQ(ChooseSet(kSets, {now}), 0);
  EXPECT_EQ(ChooseSet(kSets, {old}), 1);
  EXPECT_EQ(ChooseSet(kSets, {old, now}), 0) << "the newest of equals";
  EXPECT_EQ(ChooseSet(kSets, {old, both}), 0) << "which speaks for the new one";
  EXPECT_EQ(ChooseSet(kSets, {old, old, both}), 1);
  EXPECT_EQ(ChooseSet({}, {old}), 0);
  EXPECT_EQ(ChooseSet(kSets, {old, both, now}), 0);
  EXPECT_EQ(ChooseSet(kSets, {Offering({{"a", "old"}}, /*ready=*/false), now}), 0);
}

TEST(ChooseSet, AnEncoderThatVersionsShareDoesNotMakeThemEqual) {
  const std::vector<std::vector<FormatOffer>> sets = {{{"a", "new"}, {"b", "same"}},
                                                      {{"a", "old"}, {"b", "same"}, {"c", "gone"}}};
  const std::vector<FormatOffer> old = sets[1];
  EXPECT_EQ(ChooseSet(sets, {Offering(old)}), 1);
  EXPECT_EQ(ChooseSet(sets, {Offering({{"a", "new"}, {"a", "old"}, {"b", "same"}, {"c", "gone"}})}), 0);
  EXPECT_EQ(ChooseSet(sets, {Offering({{"a", "new"}, {"b", "same"}})}), 0);
}

TEST(NarrowTo, LeavesTheFormatsOfOneArtifactInItsOrder) {
  std::vector<PlanTarget> targets = {Offering({{"raw", ""}, {"a", "old"}}),
                                     Offering({{"raw", ""}, {"a", "new"}})};
  NarrowTo(kSets[1], &targets);
  EXPECT_THAT(targets[0].formats, testing::ElementsAre("a", "raw"));
  EXPECT_THAT(targets[1].formats, testing::ElementsAre("raw"));
}

}  // namespace
}  // namespace aludel
