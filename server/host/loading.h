#pragma once

#include <string>

#include "runtime/model/weights/weight_stream.h"

namespace aludel {

// Tells how far the loading of a model has come: a bar where standard error is a terminal, else a log line
// every ten seconds.
LoadProgress ReportLoading(const std::string& directory);

}  // namespace aludel
