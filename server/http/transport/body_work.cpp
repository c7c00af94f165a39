// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/body_work.h"

#include <utility>

#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {

// The budget of one body. Its charge ends with it.
class BodyWork::Budget final : public JsonBudget {
 public:
  explicit Budget(const BodyWork& work)
      : memory_bytes_(work.memory_bytes_), counters_(work.counters_), draining_(work.draining_) {}
  ~Budget() override { counters_.body_bytes.fetch_sub(charged_); }

  // Charges the body itself, which was admitted before.
  void hold(std::size_t bytes) {
    charged_ += static_cast<std::int64_t>(bytes);
    counters_.body_bytes.fetch_add(static_cast<std::int64_t>(bytes));
  }
  bool charge(std::int64_t bytes) override {
    const std::int64_t all = counters_.body_bytes.fetch_add(bytes) + bytes;
    if (bytes <= 0 || all <= memory_bytes_) {
      charged_ += bytes;
      return true;
    }
    counters_.body_bytes.fetch_sub(bytes);
    return false;
  }
  bool cancelled() const override { return gone_.load() || draining_.load(); }
  void end() { gone_ = true; }

 private:
  const std::int64_t memory_bytes_;
  HttpCounters& counters_;
  const std::atomic<bool>& draining_;
  std::int64_t charged_ = 0;       // of the thread that reads
  std::atomic<bool> gone_{false};  // the client
};

namespace {

// The caller whose turn a body takes: "ipv4:127.0.0.1" without a port, if there is no identity.
std::string caller_of(const HttpRequest& request) {
  if (request.caller && !request.caller->name.empty()) return request.caller->name;
  if (!request.certificate.empty()) return "x509:" + request.certificate;
  return request.peer.substr(0, request.peer.rfind(':'));
}

}  // namespace

BodyWork::BodyWork(std::int64_t memory_bytes, HttpCounters& counters)
    : memory_bytes_(memory_bytes), counters_(counters) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { work(); });
  }
}

BodyWork::~BodyWork() { end_threads(); }

void BodyWork::read(const SharedExchange& exchange, Read read, Refuse refuse) {
  Reading reading{exchange, exchange->take_body(), std::move(read), std::move(refuse),
                  std::make_shared<Budget>(*this)};
  reading.budget->hold(reading.body.size());
  if (reading.body.size() <= kShortBytes) return run(std::move(reading));
  // A weak one: the exchange must not keep the budget's charge.
  exchange->when_gone([budget = std::weak_ptr<Budget>(reading.budget)] {
    if (const auto alive = budget.lock()) alive->end();
  });
  const auto shared = std::make_shared<Reading>(std::move(reading));
  const bool is_added = add(caller_of(exchange->request()), [shared] { run(std::move(*shared)); });
  if (!is_added) shared->refuse(shutting_down());
}

bool BodyWork::run_in_turn(const HttpRequest& request, std::size_t bytes, Work work) {
  const auto budget = std::make_shared<Budget>(*this);
  budget->hold(bytes);
  return add(caller_of(request), [this, budget, work = std::move(work)] {
    work(draining_.load() ? shutting_down() : grpc::Status::OK);
  });
}

bool BodyWork::add(std::string caller, Job job) {
  const MutexLock lock(mutex_);
  if (stopped_) return false;
  std::deque<Job>& jobs = jobs_[caller];
  if (jobs.empty()) turns_.push_back(std::move(caller));
  jobs.push_back(std::move(job));
  changed_.notify_one();
  return true;
}

BodyWork::Job BodyWork::take() {
  std::string caller = std::move(turns_.front());
  turns_.pop_front();
  const auto found = jobs_.find(caller);
  Job job = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) {
    jobs_.erase(found);
  } else {
    turns_.push_back(std::move(caller));
  }
  return job;
}

void BodyWork::begin_drain() { draining_ = true; }

bool BodyWork::stop(std::chrono::nanoseconds timeout) {
  begin_drain();
  {
    const auto until = std::chrono::steady_clock::now() + timeout;
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
    while (working_ > 0) {
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) return false;
      ended_.wait_for(mutex_, left);
    }
  }
  end_threads();
  return true;
}

void BodyWork::end_threads() {
  begin_drain();
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void BodyWork::run(Reading reading) noexcept {
  const grpc::Status read = catch_exceptions([&] {
    if (reading.budget->cancelled()) return shutting_down();
    return reading.read(std::move(reading.body), *reading.budget);
  });
  reading.budget.reset();  // a client that sends the body again at once finds the room
  if (read.ok()) return;
  const grpc::Status refused = catch_exceptions([&] {
    reading.refuse(read);
    return grpc::Status::OK;
  });
  if (!refused.ok()) reading.exchange->abort();  // there is no memory to say so
}

// Jobs that are left when the object stops are run, too: they end at once.
void BodyWork::work() {
  for (;;) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (turns_.empty() && !stopped_) changed_.wait(mutex_);
      if (turns_.empty()) {
        if (--working_ == 0) ended_.notify_all();
        return;
      }
      job = take();
    }
    job();
  }
}

}  // namespace lintel
