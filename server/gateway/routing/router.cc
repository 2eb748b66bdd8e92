#include "server/gateway/routing/router.h"

#include <utility>

#include "absl/random/random.h"

namespace aludel {

Router::Router(const std::vector<Model>& models, const Timing& timing, Metrics* metrics,
               const std::shared_ptr<grpc::ChannelCredentials>& credentials,
               const WaitingQueue::Options& waiting)
    : cut_answers_(metrics->Counter("aludel_cut_answers_total",
                                    "Answers whose decode server was lost, by what became of them.")),
      targets_(models, credentials, metrics) {
  std::vector<std::string> names;
  for (const Model& model : models) {
    names.push_back(model.expectation.model);
    for (const char* outcome : {"restarted", "continued", "lost"}) {
      cut_answers_.Add({{"model", model.expectation.model}, {"outcome", outcome}}, 0);
    }
  }
  room_ = std::make_unique<WaitingRoom>(
      waiting, names, [this](const std::string& model) { return targets_.Places(model); }, metrics);
  prober_ = std::make_unique<DecodeProber>(
      targets_.all(),
      DecodeProber::Timing{.interval = timing.probe_interval, .timeout = timing.probe_timeout});
  routing_ = {.targets = &targets_,
              .room = room_.get(),
              .prober = prober_.get(),
              .events = &events_,
              .cut_answers = &cut_answers_,
              .rescue = kRescue,
              .calls = &calls_};
}

Router::~Router() { AwaitCalls(); }

std::shared_ptr<GenerateCall> Router::Generate(Request request, std::shared_ptr<GenerateObserver> observer) {
  // Chosen here, so that every server draws the same tokens.
  if (!request.message.sampling().has_seed()) {
    thread_local absl::BitGen random;
    request.message.mutable_sampling()->set_seed(absl::Uniform<uint64_t>(random));
  }
  auto call = std::make_shared<RoutedCall>(routing_, std::move(request), std::move(observer));
  call->Start();
  return call;
}

}  // namespace aludel
