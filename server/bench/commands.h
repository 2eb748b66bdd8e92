#pragma once

#include "absl/status/status.h"

namespace aludel {

// The sub-commands of aludel-bench, one file each. argv[0] is the sub-command's name; each prints its own
// --help. A new one is declared here and gets a line in main.cc.

absl::Status CodecCommand(int argc, char** argv);
absl::Status CoderCommand(int argc, char** argv);
absl::Status EngineCommand(int argc, char** argv);
absl::Status LinkCommand(int argc, char** argv);
absl::Status LoadCommand(int argc, char** argv);
absl::Status MakeAdapterCommand(int argc, char** argv);
absl::Status MakeCodecCommand(int argc, char** argv);
absl::Status MakeModelCommand(int argc, char** argv);
absl::Status PackingCommand(int argc, char** argv);
absl::Status RouteSimCommand(int argc, char** argv);
absl::Status ServeCommand(int argc, char** argv);
absl::Status StoreCommand(int argc, char** argv);
absl::Status StoreLoadCommand(int argc, char** argv);
absl::Status StoreSimCommand(int argc, char** argv);
absl::Status TtftCommand(int argc, char** argv);

}  // namespace aludel
