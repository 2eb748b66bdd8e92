#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "nlohmann/json.hpp"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/codec/artifact/artifact.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/first_layers.h"

// A whole calibration, from prompts to an artifact, with models and large products on the device.
namespace aludel::cuda::fake {
namespace {

constexpr int kLayers = 2;

class CalibrationJob : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteFirstLayers("deploy/demo/base", kLayers, producer_.path());
    WriteFirstLayers("deploy/demo/chat", kLayers, consumer_.path());
    std::ifstream questions("deploy/demo/calibration.jsonl");
    std::string data;
    for (std::string line; data.size() < 6000 && std::getline(questions, line);) {
      const auto context = nlohmann::json::parse(line)["context"].get<std::string>();
      data += nlohmann::json{{"text", context.substr(0, 240)}}.dump() + "\n";
    }
    outcome_.Write("data.jsonl", data);
  }

  // The artifact of a run on this device.
  ArtifactFormat Run(const std::string& device_name) {
    AludelJob job;
    job.base.producer = producer_.path();
    job.base.consumers = {consumer_.path()};
    job.base.data = outcome_.File("data.jsonl");
    job.base.out = outcome_.File(device_name.substr(0, 3));
    job.base.held_out = 0.25;
    job.base.compute = DType::kBf16;
    job.base.scd.max_answer_tokens = 3;
    job.recomputed_layers = 0;
    job.bytes_per_token = 48;
    job.sensitivity_prompts = 2;
    job.options.training.steps = 300;
    job.options.tuning.passes = 1;
    const auto device = OpenDevice({.name = device_name, .threads = 1}).value();
    const ProductDevice products(device.get());
    const absl::Status status = RunAludelJob(job, device.get());
    EXPECT_TRUE(status.ok()) << status;
    return LoadArtifactManifest(job.base.out).value().formats.at(0);
  }

  nlohmann::json Report(const std::string& device) const {
    return nlohmann::json::parse(outcome_.Read(device + ".report/aludel-p0.json"));
  }

  TemporaryDirectory producer_, consumer_, outcome_;
};

TEST_F(CalibrationJob, OnADeviceGivesTheArtifactOfTheCpu) {
  const ArtifactFormat host = Run("cpu");
  ResetCounts();
  const ArtifactFormat device = Run("cuda:0");
  EXPECT_GT(counts().launches["cublasLtMatmul"], 0) << "the device has computed";
  ASSERT_EQ(device.aludel.groups.size(), host.aludel.groups.size());
  const auto close = [](double a, double b, double tolerance) {
    return std::abs(a - b) <= tolerance * std::abs(b);
  };
  const ArtifactDecoder& on_device = device.decoders.at(0);
  const ArtifactDecoder& on_host = host.decoders.at(0);
  EXPECT_PRED3(close, device.aludel.groups[0].rank, host.aludel.groups[0].rank, 0.05);
  EXPECT_PRED3(close, on_device.expected->bytes_per_token, on_host.expected->bytes_per_token, 0.02);
  EXPECT_GT(on_host.expected->kl, 1e-4) << "nothing is lost: this compares nothing";
  // Of a dozen tokens of greedy answers, which near ties make others on another device: of one order.
  EXPECT_LT(on_device.expected->kl, 4 * on_host.expected->kl);
  EXPECT_GT(4 * on_device.expected->kl, on_host.expected->kl);
  const nlohmann::json own = Report("cpu"), other = Report("cud");
  for (const char* figure : {"step", "energy_sent", "energy_of_first_eighth", "energy_of_first_half"}) {
    EXPECT_PRED3(close, other["spectra"][0][figure].get<double>(), own["spectra"][0][figure].get<double>(),
                 0.02)
        << figure;
  }
  EXPECT_LT(own["layers"][0]["k_error"].get<double>(), 0.6) << "the network has learned";
  for (const char* figure : {"k_error", "v_error"}) {
    EXPECT_PRED3(close, other["layers"][0][figure].get<double>(), own["layers"][0][figure].get<double>(),
                 0.05)
        << figure;
  }
}

}  // namespace
}  // namespace aludel::cuda::fake
