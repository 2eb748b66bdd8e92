#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace aludel {

// Bounds the bytes of request bodies in memory, over all connections. Never waits: a body that would exceed
// the bound is refused. Thread-safe; outlives its shares.
class HttpBodyBudget {
 public:
  explicit HttpBodyBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  // What one body holds of the budget; returned when the share dies. Not thread-safe itself.
  class Share {
   public:
    Share() = default;
    explicit Share(HttpBodyBudget* budget) : budget_(budget) {}
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (bytes_ > 0) budget_->used_bytes_.fetch_sub(bytes_);
    }

    // False, and nothing changes, where the budget has no room for `bytes` in this share.
    bool GrowTo(size_t bytes) {
      if (bytes <= bytes_) return true;
      const size_t more = bytes - bytes_;
      if (budget_->used_bytes_.fetch_add(more) + more > budget_->max_bytes_) {
        budget_->used_bytes_.fetch_sub(more);
        return false;
      }
      bytes_ = bytes;
      return true;
    }

    size_t bytes() const { return bytes_; }

   private:
    HttpBodyBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  size_t used_bytes() const { return used_bytes_.load(); }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

// A share that goes along with its body, and lives on where parts of that do.
struct HttpBodyHold {
  std::shared_ptr<void> owner;  // of the budget
  HttpBodyBudget::Share share;
};

}  // namespace aludel
