#pragma once

#include <string>

namespace aludel {

// Settings of the three servers as plain values, read from a textproto of proto/aludel/v1/config.proto, where every
// setting has its default, range and unit, and the person who changes it. Defaults are only there. Loading checks
// everything that needs no other file: an error names the file, the line where there is one, the field, what was found
// and what was expected. An unknown field is an error.

struct LogOptions {
  std::string level;
  bool json = false;
};

struct TracingOptions {
  std::string otlp_endpoint;  // "": no traces
  double sample_share = 0;
  int max_queue = 0;
  std::string handoff_trace_directory;  // "": none
};

}  // namespace aludel
