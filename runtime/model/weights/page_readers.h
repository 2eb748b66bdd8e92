#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/model/weights/file_map.h"

namespace aludel {

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Counts the readers that each page of one file still has, so that a page is dropped when its last reader is
// done with it, and not before: past the page cache it would be zeros from then on. Tied embeddings, the
// scales of a matrix and pages at the edge of two tensors have several readers. All of them are known from
// the start; neighboring pages with the same readers share a count, so there are at most two counts per
// range. Done may be called by several threads.
class PageReaders {
 public:
  // `ranges`: one for each call of Done that will come. `from_cache`: see FileMap::Drop.
  PageReaders(const FileMap* file, absl::Span<const ByteRange> ranges, bool from_cache);

  // One reader of `range`, which is one of the constructor's, does not look at it again.
  void Done(const ByteRange& range);

 private:
  void Drop(size_t first, size_t last) const;

  const FileMap* const file_;
  const bool from_cache_;
  std::vector<uint64_t> begin_of_;         // stretches of pages, ascending; the last one has no readers
  std::vector<std::atomic<int>> readers_;  // of each stretch
};

}  // namespace aludel
