#include "server/sessions/storage/redis/redis_client.h"

#include <openssl/sha.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <future>
#include <system_error>
#include <utility>

#include "server/core/thread_failures.h"
#include "server/sessions/storage/redis/redis_loop.h"

namespace lintel {
namespace {

constexpr std::chrono::milliseconds kAfterFailure{10};

}  // namespace

RedisScript RedisScript::of(std::string text) {
  std::array<unsigned char, SHA_DIGEST_LENGTH> hash{};
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  std::string hex;
  for (const unsigned char byte : hash) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return {std::move(text), std::move(hex)};
}

RedisClient::RedisClient(const RedisOptions& options)
    : bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (bell_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  std::promise<std::string> opened;
  try {
    loop_ = std::make_unique<RedisLoop>(options, bell_,
                                        [&](std::string why) { opened.set_value(std::move(why)); });
  } catch (...) {
    ::close(bell_);
    throw;
  }
  thread_ = std::thread([this] {
    while (run_once()) {
    }
    survives(ServerThread::kRedis, [this] { loop_->end(); });
    loop_->begin_anew();
  });
  const std::string why = opened.get_future().get();
  if (why.empty()) return;
  stop();
  ::close(bell_);
  throw RedisError(why);
}

bool RedisClient::run_once() noexcept {
  std::vector<RedisRequest> asked;
  {
    MutexLock lock(mutex_);
    if (is_closing_) return false;
    asked.swap(asked_);
  }
  const bool is_well = survives(ServerThread::kRedis, [&] {
    // Behind what was asked before and is to be sent again.
    loop_->send_again();
    for (RedisRequest& request : asked) loop_->take(std::move(request));
    loop_->turn();
    RedisState state = loop_->state();
    MutexLock lock(mutex_);
    state_ = std::move(state);
  });
  if (is_well) return true;
  loop_->begin_anew();
  for (RedisRequest& request : asked) {
    if (!request.done) continue;
    survives(ServerThread::kRedis, [&] { std::exchange(request.done, nullptr)({}); });
  }
  std::this_thread::sleep_for(kAfterFailure);  // for want of memory: some of it may come back
  return true;
}

RedisClient::~RedisClient() {
  stop();
  ::close(bell_);
}

void RedisClient::stop() {
  std::vector<RedisRequest> asked;
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
  }
  ::eventfd_write(bell_, 1);
  if (thread_.joinable()) thread_.join();
  {
    MutexLock lock(mutex_);
    asked.swap(asked_);
  }
  for (const RedisRequest& request : asked) request.done({});
}

void RedisClient::ask(RedisRequest request) {
  bool is_first = false, is_closing = false;
  {
    MutexLock lock(mutex_);
    is_closing = is_closing_;
    is_first = asked_.empty();
    if (!is_closing) asked_.push_back(std::move(request));
  }
  if (is_closing) return request.done({});
  if (is_first) ::eventfd_write(bell_, 1);
}

RedisAnswer RedisClient::ask_and_wait(RedisRequest request) {
  std::promise<RedisAnswer> promise;
  request.done = [&](RedisAnswer answer) { promise.set_value(std::move(answer)); };
  ask(std::move(request));
  return promise.get_future().get();
}

RedisState RedisClient::state() const {
  MutexLock lock(mutex_);
  return state_;
}

}  // namespace lintel
