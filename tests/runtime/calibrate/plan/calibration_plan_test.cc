#include "runtime/calibrate/plan/calibration_plan.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/plan/budget.h"
#include "runtime/calibrate/plan/job_plan.h"
#include "runtime/calibrate/plan/machine_room.h"
#include "runtime/calibrate/plan/stage_meter.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A job over a model that is small enough to count by hand.
class CalibrationPlanTest : public ::testing::Test {
 protected:
  CalibrationPlanTest() {
    config_.layers = 4;
    config_.hidden = 32;
    config_.heads = 4;
    config_.kv_heads = 2;
    config_.head_dim = 8;
    config_.ffn = 64;
    config_.vocab = 100;
    config_.max_positions = 512;
    job_.base.producer = "base";
    job_.base.consumers = {"chat"};
    job_.recomputed_layers = 0;
    job_.bytes_per_token = 16;
    job_.sensitivity_prompts = 40;
    for (int i = 0; i < 200; ++i) train_.push_back(std::vector<int32_t>(50 + i % 40, 1));
    for (int i = 0; i < 20; ++i) held_out_.push_back(std::vector<int32_t>(60, 1));
    for (int i = 0; i < 100; ++i) more_.push_back(std::vector<int32_t>(70, 1));
    rates_.per_second.values.fill(1e9);
    rates_.answer_tokens = 4;
  }

  PlanInput Input() const { return {job_, config_, train_, held_out_, {}, {}, false, 0, 0}; }
  PlanInput InputWithMore() const {
    PlanInput input = Input();
    input.more = more_;
    return input;
  }
  StageWork Of(Stage stage, const PlanInput& input) const {
    for (const StageWork& work : CountWork(input, 4)) {
      if (work.stage == stage) return work;
    }
    ADD_FAILURE() << "no stage " << Name(stage);
    return {};
  }
  double Seconds(const PlanInput& input) const {
    return ExpectedSeconds(MakePlan(CountWork(input, 4), &rates_));
  }

  ModelConfig config_;
  AludelJob job_;
  std::vector<std::vector<int32_t>> train_, held_out_, more_;
  WorkRates rates_;
};

TEST_F(CalibrationPlanTest, PrefillsAreCountedMatrixByMatrix) {
  // A multiply and an add for every number of every matrix and token; a query's products with the keys and values of
  // every position up to its own.
  double flops = 0;
  for (const auto& prompt : train_) {
    for (size_t t = 0; t < prompt.size(); ++t) {
      const double q = 32 * 32, kv = 2 * 32 * 16, o = 32 * 32, mlp = 3 * 32 * 64;
      flops += 4 * (2 * (q + kv + o + mlp) + static_cast<double>(t + 1) * 2 * 2 * 4 * 8);
    }
  }
  EXPECT_DOUBLE_EQ(Of(Stage::kPrefills, Input()).once[Work::kPrefill], 2 * flops) << "producer and consumer";
  job_.base.consumers = {"chat", "json"};
  EXPECT_DOUBLE_EQ(Of(Stage::kPrefills, Input()).once[Work::kPrefill], 3 * flops);
}

TEST_F(CalibrationPlanTest, DiskIsRowsOfEveryLayerInBf16) {
  double tokens = 0;
  for (const auto& prompt : train_) tokens += static_cast<double>(prompt.size());
  // K and V of four layers, H of the layers that a structure may recompute: a quarter of them and the next.
  EXPECT_DOUBLE_EQ(Of(Stage::kPrefills, Input()).disk, 2 * tokens * (4 * 2 * 16 + 2 * 32) * 2);
}

TEST_F(CalibrationPlanTest, CheckpointsOfEveryFitStayOnTheDisk) {
  const NetShape net = PlannedNet(Input());
  const double bytes = 4.0 * (net.width * (net.inputs + net.outputs) + net.outputs);
  // Weights and two moments, and a new file beside the old one.
  EXPECT_DOUBLE_EQ(Of(Stage::kTraining, Input()).disk, 2 * 3 * bytes);
  job_.options.training.patience = 4;
  EXPECT_DOUBLE_EQ(Of(Stage::kTraining, Input()).disk, 2 * 4 * bytes) << "the best net so far, too";
  const double tuning = Of(Stage::kTuning, Input()).disk;
  job_.bytes_per_token.reset();
  job_.max_kl = 0.02;
  const NetShape searched = PlannedNet(Input());
  const double each = 4.0 * (searched.width * (searched.inputs + searched.outputs) + searched.outputs);
  EXPECT_DOUBLE_EQ(Of(Stage::kTraining, Input()).disk, (8 + 1) * 4 * each) << "of as many fits as may be";
  EXPECT_GT(Of(Stage::kTuning, Input()).disk, tuning);
}

TEST_F(CalibrationPlanTest, TrainingIsStepsTimesBatchTimesTheNet) {
  const NetShape net = PlannedNet(Input());
  ASSERT_GT(net.width, 0);
  EXPECT_EQ(net.outputs, 3 * 2 * 16);
  EXPECT_EQ(net.inputs, net.rank + 32);
  const double before = Of(Stage::kTraining, Input()).once[Work::kNetwork];
  job_.options.training.steps += 1000;
  const double step = (Of(Stage::kTraining, Input()).once[Work::kNetwork] - before) / 1000;
  // Forward and the weights' gradients: each of both matrices; back through the second one.
  const double products = 2.0 * net.inputs * net.width * 2 + 2.0 * net.width * net.outputs * 3;
  EXPECT_NEAR(step, 1024 * products, 1e-6 * step);
}

TEST_F(CalibrationPlanTest, HasTheStagesThatTheJobHas) {
  const auto names = [&] {
    std::string all;
    for (const StageWork& work : CountWork(Input(), 4)) all += std::string(Name(work.stage)) + " ";
    return all;
  };
  EXPECT_THAT(names(), AllOf(HasSubstr("sensitivity"), HasSubstr("encoders"), HasSubstr("tuning")));
  job_.options.linear = true;
  job_.sensitivity_prompts = 0;
  EXPECT_THAT(names(), AllOf(Not(HasSubstr("sensitivity")), HasSubstr("training"), Not(HasSubstr("tuning"))));
}

TEST_F(CalibrationPlanTest, ASearchTakesFromOneFitToMany) {
  EXPECT_EQ(Of(Stage::kTraining, Input()).most, 1);
  job_.bytes_per_token.reset();
  job_.recomputed_layers.reset();
  job_.max_kl = 0.02;
  EXPECT_EQ(Of(Stage::kTraining, Input()).least, 1);
  EXPECT_EQ(Of(Stage::kTraining, Input()).most, 2 * 2 + 6)
      << "two rates of two structures, then narrower ones";
  const CalibrationPlan plan = MakePlan(CountWork(Input(), 4), &rates_);
  EXPECT_LT(plan.least_seconds, plan.most_seconds);
  EXPECT_THAT(plan.Table(), HasSubstr("training x1..10"));
}

TEST_F(CalibrationPlanTest, TimesAreWorkOverRates) {
  const CalibrationPlan plan = MakePlan(CountWork(Input(), 4), &rates_);
  double sum = 0;
  for (const StageWork& work : CountWork(Input(), 4)) {
    for (const double amount : work.once.values) sum += amount / 1e9;
  }
  EXPECT_NEAR(plan.most_seconds, sum, 1e-9 * sum);
  WorkRates twice = rates_;
  for (double& rate : twice.per_second.values) rate *= 2;
  EXPECT_NEAR(MakePlan(CountWork(Input(), 4), &twice).most_seconds, sum / 2, 1e-9 * sum);
  EXPECT_THAT(plan.Needs(),
              AllOf(HasSubstr("needs "), HasSubstr(" of memory, "), HasSubstr(" of disk, about ")));
}

TEST_F(CalibrationPlanTest, RefusesWhatDoesNotFitAndNamesWhatWould) {
  const CalibrationPlan plan = MakePlan(CountWork(Input(), job_.base.scd.max_answer_tokens), nullptr);
  EXPECT_TRUE(CheckRoom(Input(), {plan.memory, plan.disk, true, true}).ok());
  const absl::Status disk = CheckRoom(Input(), {plan.memory, plan.disk / 2, true, true});
  EXPECT_EQ(disk.code(), absl::StatusCode::kResourceExhausted);
  int prompts = 0;
  const std::string message(disk.message());
  const size_t at = message.find("--prompts ");
  ASSERT_NE(at, std::string::npos) << message;
  ASSERT_EQ(std::sscanf(message.c_str() + at, "--prompts %d", &prompts), 1);
  EXPECT_THAT(message, HasSubstr("--max-disk is "));
  // What is named does fit, and hardly more would.
  const auto fits = [&](int all) {
    PlanInput fewer = Input();
    const int held = std::max(1, all / 11);
    fewer.train = fewer.train.first(all - held);
    fewer.held_out = fewer.held_out.first(held);
    return CheckRoom(fewer, {plan.memory, plan.disk / 2, true, true}).ok();
  };
  EXPECT_TRUE(fits(prompts)) << message;
  EXPECT_FALSE(fits(prompts + 12)) << message;

  const absl::Status memory = CheckRoom(Input(), {1000, plan.disk, false, false});
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()),
              AllOf(HasSubstr("this machine has 1.0 KB free"), HasSubstr("--max-memory")));
  EXPECT_TRUE(CheckRoom(Input(), {}).ok()) << "nobody knows what is free";
  const absl::Status full = CheckRoom(Input(), {plan.memory, 0.0, false, false});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << "and nothing is free";
}

TEST_F(CalibrationPlanTest, OnAGpuModelsAndCachesLieInItsMemory) {
  PlanInput gpu = InputWithMore();
  gpu.on_gpu = true;
  const auto at = [&](Stage stage) { return Of(stage, gpu); };
  const double models = Of(Stage::kLoading, Input()).memory;
  EXPECT_DOUBLE_EQ(at(Stage::kLoading).device, models);
  EXPECT_DOUBLE_EQ(at(Stage::kLoading).memory, 0);
  // K and V of four layers in bf16, in two pools of twice the longest prompt.
  const double pools = 2 * (2 * 89.0) * (4 * 2 * 16) * 2;
  EXPECT_DOUBLE_EQ(at(Stage::kAnswers).device, models + pools);
  EXPECT_DOUBLE_EQ(Of(Stage::kAnswers, InputWithMore()).memory - at(Stage::kAnswers).memory, models + pools);
  // A group of three layers' moments, in f32 and f64 with the rows that they are of.
  EXPECT_GE(at(Stage::kEncoders).device,
            models + pools + 12.0 * (96 + 32) * (96 + 32) + 8.0 * 4096 * (96 + 32));
  // Passes back go through all weights, in f32.
  EXPECT_DOUBLE_EQ(at(Stage::kSensitivity).device - at(Stage::kEncoders).device, 4 * Parameters(config_));
  EXPECT_DOUBLE_EQ(at(Stage::kTuning).device, at(Stage::kSensitivity).device);
  EXPECT_DOUBLE_EQ(Of(Stage::kTuning, InputWithMore()).device, 0) << "on the CPU";

  const CalibrationPlan plan = MakePlan(CountWork(gpu, job_.base.scd.max_answer_tokens), nullptr);
  EXPECT_THAT(plan.Needs(), HasSubstr(" of the device's, "));
  EXPECT_THAT(plan.Table(), HasSubstr("device"));
  EXPECT_TRUE(CheckRoom(gpu, {.device = plan.device, .device_by_flag = true}).ok());
  const absl::Status refused = CheckRoom(gpu, {.device = plan.device - 1, .device_by_flag = true});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("of the device's memory"), HasSubstr("of it the models"),
                    HasSubstr("--compute bf16"), HasSubstr("--max-device-memory is ")));
}

TEST_F(CalibrationPlanTest, GroupsAreAsLargeAsMemoryAllows) {
  config_.layers = 8;
  config_.kv_heads = 32;  // moments of a group are then most of what is held
  config_.head_dim = 16;
  job_.options.linear = true;
  const auto needs = [&](int layers) {
    job_.options.group_layers = layers;
    const double memory = MakePlan(CountWork(Input(), job_.base.scd.max_answer_tokens), nullptr).memory;
    job_.options.group_layers = 0;
    return memory;
  };
  const auto within = [&](double memory) { return GroupLayersWithin(Input(), {memory, {}, true, false}); };
  ASSERT_GT(needs(0), needs(4));
  ASSERT_GT(needs(4), needs(2));
  EXPECT_EQ(within(needs(0)), 0);
  EXPECT_EQ(within(needs(0) - 1), 4);
  EXPECT_EQ(within(needs(4) - 1), 2);
  EXPECT_EQ(within(needs(1)), 1);
  EXPECT_EQ(within(1000), 0) << "none fits: CheckRoom says what would";
  EXPECT_EQ(GroupLayersWithin(Input(), {}), 0) << "nothing says what is free";
  job_.options.group_layers = 8;
  EXPECT_EQ(within(1000), 8) << "the job names them";
  job_.options.group_layers = 0;
  PlanInput extending = Input();
  extending.extended = AludelShape{.groups = {{1, 7, 8}}};
  EXPECT_EQ(GroupLayersWithin(extending, {1000.0, {}, true, false}), 0) << "the format has its own";
}

TEST_F(CalibrationPlanTest, GroupsAreChosenOnceForAnInterruptedRun) {
  const TemporaryDirectory work;
  AludelInputs inputs;
  inputs.work = work.path() + "/new";
  const std::string path = GroupLayersPath(Input(), inputs);
  ASSERT_EQ(GroupLayersOfJob(Input(), inputs), 0);
  ASSERT_TRUE(KeepGroupLayers(path, 2).ok());
  EXPECT_EQ(GroupLayersOfJob(Input(), inputs), 2) << "however much is free now";
  train_.pop_back();
  EXPECT_EQ(GroupLayersOfJob(Input(), inputs), 0) << "another job's is not this one's";
  train_.push_back(std::vector<int32_t>(50 + 199 % 40, 1));
  ASSERT_TRUE(KeepGroupLayers(path, 99).ok());
  EXPECT_EQ(GroupLayersOfJob(Input(), inputs), 0) << "what no run has chosen";
}

TEST_F(CalibrationPlanTest, ABudgetBuysWhatFitsAndMoreTimeNeverLess) {
  const double whole = Seconds(InputWithMore());
  BudgetChoice before;
  for (const double share : {0.1, 0.2, 0.4, 0.8}) {
    const auto choice = ChooseForBudget(InputWithMore(), rates_, share * whole);
    ASSERT_TRUE(choice.ok()) << choice.status();
    AludelJob job;
    EXPECT_LE(Seconds(Apply(*choice, InputWithMore(), &job)), share * whole);
    EXPECT_FALSE(choice->everything);
    EXPECT_GE(choice->train, before.train);
    EXPECT_GE(choice->steps, before.steps);
    EXPECT_GE(choice->more, before.more);
    EXPECT_GE(choice->passes, before.passes);
    before = *choice;
  }
  EXPECT_GT(before.train, 100) << "eight tenths of the time buy more than half";
  EXPECT_TRUE(ChooseForBudget(InputWithMore(), rates_, 1.2 * whole)->everything);
  EXPECT_EQ(*ChooseForBudget(InputWithMore(), rates_, 1.2 * whole), WholeJob(InputWithMore()));
}

TEST_F(CalibrationPlanTest, ABudgetCutsNoPassageAndLeavesEnoughToLearnFromOrNone) {
  std::vector<std::vector<int32_t>> passages;  // 20 with 10 questions each
  for (int32_t i = 0; i < 200; ++i) {
    passages.push_back(std::vector<int32_t>(60, i / 10));
    passages.back().push_back(100 + i);
  }
  job_.options.linear = true;
  PlanInput input = Input();
  input.more = passages;
  input.by_passages = true;
  EXPECT_EQ(AtDial(input, 1).more, 200);
  EXPECT_EQ(AtDial(input, 0.46).more, 90);
  EXPECT_EQ(AtDial(input, 0.4).more, 80);
  EXPECT_EQ(AtDial(input, 0.39).more, 0) << "seven of them";
  EXPECT_EQ(AtDial(input, 0.005).more, 0);
  // Closed forms before tuning.
  EXPECT_EQ(AtDial(input, 0.25).train, static_cast<int64_t>(input.train.size()) * 3 / 4);
  EXPECT_EQ(AtDial(input, 0.4).train, static_cast<int64_t>(input.train.size()));
  job_.retune = true;
  EXPECT_EQ(AtDial(input, 0.46).more, 90);
  EXPECT_EQ(AtDial(input, 0.005).more, 80) << "it would do nothing";
  job_.head_tokens = 60;
  EXPECT_EQ(CheckTuningPassages(passages, RecomputedOf(input)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckTuningPassages(passages, {.head = 59}).ok());
  EXPECT_FALSE(CheckTuningPassages(passages, {.head = 55, .tail = 5}).ok());
  EXPECT_TRUE(CheckTuningPassages(passages, {.head = 54, .tail = 5}).ok());
}

TEST_F(CalibrationPlanTest, ABudgetShrinksTuningBeforeNetworks) {
  const PlanInput input = InputWithMore();
  const BudgetChoice full = WholeJob(input);
  ASSERT_EQ(full.passes, 2);
  const auto share = [](int64_t all, double of) {
    return static_cast<int64_t>(std::ceil(of * static_cast<double>(all)));
  };
  const BudgetChoice quarter = AtDial(input, 0.25);
  EXPECT_EQ(quarter.steps, share(full.steps, 0.75));
  EXPECT_EQ(quarter.train, share(full.train, 0.75));
  EXPECT_EQ(quarter.more, share(full.more, 0.25));
  EXPECT_EQ(quarter.passes, 0);
  const BudgetChoice more = AtDial(input, 0.34);
  EXPECT_EQ(more.steps, full.steps);
  EXPECT_EQ(more.passes, 1);
  EXPECT_EQ(AtDial(input, 0.5).passes, 2);
  // Nothing that would shrink first.
  job_.options.tuning.passes = 0;
  EXPECT_EQ(AtDial(Input(), 0.25).steps, share(full.steps, 0.25));
}

TEST_F(CalibrationPlanTest, ABudgetThatBuysNothingSaysWhatTheLeastTakes) {
  const absl::Status status = ChooseForBudget(Input(), rates_, 1e-6).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("--budget is "), HasSubstr("--linear")));
}

TEST_F(CalibrationPlanTest, SaysWhatMoreTimeWouldBuy) {
  const double whole = Seconds(Input());
  const auto lines = MoreThanBudget(Input(), rates_, whole / 8);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr(" would buy "));
  EXPECT_THAT(lines[2], HasSubstr("the whole job takes about "));
  EXPECT_TRUE(MoreThanBudget(Input(), rates_, 2 * whole).empty());
}

TEST_F(CalibrationPlanTest, AChoiceIsMadeOnceForAnInterruptedRun) {
  const TemporaryDirectory work;
  int asked = 0;
  const auto choose = [&] {
    ++asked;
    return ChooseForBudget(Input(), rates_, 0.5 * Seconds(Input()));
  };
  const auto open = [&](double seconds, const char* machine = "cpu 2") {
    return OpenBudget(work.path(), Input(), machine, seconds, choose);
  };
  const auto first = open(60), again = open(60);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(open(61).ok());
  EXPECT_EQ(asked, 2) << "another time is another choice";
  train_[3][7] = 2;
  EXPECT_TRUE(open(60).ok());
  EXPECT_EQ(asked, 3) << "other text, too";
  EXPECT_TRUE(open(60, "cpu 1").ok());
  EXPECT_EQ(asked, 4) << "and another machine";
  job_.options.training_tokens = 4000;
  EXPECT_TRUE(open(60).ok());
  EXPECT_EQ(asked, 5) << "and other work";
  EXPECT_TRUE(open(60).ok());
  EXPECT_EQ(asked, 5);
  // Figures that are none of this job's are not taken.
  for (const auto& file : std::filesystem::directory_iterator(work.path())) {
    std::ofstream(file.path()) << "10 10 0 99999999 4 1 0\n";
  }
  EXPECT_TRUE(open(60).ok());
  EXPECT_EQ(asked, 6);
}

TEST_F(CalibrationPlanTest, ADeviceThatIsNotHereIsItsPeaksTimesAShare) {
  const DeviceSheet device{.flops = 1e12, .f32_flops = 4e10, .bandwidth = 1e9, .share = 0.5};
  const WorkRates rates =
      RatesOfDevice(config_, device, DType::kBf16, /*solver_rate=*/3e9, /*answer_tokens=*/4);
  EXPECT_DOUBLE_EQ(rates.per_second[Work::kPrefill], 5e11);
  EXPECT_DOUBLE_EQ(rates.per_second[Work::kTail], 5e11);
  EXPECT_DOUBLE_EQ(rates.per_second[Work::kMoments], 2e10) << "fits are in f32";
  EXPECT_DOUBLE_EQ(rates.per_second[Work::kNetwork], 2e10);
  EXPECT_DOUBLE_EQ(rates.per_second[Work::kSolver], 3e9) << "the host's";
  EXPECT_DOUBLE_EQ(rates.per_second[Work::kLoad], 1e9) << "2 GB/s of bf16";
  EXPECT_DOUBLE_EQ(RatesOfDevice(config_, device, DType::kF32, 3e9, 4).per_second[Work::kPrefill], 2e10);
  // A token reads every weight: half of 1e9 bytes a second are 2.5e8 weights.
  WorkAmounts token;
  token[Work::kDecode] = TailFlops(config_, 0, 1);
  EXPECT_NEAR(rates.Seconds(token), Parameters(config_) / 2.5e8, 1e-12);
  EXPECT_DOUBLE_EQ(Parameters(config_), 4 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64) + 2 * 100 * 32);
}

TEST(MachineRoom, ReadsLinesOfProcFiles) {
  const std::string text = "MemTotal:       100 kB\nMemAvailable:    42 kB\nHugePages_Total:   3\n";
  EXPECT_EQ(KilobyteLine(text, "MemAvailable"), 42 * 1024);
  EXPECT_EQ(KilobyteLine(text, "Mem"), std::nullopt);
  EXPECT_EQ(KilobyteLine(text, "Swap"), std::nullopt);
  EXPECT_GT(FreeMemory(), 0);
  EXPECT_GT(FreeDisk("/tmp/not/there/yet"), 0);
}

TEST(MachineRoom, IsTheLeastThatAControlGroupOrOneAboveItLeaves) {
  const TemporaryDirectory root;
  std::filesystem::create_directories(root.File("job.slice/step"));
  root.Write("job.slice/memory.max", "1000\n");
  root.Write("job.slice/memory.current", "700\n");
  root.Write("job.slice/memory.stat", "active_file 50\ninactive_file 100\n");
  root.Write("job.slice/step/memory.max", "max\n");
  EXPECT_EQ(GroupRoom("0::/job.slice/step\n", root.path()), 400);
  EXPECT_EQ(GroupRoom("0::/\n", root.path()), std::nullopt) << "no limit";
  root.Write("job.slice/step/memory.max", "50\n");
  root.Write("job.slice/step/memory.current", "60\n");
  EXPECT_EQ(GroupRoom("0::/job.slice/step\n", root.path()), 0) << "nothing is free";
  // Version 1.
  std::filesystem::create_directories(root.File("memory/old"));
  root.Write("memory/old/memory.limit_in_bytes", "5000\n");
  root.Write("memory/old/memory.usage_in_bytes", "2000\n");
  root.Write("memory/old/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  EXPECT_EQ(GroupRoom("7:cpu,cpuacct:/x\n4:memory:/old\n0::/\n", root.path()), 3500);
}

TEST(StageMeter, SeesTheMostThatAStageHeld) {
  StageMeter meter;
  meter.Begin(Stage::kEncoders);
  {
    // Longer than the watcher sleeps; written, so that there are pages behind it.
    const std::vector<char> much(64 << 20, 'x');
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(much.back(), 'x');
  }
  meter.Begin(Stage::kTraining);
  meter.End();
  meter.Begin(Stage::kTraining);
  meter.End();
  EXPECT_GE(meter.Of(Stage::kEncoders).seconds, 0.3);
  EXPECT_GE(meter.Of(Stage::kEncoders).memory, 64 << 20);
  EXPECT_LT(meter.Of(Stage::kTraining).memory, meter.Of(Stage::kEncoders).memory);
  EXPECT_EQ(meter.Of(Stage::kTraining).times, 2);
  EXPECT_EQ(meter.Of(Stage::kTuning).times, 0);
}

// A directory of versions keeps them all: what is copied, beside what is written, is the current one.
TEST_F(CalibrationPlanTest, OfADirectoryOfVersionsTheCurrentOneCounts) {
  const TemporaryDirectory files;
  job_.base.out = files.File("codec");
  const AludelInputs inputs;
  const auto bytes = [&] {
    const auto old = FindArtifact(job_.base.out);
    EXPECT_TRUE(old.ok()) << old.status();
    return old.ok() ? PlanOfJob(job_, inputs, *old)->artifact_bytes : -1;
  };
  EXPECT_EQ(bytes(), 0);
  double size = 0;
  for (const auto& file : std::filesystem::directory_iterator("deploy/demo/codec")) {
    size += static_cast<double>(file.file_size());
  }
  for (int version = 1; version <= 2; ++version) {
    ASSERT_TRUE(PublishVersion(job_.base.out, "deploy/demo/codec").ok());
    EXPECT_EQ(bytes(), size);
  }
}

}  // namespace
}  // namespace aludel
