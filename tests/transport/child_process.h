#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace aludel {

// A helper binary that stands beside the running test, with pipes to its standard input and output. Killed
// and reaped when this is destroyed.
class ChildProcess {
 public:
  ChildProcess(const std::string& binary, const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int signal);
  // Its next line of output, without the newline; empty when it has ended.
  std::string ReadLine();
  void CloseInput();

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  FILE* output_ = nullptr;
};

}  // namespace aludel
