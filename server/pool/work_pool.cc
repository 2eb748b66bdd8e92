#include "server/pool/work_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/files/stop_scope.h"
#include "transport/monotonic_clock.h"

namespace aludel {

struct WorkPool::Task::Shared {
  explicit Shared(Timer* timer) : timer(timer) {}

  Timer* const timer;  // the pool's: not to be used once it is stopping, as tasks may outlive it
  absl::Mutex mutex;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::deque<std::shared_ptr<Task>> queue ABSL_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<Task>> running ABSL_GUARDED_BY(mutex);
};

void WorkPool::Task::Stop(absl::Status reason) {
  std::function<void(Task&)> job;
  std::shared_ptr<Task> self;
  {
    absl::MutexLock lock(&shared_->mutex);
    if (!stopped_.ok() || state_ == State::kDone) return;
    stopped_ = std::move(reason);
    stopped_at_ = MonotonicNow();
    if (state_ == State::kQueued) {
      state_ = State::kDone;
      job = std::move(job_);
      auto& queue = shared_->queue;
      const auto found =
          std::find_if(queue.begin(), queue.end(), [this](const auto& t) { return t.get() == this; });
      self = std::move(*found);
      queue.erase(found);
      shared_->timer->Cancel(timer_id_);
    }
  }
  source_.request_stop();
  if (job) job(*this);
}

void WorkPool::Task::Tighten(absl::Time deadline) {
  absl::MutexLock lock(&shared_->mutex);
  if (deadline >= deadline_ || state_ == State::kDone || shared_->stopping) return;
  deadline_ = deadline;
  if (timer_id_ != 0) shared_->timer->Cancel(timer_id_);
  timer_id_ = shared_->timer->At(deadline, [weak = self_] {
    if (const auto task = weak.lock()) {
      task->Stop(absl::DeadlineExceededError("the request's deadline has passed"));
    }
  });
}

absl::Status WorkPool::Task::stopped() const {
  absl::MutexLock lock(&shared_->mutex);
  return stopped_;
}

WorkPool::WorkPool(Options options)
    : options_(std::move(options)), shared_(std::make_shared<Task::Shared>(&timer_)) {
  for (int i = 0; i < std::max(1, options_.threads); ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() { Shutdown(); }

std::shared_ptr<WorkPool::Task> WorkPool::Make(absl::Time deadline, Job job) {
  std::shared_ptr<Task> task(new Task(shared_, std::move(job)));
  task->self_ = task;
  task->Tighten(deadline);
  return task;
}

void WorkPool::Start(const std::shared_ptr<Task>& task) {
  Job job;
  {
    absl::MutexLock lock(&shared_->mutex);
    if (task->stopped_.ok() && shared_->stopping) {
      task->stopped_ = absl::UnavailableError("the server is stopping");
    }
    if (task->stopped_.ok() && shared_->queue.size() >= options_.max_queue) {
      task->stopped_ = absl::UnavailableError(absl::StrCat(shared_->queue.size(), " requests wait for ",
                                                           options_.name, " already; try again soon"));
    }
    if (task->stopped_.ok()) {
      task->state_ = Task::State::kQueued;
      shared_->queue.push_back(task);
      return;
    }
    task->state_ = Task::State::kDone;
    shared_->timer->Cancel(task->timer_id_);
    job = std::move(task->job_);
  }
  job(*task);
}

void WorkPool::Run() {
  while (true) {
    std::shared_ptr<Task> task;
    Job job;
    {
      absl::MutexLock lock(&shared_->mutex);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
        return shared_->stopping || !shared_->queue.empty();
      };
      shared_->mutex.Await(absl::Condition(&has_work));
      if (shared_->queue.empty()) return;
      task = std::move(shared_->queue.front());
      shared_->queue.pop_front();
      task->state_ = Task::State::kRunning;
      job = std::move(task->job_);
      shared_->running.push_back(task);
    }
    {
      const StopScope scope(task->source_.get_token());
      job(*task);
      job = nullptr;  // what it holds ends with it, and not under the lock
    }
    absl::MutexLock lock(&shared_->mutex);
    task->state_ = Task::State::kDone;
    shared_->timer->Cancel(task->timer_id_);
    std::erase(shared_->running, task);
  }
}

absl::Duration WorkPool::Silence() const {
  const absl::Time now = MonotonicNow();
  absl::Duration silence = absl::ZeroDuration();
  absl::MutexLock lock(&shared_->mutex);
  for (const auto& task : shared_->running) silence = std::max(silence, now - task->stopped_at_);
  return silence;
}

void WorkPool::Shutdown() {
  std::vector<std::shared_ptr<Task>> tasks;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    tasks.assign(shared_->queue.begin(), shared_->queue.end());
    tasks.insert(tasks.end(), shared_->running.begin(), shared_->running.end());
  }
  for (const auto& task : tasks) task->Stop(absl::UnavailableError("the server is stopping"));
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace aludel
