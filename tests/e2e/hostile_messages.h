#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "google/protobuf/message.h"

namespace aludel {

// Draws protobuf messages as a hostile caller would make them: of the right shape, with values that are huge, empty,
// repeated, of the wrong kind, or not numbers; and bytes that are no message. The same seed and calls give the same.
class HostileMessages {
 public:
  explicit HostileMessages(uint64_t seed) : random_(seed) {}

  // Gives a few fields of `message`, at any depth, a hostile value.
  void Spoil(google::protobuf::Message* message);
  // Gives every field such a value, or none.
  void Fill(google::protobuf::Message* message, int depth = 0);
  // Flips, cuts, doubles and inserts bytes of a serialized message; now and then other bytes altogether.
  std::string SpoilBytes(std::string bytes);
  std::string Text();

  uint64_t Up(uint64_t below) { return random_() % below; }

 private:
  void SetValue(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                int depth);
  uint64_t Number();
  double Real();

  std::mt19937_64 random_;
};

}  // namespace aludel
