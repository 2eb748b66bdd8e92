#include "server/decode/plan/site_links.h"

#include <algorithm>

namespace aludel {

SiteLinks::SiteLinks(const std::vector<SiteLimit>& limits) {
  for (const SiteLimit& limit : limits) {
    links_[limit.site] = {.limit = static_cast<double>(limit.max_bytes_per_second)};
  }
}

SiteLinks::Link SiteLinks::Link::At(absl::Time now) const {
  Link link = *this;
  if (at == absl::InfinitePast() || now <= at) return link;
  link.taken = std::max(0.0, taken - limit * absl::ToDoubleSeconds(now - at));
  link.at = now;
  return link;
}

double SiteLinks::UsedShare(const std::string& site, absl::Time now) const {
  const auto link = links_.find(site);
  if (link == links_.end()) return 0;
  return link->second.At(now).taken / (link->second.limit * absl::ToDoubleSeconds(kBurst));
}

std::vector<std::string> SiteLinks::sites() const {
  std::vector<std::string> sites;
  for (const auto& [site, link] : links_) sites.push_back(site);
  return sites;
}

void SiteLinks::Take(const std::string& site, double bytes, absl::Time now) {
  const auto found = links_.find(site);
  if (found == links_.end()) return;
  Link& link = found->second;
  link = link.At(now);
  link.at = now;
  link.taken = std::max(0.0, link.taken + bytes);
}

}  // namespace aludel
