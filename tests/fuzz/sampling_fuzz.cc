// GenerateRequests as they come off the wire, cut and spoilt: sampling parameters that are accepted must let
// a sampler choose a token that exists, from any finite logits.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "aludel/v1/handoff.pb.h"
#include "server/decode/sampling_fields.h"

namespace aludel {
namespace {

constexpr size_t kVocab = 64;

void CheckAccepted(SamplingParams params, absl::Span<const int32_t> prompt) {
  // The engine refuses ids that the model does not know.
  for (const LogitBias& bias : params.logit_bias) {
    if (bias.id < 0 || bias.id >= static_cast<int32_t>(kVocab)) return;
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= static_cast<int32_t>(kVocab)) return;
  }
  SamplerScratch scratch(kVocab);
  Sampler sampler(params, 1, 0, prompt, 16);
  std::mt19937 random(7);
  for (const float scale : {1e-30f, 1.0f, 1e3f, 1e30f}) {
    std::normal_distribution<float> draw(0, scale);
    std::vector<float> logits(kVocab);
    for (float& logit : logits) logit = draw(random);
    const int32_t token = sampler.Sample(logits, {}, &scratch);
    if (token < 0 || token >= static_cast<int32_t>(kVocab)) std::abort();
  }
}

}  // namespace
}  // namespace aludel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  v1::GenerateRequest request;
  if (!request.ParseFromArray(bytes, static_cast<int>(size))) return 0;
  const absl::StatusOr<SamplingParams> params = ReadSampling(request.sampling());
  if (!params.ok()) {
    if (params.status().code() != absl::StatusCode::kInvalidArgument) std::abort();
    return 0;
  }
  CheckAccepted(*params, request.prompt());
  return 0;
}
