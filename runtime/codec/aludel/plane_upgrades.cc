#include "runtime/codec/aludel/plane_upgrades.h"

#include <string>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

std::string Describe(const FrameCoverage& coverage) {
  return absl::StrFormat("layers [%d, %d), tokens [%d, %d)", coverage.first_layer,
                         coverage.first_layer + coverage.layers, coverage.token_begin,
                         uint64_t{coverage.token_begin} + coverage.tokens);
}

// That a part of a frame is the planes [begin, end) of it.
absl::Status CheckPart(const FrameCoverage& coverage, absl::Span<const uint8_t> payload, int begin, int end) {
  ALUDEL_ASSIGN_OR_RETURN(const int found, CountPlanes(payload));
  if (coverage.plane == begin && found == end - begin) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("frame of %s holds planes [%d, %d), want [%d, %d)",
                                             Describe(coverage), coverage.plane, coverage.plane + found,
                                             begin, end));
}

}  // namespace

absl::StatusOr<PlaneSplit> SplitPlanes(absl::Span<const uint8_t> payload, int base_planes) {
  ALUDEL_CHECK(base_planes >= 1);
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> base, TruncatePlanes(payload, base_planes));
  if (base.size() == payload.size()) {
    return absl::DataLossError(absl::StrFormat("a payload of %d bytes has no plane behind the first %d",
                                               payload.size(), base_planes));
  }
  return PlaneSplit{base, payload.subspan(base.size())};
}

PlaneUpgrades::PlaneUpgrades(int base_planes, int planes) : base_planes_(base_planes), planes_(planes) {
  ALUDEL_CHECK(base_planes >= 1 && base_planes < planes);
}

absl::Status PlaneUpgrades::AddBase(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) {
  ALUDEL_RETURN_IF_ERROR(CheckPart(coverage, payload, 0, base_planes_));
  const Place place{coverage.token_begin, coverage.first_layer};
  const auto [found, added] = bases_.try_emplace(place, Base{coverage, {payload.begin(), payload.end()}});
  if (!added) {
    return absl::AlreadyExistsError(absl::StrFormat("base frame of %s begins where that of %s does",
                                                    Describe(coverage), Describe(found->second.coverage)));
  }
  ++waiting_;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> PlaneUpgrades::Join(const FrameCoverage& coverage,
                                                         absl::Span<const uint8_t> payload) {
  const auto found = bases_.find({coverage.token_begin, coverage.first_layer});
  if (found == bases_.end() || found->second.coverage.layers != coverage.layers ||
      found->second.coverage.tokens != coverage.tokens) {
    return absl::DataLossError(
        absl::StrFormat("upgrade of %s: no base frame is of these", Describe(coverage)));
  }
  Base& base = found->second;
  if (base.upgraded) {
    return absl::AlreadyExistsError(absl::StrFormat("upgrade of %s has already arrived", Describe(coverage)));
  }
  ALUDEL_RETURN_IF_ERROR(CheckPart(coverage, payload, base_planes_, planes_));
  base.upgraded = true;
  --waiting_;
  std::vector<uint8_t> whole = std::exchange(base.payload, {});
  whole.insert(whole.end(), payload.begin(), payload.end());
  return whole;
}

}  // namespace aludel
