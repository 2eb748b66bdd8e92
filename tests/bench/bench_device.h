#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_options.h"

namespace aludel {

// What every benchmark of operations takes besides Google Benchmark's flags.
struct BenchFlags {
  DeviceOptions device{.name = "cpu", .threads = 2};
  std::vector<std::string> others;  // "--name=value" of the benchmark's own, still as they came

  // The value of --name=, taken out of `others`; `otherwise` where it is not there.
  std::string Take(const std::string& name, const std::string& otherwise);
};

// Takes --device, --threads, --cores, --instructions, and --graphs, --dependent-launch, --persistent-attention, --batch-gemm and
// --time-algorithms (on or off) out of the command line, and every flag that does not begin with "--benchmark_"; what is left is
// Google Benchmark's. Ends the process with a message where a value is none.
BenchFlags ParseBenchFlags(int* argc, char** argv);

// Opens it, or ends the process with the device's message.
std::unique_ptr<Device> OpenBenchDevice(const BenchFlags& flags);

// Waits for what the device has been given; ends the process where it failed.
void Finish(Device& device);

}  // namespace aludel
