#include "server/host/artifact_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// Of a hash, enough to tell artifacts apart by.
constexpr size_t kShownHash = 12;

// What changes with a switch: a version has a manifest of its own.
std::vector<std::string> WatchedFiles(const std::string& location) {
  const absl::string_view path = absl::StripSuffix(location, "/");
  return {absl::StrCat(path, "/", kArtifactManifest),
          absl::StrCat(path, "/", kCurrentLink, "/", kArtifactManifest)};
}

MetricLabels InfoLabels(const ArtifactOrigin& origin) {
  return {{"version", origin.version}, {"manifest", origin.manifest_hash.substr(0, kShownHash)}};
}

// What may be otherwise at a later look, with the same files.
bool IsTransient(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

}  // namespace

ArtifactWatch::ArtifactWatch(Options options, Metrics* metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      info_(
          metrics->Gauge("aludel_artifact_info", "1 for the artifact in use: its version and its manifest.")),
      sets_(metrics->Gauge("aludel_artifacts_held",
                           "Artifacts in memory, old ones that are still used among them.")),
      switches_(
          metrics->Counter("aludel_artifact_switches_total",
                           "Artifacts that were published while the server ran, by what came of them.")) {
  if (options_.location.empty()) return;
  Export(options_.origin);
  if (!FollowsVersions(options_.location)) return;
  for (const char* result : {"switched", "refused", "deferred"}) switches_.Add({{"result", result}}, 0);
  reloader_.emplace(
      std::vector<Reloader::Watched>{
          {.files = WatchedFiles(options_.location), .reload = [this] { return Begin(); }, .logs = false}},
      options_.interval, [this] { Tend(); });
  // What was published while the model was loading.
  reloader_->Poke();
}

void ArtifactWatch::Poke() {
  if (reloader_) reloader_->Poke();
}

absl::Status ArtifactWatch::Begin() {
  deferred_ = false;
  wait_ = 1;
  tried_ = true;
  return Load();
}

absl::Status ArtifactWatch::Load() {
  const absl::StatusOr<ArtifactOrigin> loaded = options_.load();
  if (!loaded.ok()) {
    if (IsTransient(loaded.status())) {
      Defer(loaded.status());
    } else {
      deferred_ = false;
      switches_.Add({{"result", "refused"}});
      spdlog::error("the artifact at {} is refused, {} goes on: {}", options_.location, origin_.directory,
                    std::string(loaded.status().message()));
    }
    return loaded.status();
  }
  deferred_ = false;
  if (loaded->directory == origin_.directory && loaded->manifest_hash == origin_.manifest_hash) {
    return absl::OkStatus();
  }
  spdlog::info("artifact {} is used from now on, in place of {}", loaded->directory, origin_.directory);
  switches_.Add({{"result", "switched"}});
  Export(*loaded);
  return absl::OkStatus();
}

void ArtifactWatch::Defer(const absl::Status& status) {
  // Logged and counted once, however often it is tried; of tries that cost something each is logged.
  const bool first = !std::exchange(deferred_, true);
  if (first) switches_.Add({{"result", "deferred"}});
  if (first || !absl::IsAborted(status)) {
    spdlog::warn("the artifact at {} is tried again later, {} goes on: {}", options_.location,
                 origin_.directory, std::string(status.message()));
  }
  looks_ = absl::IsAborted(status) ? 1 : std::exchange(wait_, std::min(2 * wait_, kMaxLooks));
}

void ArtifactWatch::Tend() {
  options_.tend();
  const bool tried = std::exchange(tried_, false);
  if (deferred_ && !tried && --looks_ == 0) Load().IgnoreError();  // it was logged
  sets_.Set({}, static_cast<double>(options_.held()));
}

void ArtifactWatch::Export(const ArtifactOrigin& origin) {
  if (!origin_.directory.empty()) {
    info_.Remove(InfoLabels(origin_));
    // Or the labels would be full one day, of versions that are gone.
    for (const auto& [label, value] : InfoLabels(origin_)) metrics_->Forget(label, value);
  }
  origin_ = origin;
  if (!origin_.directory.empty()) info_.Set(InfoLabels(origin_), 1);
  sets_.Set({}, static_cast<double>(options_.held()));
}

}  // namespace aludel
