#pragma once

namespace aludel {

// The project's version and, where it was built from a git work tree, the commit: "0.1.0 (commit 0123456789ab)".
// Written when a program is linked; only programs link it (aludel_version).
extern const char* const kVersion;

}  // namespace aludel
