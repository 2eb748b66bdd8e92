#include "runtime/model/weights/page_readers.h"

#include <algorithm>
#include <map>

namespace aludel {
namespace {

uint64_t DownToPage(uint64_t offset) { return offset / FileMap::PageBytes() * FileMap::PageBytes(); }
uint64_t UpToPage(uint64_t offset) { return DownToPage(offset + FileMap::PageBytes() - 1); }

}  // namespace

PageReaders::PageReaders(const FileMap* file, absl::Span<const ByteRange> ranges, bool from_cache)
    : file_(file), from_cache_(from_cache) {
  std::map<uint64_t, int> change_at;
  for (const ByteRange& range : ranges) {
    if (range.begin == range.end) continue;
    ++change_at[DownToPage(range.begin)];
    --change_at[UpToPage(range.end)];
  }
  readers_ = std::vector<std::atomic<int>>(change_at.size());
  int readers = 0;
  for (const auto& [begin, change] : change_at) {
    readers_[begin_of_.size()] = readers += change;
    begin_of_.push_back(begin);
  }
}

void PageReaders::Done(const ByteRange& range) {
  if (range.begin == range.end) return;
  const auto found = std::lower_bound(begin_of_.begin(), begin_of_.end(), DownToPage(range.begin));
  size_t at = static_cast<size_t>(found - begin_of_.begin());
  size_t unread = at;  // stretches [unread, at) have lost their last reader
  for (; begin_of_[at] < UpToPage(range.end); ++at) {
    if (readers_[at].fetch_sub(1, std::memory_order_acq_rel) == 1) continue;
    Drop(unread, at);
    unread = at + 1;
  }
  Drop(unread, at);
}

void PageReaders::Drop(size_t first, size_t last) const {
  if (first < last) file_->Drop(begin_of_[first], std::min(begin_of_[last], file_->size()), from_cache_);
}

}  // namespace aludel
