#include "server/bench/ttft/ttft_rounds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// One length in one format: one row of local prefill or of what the planner chooses, or two of a handoff.
struct Way {
  int64_t tokens;
  std::string format;
  size_t row;  // the first of them
  size_t rows;
};

std::vector<Way> ListWays(const TtftRounds& rounds, std::vector<TtftRow>* rows) {
  std::vector<Way> ways;
  const auto add = [&](int64_t tokens, const std::string& format, TtftState state) {
    rows->push_back({.link = rounds.link, .tokens = tokens, .format = format, .state = state});
  };
  for (const int64_t tokens : rounds.lengths) {
    ways.push_back({tokens, kLocalPrefill, rows->size(), 1});
    add(tokens, kLocalPrefill, TtftState::kLocal);
    for (const std::string& format : rounds.formats) {
      const bool comes_again = format != kPlanner;
      ways.push_back({tokens, format, rows->size(), comes_again ? size_t{2} : size_t{1}});
      add(tokens, format, TtftState::kCold);
      if (comes_again) add(tokens, format, TtftState::kWarm);
    }
  }
  return ways;
}

// Whether there is no point in going on.
bool IsFinal(const absl::Status& status) { return absl::IsCancelled(status) || absl::IsUnavailable(status); }

class Rounds {
 public:
  Rounds(TtftTarget* target, const TtftRounds& rounds, std::vector<TtftRow>* rows)
      : target_(target), rounds_(rounds), rows_(rows), ways_(ListWays(rounds, rows)) {}

  absl::Status Run(std::mt19937_64* order) {
    const absl::Time begin = MonotonicNow();
    const auto left = [&] { return rounds_.allowed - (MonotonicNow() - begin); };
    ALUDEL_RETURN_IF_ERROR(WarmUp());
    std::vector<Way> ways = ways_;
    absl::Duration longest;
    for (int64_t round = 0; round < rounds_.repeats; ++round) {
      if (round > 0 && left() < longest) break;
      const absl::Time round_begin = MonotonicNow();
      std::shuffle(ways.begin(), ways.end(), *order);
      for (size_t i = 0; i < ways.size(); ++i) {
        Report(round * static_cast<int64_t>(ways.size()) + static_cast<int64_t>(i), ways[i]);
        if (left() > absl::ZeroDuration()) {
          ALUDEL_RETURN_IF_ERROR(Measure(ways[i]));
        } else if (round == 0) {
          Lack(ways[i], absl::DeadlineExceededError(kNoTime));
        }
      }
      longest = std::max(longest, MonotonicNow() - round_begin);
    }
    const auto total = static_cast<int64_t>(ways_.size()) * rounds_.repeats;
    rounds_.progress(total, total, "");
    return absl::OkStatus();
  }

 private:
  void Report(int64_t done, const Way& way) {
    rounds_.progress(done, static_cast<int64_t>(ways_.size()) * rounds_.repeats,
                     absl::StrCat(way.tokens, " tokens, ", way.format));
  }

  // Pages are touched, connections opened and kernels loaded before anything counts.
  absl::Status WarmUp() {
    const int64_t shortest = *std::min_element(rounds_.lengths.begin(), rounds_.lengths.end());
    for (const Way& way : ways_) {
      if (way.tokens != shortest) continue;
      Report(0, way);
      const absl::Status status = target_->FirstToken(rounds_.prompt(way.tokens), way.format).status();
      if (IsFinal(status)) return status;
      ALUDEL_RETURN_IF_ERROR(target_->AwaitIdle());
    }
    return absl::OkStatus();
  }

  absl::Status Measure(const Way& way) {
    if (!(*rows_)[way.row].reason.empty()) return absl::OkStatus();
    const std::vector<int32_t> prompt = rounds_.prompt(way.tokens);
    absl::Status status = Take(prompt, way.format, way.row);
    if (status.ok() && way.rows == 2) status = TakeWarm(prompt, way);
    if (status.ok() || IsFinal(status)) return status;
    Lack(way, status);
    return absl::OkStatus();
  }

  absl::Status Take(const std::vector<int32_t>& prompt, const std::string& format, size_t row) {
    ALUDEL_ASSIGN_OR_RETURN(TtftSample sample, target_->FirstToken(prompt, format));
    (*rows_)[row].samples.push_back(std::move(sample));
    return target_->AwaitIdle();
  }

  absl::Status TakeWarm(const std::vector<int32_t>& prompt, const Way& way) {
    TtftRow& warm = (*rows_)[way.row + 1];
    if (!warm.reason.empty()) return absl::OkStatus();
    ALUDEL_ASSIGN_OR_RETURN(const int64_t before, target_->StoreHits());
    ALUDEL_RETURN_IF_ERROR(Take(prompt, way.format, way.row + 1));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t after, target_->StoreHits());
    if (after == before + 1) return absl::OkStatus();
    warm.samples.clear();
    warm.reason =
        "not warm: the prompt came again, but not all of its frames were in the prefill server's store "
        "(store.memory_bytes is too small, or this format is never cached)";
    return absl::OkStatus();
  }

  void Lack(const Way& way, const absl::Status& why) {
    for (size_t i = way.row; i < way.row + way.rows; ++i) {
      TtftRow& row = (*rows_)[i];
      if (row.reason.empty()) row.reason = std::string(why.message());
    }
  }

  TtftTarget* const target_;
  const TtftRounds& rounds_;
  std::vector<TtftRow>* const rows_;
  const std::vector<Way> ways_;
};

}  // namespace

absl::Status MeasureRounds(TtftTarget* target, const TtftRounds& rounds, std::mt19937_64* order,
                           std::vector<TtftRow>* rows) {
  rows->clear();
  const absl::Status status = Rounds(target, rounds, rows).Run(order);
  for (TtftRow& row : *rows) {
    if (row.samples.empty() && row.reason.empty()) row.reason = std::string(status.message());
  }
  return status;
}

}  // namespace aludel
