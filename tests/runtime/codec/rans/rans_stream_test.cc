#include "runtime/codec/rans/rans_stream.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// FORMAT.md's stream, symbol by symbol and with divisions.
std::vector<uint8_t> PlainEncode(const std::vector<std::vector<uint16_t>>& tables,
                                 const std::vector<uint8_t>& symbols, const std::vector<int>& table_of,
                                 int lanes) {
  std::vector<uint64_t> states(lanes, lanes == 1 ? 0 : 32768);
  std::deque<uint16_t> words;
  for (size_t i = symbols.size(); i-- > 0;) {
    const std::vector<uint16_t>& frequencies = tables[table_of[i]];
    uint64_t start = 0;
    for (int s = 0; s < symbols[i]; ++s) start += frequencies[s];
    const uint64_t frequency = frequencies[symbols[i]];
    uint64_t& x = states[i % lanes];
    if (x >= frequency << 19) {
      words.push_front(x & 0xffff);
      x >>= 16;
    }
    x = x / frequency * 4096 + start + x % frequency;
  }
  std::vector<uint8_t> bytes;
  for (const uint64_t x : states) {
    size_t count = 4;
    if (lanes == 1 && words.empty())
      count = x == 0 ? 0 : x < 1 << 8 ? 1 : x < 1 << 16 ? 2 : x < 1 << 24 ? 3 : 4;
    if (lanes == 1 && !words.empty() && x < 1 << 24) count = 3;
    for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(x >> 8 * i));
  }
  for (const uint16_t word : words) {
    bytes.push_back(word & 0xff);
    bytes.push_back(word >> 8);
  }
  return bytes;
}

// Symbols of several tables in turn, drawn from their probabilities.
struct Sample {
  std::vector<std::vector<uint16_t>> frequencies;
  std::vector<RansTable> tables;
  std::vector<RansRun> runs;
  std::vector<uint8_t> symbols;
  std::vector<int> table_of;
  double ideal_bits = 0;

  std::vector<uint8_t> Encode(int lanes) const {
    std::vector<uint8_t> bytes(MaxRansBytes(symbols.size(), lanes));
    bytes.resize(RansEncode(runs, symbols, lanes, absl::MakeSpan(bytes)));
    return bytes;
  }
  absl::Status Decode(absl::Span<const uint8_t> bytes, int lanes, std::vector<uint8_t>* back) const {
    back->assign(symbols.size(), 0xee);
    return RansDecode(runs, bytes, lanes, absl::MakeSpan(*back));
  }
};

// Failures tell the seed.
struct Random {
  const unsigned seed = std::random_device{}();
  const ::testing::ScopedTrace trace{__FILE__, __LINE__, absl::StrCat("seed ", seed)};
  std::mt19937_64 engine{seed};
};

std::vector<uint16_t> RandomFrequencies(std::mt19937_64& random) {
  const size_t count = 1 + random() % kMaxRansSymbols;
  std::vector<uint64_t> counts(count);
  const double peak = std::exp2(static_cast<double>(random() % 12));
  for (uint64_t& c : counts) {
    c = static_cast<uint64_t>(std::pow(static_cast<double>(random() % 1000) / 1000, peak) * 1e6);
  }
  counts[random() % count] += 1;
  return RansFrequencies(counts);
}

// `tables` tables with `run` symbols each.
Sample Draw(std::mt19937_64& random, int tables, size_t run) {
  Sample sample;
  for (int t = 0; t < tables; ++t) {
    sample.frequencies.push_back(RandomFrequencies(random));
    sample.tables.push_back(RansTable::Create(sample.frequencies.back()).value());
  }
  for (int t = 0; t < tables; ++t) {
    sample.runs.push_back({&sample.tables[t], run});
    const uint8_t* const slots = sample.tables[t].slot_symbols();
    for (size_t i = 0; i < run; ++i) {
      const auto symbol = slots[random() % kRansTotal];
      sample.symbols.push_back(symbol);
      sample.table_of.push_back(t);
      sample.ideal_bits += kRansBits - std::log2(sample.frequencies[t][symbol]);
    }
  }
  return sample;
}

class RansStream : public ::testing::TestWithParam<int> {
 protected:
  Random random_source_;
  std::mt19937_64& random_ = random_source_.engine;
};

TEST_P(RansStream, GivesTheBytesOfThePlainCoderAndReadsThem) {
  for (const int tables : {1, 2, 7, 64}) {
    for (const size_t run : {0, 1, 2, 31, 32, 33, 500}) {
      const Sample sample = Draw(random_, tables, run);
      const std::vector<uint8_t> bytes = sample.Encode(GetParam());
      ASSERT_EQ(bytes, PlainEncode(sample.frequencies, sample.symbols, sample.table_of, GetParam()))
          << tables << " x " << run;
      std::vector<uint8_t> back;
      const absl::Status status = sample.Decode(bytes, GetParam(), &back);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(back, sample.symbols);
    }
  }
}

// One symbol more costs its own bits, and a lane what the header says.
TEST_P(RansStream, TakesTheIdealBytes) {
  for (int round = 0; round < 8; ++round) {
    const Sample sample = Draw(random_, 8, 4096);
    const double ideal = sample.ideal_bits / 8;
    EXPECT_LE(static_cast<double>(sample.Encode(GetParam()).size()),
              1.001 * ideal + (GetParam() == 1 ? 2 : 4 * GetParam()));
  }
}

TEST_P(RansStream, RefusesWhatIsNotExactlyTheStream) {
  // More than a state: tables of one likely symbol each may need no words, and a longer stream of a single lane then
  // may say the same.
  Sample sample;
  std::vector<uint8_t> bytes;
  while (bytes.size() <= sizeof(uint32_t) * GetParam()) {
    sample = Draw(random_, 3, 200);
    bytes = sample.Encode(GetParam());
  }
  std::vector<uint8_t> back;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = sample.Decode(absl::MakeConstSpan(bytes).first(size), GetParam(), &back);
    // A single lane that has nothing left may stand for likely symbols.
    EXPECT_TRUE(status.code() == absl::StatusCode::kDataLoss || (GetParam() == 1 && back != sample.symbols))
        << size << " of " << bytes.size();
  }
  auto longer = bytes;
  longer.insert(longer.end(), {0, 0});
  const absl::Status status = sample.Decode(longer, GetParam(), &back);
  if (GetParam() == 1 && status.ok()) {
    EXPECT_NE(back, sample.symbols);
  } else {
    EXPECT_THAT(status.ToString(), HasSubstr("coded bytes are not those of 600"));
  }
}

TEST_P(RansStream, RandomBytesAreAnErrorOrOfOneLaneSymbols) {
  const Sample sample = Draw(random_, 5, 300);
  std::vector<uint8_t> back;
  for (int round = 0; round < 300; ++round) {
    std::vector<uint8_t> bytes(random_() % 2000);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    const absl::Status status = sample.Decode(bytes, GetParam(), &back);
    if (status.code() == absl::StatusCode::kDataLoss) continue;
    ASSERT_TRUE(GetParam() == 1 && status.ok()) << status;
    for (size_t i = 0; i < back.size(); ++i) {
      const std::vector<uint16_t>& frequencies = sample.frequencies[sample.table_of[i]];
      ASSERT_TRUE(back[i] < frequencies.size() && frequencies[back[i]] > 0) << "symbol " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, RansStream, ::testing::Values(1, 2, 4, 8, 16, 32));

TEST(RansStream, OneLaneOfFewSymbolsTakesLittleBesideThem) {
  Random source;
  std::mt19937_64& random = source.engine;
  double beside = 0;
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    const Sample sample = Draw(random, 40, 1);
    beside += static_cast<double>(sample.Encode(1).size()) - sample.ideal_bits / 8;
  }
  EXPECT_LT(beside / kRounds, 1.6);
}

TEST(RansStream, HasTheBytesOfTheDocument) {
  // FORMAT.md's example: two symbols of 3/4 and 1/4.
  const RansTable table = RansTable::Create({3072, 1024}).value();
  const std::vector<uint8_t> symbols = {0, 1, 0, 0, 1, 1, 0, 0, 0, 1};
  const RansRun run{&table, symbols.size()};
  std::vector<uint8_t> bytes(MaxRansBytes(symbols.size(), 1));
  bytes.resize(RansEncode(absl::MakeConstSpan(&run, 1), symbols, 1, absl::MakeSpan(bytes)));
  EXPECT_THAT(bytes, ElementsAre(0x00, 0x78, 0x10));
}

TEST(RansLanes, LeavesEachLaneItsSymbols) {
  EXPECT_EQ(RansLanes(0, 512), 1);
  EXPECT_EQ(RansLanes(1023, 512), 1);
  EXPECT_EQ(RansLanes(1024, 512), 2);
  EXPECT_EQ(RansLanes(5000, 512), 8);
  EXPECT_EQ(RansLanes(size_t{1} << 30, 512), kMaxRansLanes);
}

TEST(RansTable, WantsFrequenciesThatComeToTheTotal) {
  EXPECT_TRUE(RansTable::Create({4096}).ok());
  EXPECT_EQ(RansTable::Create({4095}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(RansTable::Create({4000, 97}).status().ToString(), HasSubstr("come to 4097, want 4096"));
  EXPECT_FALSE(RansTable::Create({}).ok());
  std::vector<uint16_t> many(257, 0);
  many[256] = 4096;
  EXPECT_FALSE(RansTable::Create(many).ok());
}

TEST(RansFrequencies, CostHardlyMoreThanTheCounts) {
  Random source;
  std::mt19937_64& random = source.engine;
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> counts(2 + random() % 60);
    const double ratio = 0.5 + static_cast<double>(random() % 45) / 100;
    double total = 0, entropy = 0, cost = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] = 1 + static_cast<uint64_t>(1e5 * std::pow(ratio, static_cast<double>(i)));
      total += static_cast<double>(counts[i]);
    }
    const std::vector<uint16_t> frequencies = RansFrequencies(counts);
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto count = static_cast<double>(counts[i]);
      ASSERT_GE(frequencies[i], 1);
      entropy += count * std::log2(total / count);
      cost += count * (kRansBits - std::log2(frequencies[i]));
    }
    EXPECT_LE(cost, 1.01 * entropy) << counts.size() << " symbols, ratio " << ratio;
  }
}

}  // namespace
}  // namespace aludel
