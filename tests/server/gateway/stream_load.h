#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace aludel {

// Streams to open against a gateway in front of a PacedDecode, and to read to their ends.
struct StreamLoad {
  int streams = 0;
  int tokens = 0;                     // that each must bring
  std::chrono::milliseconds ramp{0};  // they are opened evenly over this time
  std::chrono::seconds timeout{0};
  std::string body;                    // of POST /v1/chat/completions
  std::function<void()> when_all_run;  // once each has brought a token; may be null
};

// Milliseconds, sorted.
struct StreamFigures {
  int complete = 0;              // streams that brought every token, and their end
  std::vector<double> first_ms;  // request sent -> first token here, by stream
  std::vector<double> token_ms;  // token sent by the decode server -> here, first tokens left out
};

// From one thread; raises the process's limit of open files. Fails (complete < streams) without a word on
// streams that are refused, cut off or late.
StreamFigures RunStreams(uint16_t port, const StreamLoad& load);

// Of sorted values; 0 where there are none.
double Quantile(const std::vector<double>& sorted, double q);

}  // namespace aludel
