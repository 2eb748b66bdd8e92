#include "tests/transport/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace aludel {

ChildProcess::ChildProcess(const std::string& binary, const std::vector<std::string>& arguments) {
  const std::string path = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / binary).string();
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int to_child[2], from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {  // between fork and exec: async-signal-safe calls only
    dup2(to_child[0], STDIN_FILENO);
    dup2(from_child[1], STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(to_child[0]);
  close(from_child[1]);
  input_ = to_child[1];
  output_ = fdopen(from_child[0], "r");
}

ChildProcess::~ChildProcess() {
  CloseInput();
  std::fclose(output_);
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int signal) { kill(pid_, signal); }

std::string ChildProcess::ReadLine() {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t size = getline(&line, &capacity, output_);
  std::string text = size > 0 ? std::string(line, line[size - 1] == '\n' ? size - 1 : size) : "";
  std::free(line);
  return text;
}

void ChildProcess::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

}  // namespace aludel
