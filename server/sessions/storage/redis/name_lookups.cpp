#include "server/sessions/storage/redis/name_lookups.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "server/core/thread_failures.h"

namespace lintel {
namespace {

constexpr Duration kGoodFor = std::chrono::seconds(1);
constexpr std::size_t kMostAtOnce = 16;
constexpr std::size_t kMostKept = 1024;

bool is_address(const std::string& host) {
  std::array<unsigned char, 16> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

LookedUp look_up(const RedisAddress& name, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* all = nullptr;
  const std::string port = std::to_string(name.port);
  const int error = getaddrinfo(name.host.c_str(), port.c_str(), &hints, &all);
  LookedUp found;
  if (error != 0) {
    found.why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return found;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(all, &freeaddrinfo);
  for (const addrinfo* each = all; each != nullptr; each = each->ai_next) {
    SocketAddress address;
    if (each->ai_addrlen > sizeof(address.address)) continue;
    std::memcpy(&address.address, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    found.addresses.push_back(address);
  }
  return found;
}

}  // namespace

LookedUp look_up_by_system(const RedisAddress& name) { return look_up(name, 0); }

// Outlives the object as long as a thread looks a name up.
struct NameLookups::Shared {
  Shared(LookUpName of, int rung) : look_up(std::move(of)), bell(::dup(rung)) {
    if (bell < 0) throw std::system_error(errno, std::generic_category(), "dup");
  }
  ~Shared() { ::close(bell); }

  const LookUpName look_up;
  const int bell;
  std::atomic<std::size_t> running{0};
};

struct NameLookups::Lookup {
  LookedUp found;  // once is_over
  TimePoint over_at{};
  std::atomic<bool> is_over{false};
};

NameLookups::NameLookups(LookUpName look_up, int bell)
    : shared_(std::make_shared<Shared>(std::move(look_up), bell)) {}

NameLookups::~NameLookups() = default;

std::shared_ptr<const LookedUp> NameLookups::find(const RedisAddress& name, TimePoint now) {
  if (is_address(name.host)) {
    return std::make_shared<LookedUp>(look_up(name, AI_NUMERICHOST | AI_NUMERICSERV));
  }
  if (const auto known = lookups_.find(name); known != lookups_.end()) {
    const std::shared_ptr<Lookup>& lookup = known->second;
    if (!lookup->is_over.load(std::memory_order_acquire)) return nullptr;
    if (now < lookup->over_at + kGoodFor) return {lookup, &lookup->found};
    lookups_.erase(known);
  }
  if (shared_->running >= kMostAtOnce || lookups_.size() >= kMostKept) {
    return std::make_shared<LookedUp>(LookedUp{.why = "too many names are being looked up"});
  }
  const auto lookup = std::make_shared<Lookup>();
  ++shared_->running;
  try {
    std::thread([shared = shared_, lookup, name] {
      const bool is_well =
          survives(ServerThread::kNameLookup, [&] { lookup->found = shared->look_up(name); });
      if (!is_well) lookup->found.addresses.clear();
      lookup->over_at = std::chrono::steady_clock::now();
      lookup->is_over.store(true, std::memory_order_release);
      --shared->running;
      ::eventfd_write(shared->bell, 1);
    }).detach();
  } catch (const std::exception& error) {  // no thread, or no memory for one
    --shared_->running;
    return std::make_shared<LookedUp>(LookedUp{.why = error.what()});
  }
  lookups_.emplace(name, lookup);
  return nullptr;
}

}  // namespace lintel
