#include "server/decode/decode_context.h"

#include <algorithm>

#include "server/decode/plan/planner.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

std::vector<FormatOffer> OffersOf(const std::vector<std::unique_ptr<DecoderFactory>>& codecs) {
  std::vector<FormatOffer> offers;
  for (const auto& codec : codecs) offers.push_back({codec->spec().name, codec->spec().artifact_hash});
  return offers;
}

using DecoderSets = CodecSets<DecoderFactory>;

// An index of `offered`.
size_t MostHave(absl::Span<const DecoderSets::Handle> offered, absl::Span<const PlanTarget> targets) {
  if (offered.size() < 2) return 0;
  std::vector<std::vector<FormatOffer>> offers;
  for (const auto& set : offered) offers.push_back(OffersOf(set->codecs));
  return ChooseSet(offers, targets);
}

}  // namespace

SequenceCodecs::SequenceCodecs(const DecodeContext& context, const RequestAdapter& adapter,
                               absl::Span<const PlanTarget> targets, absl::string_view format) {
  if (adapter.coded() != nullptr) {
    const std::shared_ptr<const AdapterCodecs::Opened> opened = adapter.coded()->codecs();
    codecs_ = &opened->decoders;
    losses_ = &opened->losses;
    owner_ = opened;
    return;
  }
  DecoderSets& sets = context.model->sets();
  const auto offered = sets.offered();
  size_t chosen = MostHave(offered, targets);
  context.chosen->Choose(*offered[chosen]);
  const auto has_format = [&](const auto& set) { return set->Find(format) != nullptr; };
  if (!format.empty() && !has_format(offered[chosen])) {
    const auto other = std::find_if(offered.begin(), offered.end(), has_format);
    if (other != offered.end()) chosen = other - offered.begin();
  }
  sets.Used(offered[chosen], MonotonicNow());
  codecs_ = &offered[chosen]->codecs;
  owner_ = offered[chosen];
}

std::vector<std::string> SequenceCodecs::Names() const {
  std::vector<std::string> names;
  for (const auto& codec : *codecs_) names.push_back(codec->spec().name);
  return names;
}

const DecoderFactory* SequenceCodecs::Find(const std::string& name) const {
  for (const auto& codec : *codecs_) {
    if (codec->spec().name == name) return codec.get();
  }
  return nullptr;
}

void SequenceCodecs::Narrow(std::vector<PlanTarget>* targets) const { NarrowTo(OffersOf(*codecs_), targets); }

void KeepWhatPeersHave(const DecodeContext& context, absl::Span<const PlanTarget> targets) {
  DecoderSets& sets = context.model->sets();
  const auto offered = sets.offered();
  const auto& chosen = offered[MostHave(offered, targets)];
  context.chosen->Choose(*chosen);
  sets.Used(chosen, MonotonicNow());
}

std::vector<FormatOffer> ServerFormats(const DecodeHost& model, const AdapterPool& adapters) {
  std::vector<FormatOffer> formats;
  const auto add = [&formats](FormatOffer offer) {
    if (std::find(formats.begin(), formats.end(), offer) == formats.end())
      formats.push_back(std::move(offer));
  };
  const auto offered = model.sets().offered();
  for (FormatOffer& offer : OffersOf(offered.front()->codecs)) add(std::move(offer));
  for (const AdapterCodecs::Format& format : adapters.formats()) {
    if (offered.front()->Find(format.name) == nullptr) add({format.name, format.encoder_hash});
  }
  for (size_t i = 1; i < offered.size(); ++i) {
    for (FormatOffer& offer : OffersOf(offered[i]->codecs)) add(std::move(offer));
  }
  return formats;
}

}  // namespace aludel
