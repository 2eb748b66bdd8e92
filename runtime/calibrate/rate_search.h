#pragma once

#include <optional>

namespace aludel {

// Looks for the fewest bytes that meet a loss, where every trial is a fit of minutes and the loss falls with
// the rate: from a rate that is known to meet it down to one that does not, then between the two. Pure.
class RateSearch {
 public:
  // `met` bytes per token are known to meet the loss.
  explicit RateSearch(double met) : met_(met) {}

  // The rate to try next; none when trials are used up or what they could still save is not worth one.
  // `guess` is where a coder fitted to more bytes expects the loss to be met: it expects too many, for a fit
  // to fewer bytes makes more of them.
  std::optional<double> Next(double guess) const;

  void Met(double bytes);
  void Missed(double bytes);

 private:
  double met_;
  std::optional<double> missed_;
  int trials_ = 0;
};

}  // namespace aludel
