#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Command-line flags of every program, over getopt_long: dashes in names, "--flag value" or
// "--flag=value", lists by repetition, and arguments without a flag where a tool wants some. Variables hold
// the defaults, which --help shows.
class FlagSet {
 public:
  // `usage` is the text above the list of flags in --help.
  explicit FlagSet(std::string usage) : usage_(std::move(usage)) {}

  // A placeholder like "DIR" follows the name in --help. Pointers must outlive Parse.
  void Add(const char* name, const char* placeholder, std::string* value, const char* help);
  void Add(const char* name, const char* placeholder, int64_t* value, const char* help);
  void Add(const char* name, const char* placeholder, double* value, const char* help);
  void Add(const char* name, bool* value, const char* help);  // a switch: its presence is true
  // What stands on the command line without a flag, at most `max` of them. "DIR [DIR]" is for --help.
  void AddArguments(const char* placeholder, size_t max, std::vector<std::string>* value, const char* help);
  void AddList(const char* name, const char* placeholder, std::vector<std::string>* value, const char* help);

  // --version, which answers with this line.
  void AddVersion(const std::string& text) { version_ = text; }

  // InvalidArgument names the flag and what was found. Stops at --help and --version.
  absl::Status Parse(int argc, char** argv);
  bool help_asked() const { return help_; }
  // What --help or --version is to print; none where neither was asked for.
  std::optional<std::string> Answer() const;
  std::string Help() const;

 private:
  enum class Kind { kText, kInteger, kNumber, kSwitch, kList };
  struct Flag {
    std::string name, placeholder, help, default_text;
    Kind kind;
    void* value;
  };
  static absl::Status Set(const Flag& flag, const char* text);

  std::string usage_;
  std::vector<Flag> flags_;
  std::string arguments_placeholder_, arguments_help_;
  std::vector<std::string>* arguments_ = nullptr;
  size_t max_arguments_ = 0;
  std::string version_;  // "": no such flag
  bool help_ = false;
  bool version_asked_ = false;
};

}  // namespace aludel
