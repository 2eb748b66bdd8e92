#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/codec/artifact/artifact.h"

namespace aludel {

// Versions of an artifact beside each other, of which servers use one:
//   DIR/versions/0001, DIR/versions/0002, ...   artifacts; what is there never changes
//   DIR/current -> versions/0002                 replaced in one step, by a rename
//   DIR/previous -> versions/0001                what was current before; written before `current` is
//   DIR/.lock                                    held by who publishes or rolls back
// A process that ends at any step leaves the old version current or the new one, and both whole: what it has copied in
// part is in DIR/versions/.copy-*, which the next publish removes. Thread-safe, and safe among processes of one machine.

inline constexpr char kVersionsFolder[] = "versions";
inline constexpr char kCurrentLink[] = "current";
inline constexpr char kPreviousLink[] = "previous";

// Where an artifact lies that `location` names: an artifact directory, a link to one, or a directory of versions (its
// current one). A directory that is no link is returned as it was given, also one that holds no artifact; of a link the
// canonical path. NotFound for a link that leads nowhere. "": "".
absl::StatusOr<std::string> ResolveArtifact(const std::string& location);
// Whether the artifact at `location` may change by a switch: it is a link, or a directory of versions.
bool FollowsVersions(const std::string& location);
// The directory of versions that `location` names: itself, or that of its `current` link. Nothing where it names none.
std::optional<std::string> VersionsOf(const std::string& location);

// SHA-256 of the manifest, hex: it names every file by its own hash, so that equal hashes mean equal artifacts.
absl::StatusOr<std::string> HashManifest(const std::string& directory);
// Reads every file that the manifest names, of both sides. DataLoss or NotFound names the first that is not as it says.
absl::Status VerifyArtifact(const ArtifactManifest& manifest);

struct ArtifactVersion {
  int64_t number = 0;
  std::string name;       // "0002"
  std::string directory;  // DIR/versions/0002
  bool current = false;
  bool previous = false;
  absl::Status status;  // of its manifest; files are not read
};
// By number, oldest first. NotFound where `directory` is no directory of versions.
absl::StatusOr<std::vector<ArtifactVersion>> ListVersions(const std::string& directory);

// How long the functions below wait for others of them, in other processes, too: Unavailable names the file that
// those hold.
inline constexpr absl::Duration kPublishPatience = absl::Minutes(10);

// Copies the artifact of `source` (as ResolveArtifact) beside what is there, verifies the copy in full, and makes it
// current. Makes `directory` where it is not there yet. Returns the new version.
absl::StatusOr<ArtifactVersion> PublishVersion(const std::string& directory, const std::string& source,
                                               absl::Duration patience = kPublishPatience);
// As above for an artifact that lies in `directory`/versions under another name, whose files are not read again: it is moved.
absl::StatusOr<ArtifactVersion> AdoptVersion(const std::string& directory, const std::string& partial);
// Makes a version current that is there, once all of its files are verified: the previous one, or `version`, a name.
// FailedPrecondition where there is no previous one, or it is the current one: a switch was cut off.
absl::StatusOr<ArtifactVersion> RollBackVersion(const std::string& directory, const std::string& version = "",
                                                absl::Duration patience = kPublishPatience);

}  // namespace aludel
