#pragma once

#include <string>

namespace aludel::cuda::fake {

// A demangled name without the namespaces of ours.
inline std::string WithoutNamespaces(std::string name) {
  for (const char* const space : {"(anonymous namespace)::", "aludel::cuda::", "aludel::"}) {
    for (size_t at = name.find(space); at != std::string::npos; at = name.find(space, at)) {
      name.erase(at, std::string(space).size());
    }
  }
  // As demanglers differ about it.
  for (size_t at = name.find("> >"); at != std::string::npos; at = name.find("> >", at))
    name.erase(at + 1, 1);
  return name;
}

// "void aludel::cuda::(anonymous namespace)::Rope<float>(float*, ...)" as "Rope<float>".
inline std::string KernelName(const std::string& demangled) {
  std::string name = WithoutNamespaces(demangled);
  int depth = 0;
  size_t end = name.size();
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) {
      end = i;
      break;
    }
  }
  name.resize(end);
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  return name;
}

}  // namespace aludel::cuda::fake
