// SPDX-License-Identifier: Apache-2.0
#include "server/core/request_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace lintel {

using Kind = RequestRefusal::Kind;

RequestMemory::~RequestMemory() {
#ifndef NDEBUG
  MutexLock lock(mutex_);
  assert(bytes_ == 0 && shares_.empty());
#endif
}

RequestMemory::Shares::iterator RequestMemory::join(const std::string& identity) {
  MutexLock lock(mutex_);
  const auto share = shares_.try_emplace(identity).first;
  ++share->second.charges;
  return share;
}

void RequestMemory::join(Shares::iterator share) noexcept {
  MutexLock lock(mutex_);
  ++share->second.charges;
}

void RequestMemory::leave(Shares::iterator share) noexcept {
  MutexLock lock(mutex_);
  if (--share->second.charges > 0) return;
  assert(share->second.bytes == 0);
  shares_.erase(share);
}

RequestRefusal RequestMemory::admit(Shares::iterator share, std::size_t& request,
                                    std::size_t more) {
  const std::size_t all = limits_.bytes;
  const bool has_own = limits_.bytes_per_identity > 0;
  const bool own_is_less = has_own && limits_.bytes_per_identity < all;
  const std::size_t own = has_own ? limits_.bytes_per_identity : all;
  MutexLock lock(mutex_);
  const auto refused = [&](Kind kind, bool is_own) REQUIRES(mutex_) {
    ++refused_[static_cast<std::size_t>(kind)];
    const std::size_t needed = more > SIZE_MAX - request ? SIZE_MAX : request + more;
    return RequestRefusal{kind, needed, is_own ? own : all,
                          is_own ? "--identity-memory" : "--request-memory"};
  };
  if (const std::size_t most = std::min(own, all); request > most || more > most - request) {
    return refused(Kind::kTooLarge, own_is_less);
  }
  if (more > own - std::min(share->second.bytes, own) && has_own) {
    return refused(Kind::kIdentityFull, true);
  }
  if (more > all - std::min(bytes_, all)) return refused(Kind::kFull, false);
  bytes_ += more;
  share->second.bytes += more;
  request += more;
  return {};
}

void RequestMemory::give_back(Shares::iterator share, std::size_t& request,
                              std::size_t bytes) noexcept {
  const bool is_large = bytes >= kLargeBytes;
  if (is_large && freed_.fetch_add(bytes) + bytes >= kGivenBackBytes) {
    freed_ = 0;
    give_back_();
  }
  MutexLock lock(mutex_);
  assert(bytes_ >= bytes && share->second.bytes >= bytes && request >= bytes);
  request -= bytes;
  bytes_ -= bytes;
  share->second.bytes -= bytes;
}

RequestMemory::Stats RequestMemory::stats() const {
  MutexLock lock(mutex_);
  return {bytes_, refused_};
}

RequestMemory::Charge::Charge(RequestMemory* memory, const std::string& identity)
    : memory_(memory) {
  if (memory == nullptr) return;
  request_ = std::make_shared<std::size_t>(0);
  share_ = memory->join(identity);
}

RequestMemory::Charge::Charge(Charge&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      share_(other.share_),
      request_(std::move(other.request_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

RequestMemory::Charge& RequestMemory::Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  release();
  memory_ = std::exchange(other.memory_, nullptr);
  share_ = other.share_;
  request_ = std::move(other.request_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void RequestMemory::Charge::release() noexcept {
  if (memory_ == nullptr) return;
  memory_->give_back(share_, *request_, bytes_);
  memory_->leave(share_);
  memory_ = nullptr;
  bytes_ = 0;
}

RequestRefusal RequestMemory::Charge::add(std::size_t bytes) {
  if (memory_ != nullptr) {
    if (const RequestRefusal refusal = memory_->admit(share_, *request_, bytes)) return refusal;
  }
  bytes_ += bytes;
  return {};
}

void RequestMemory::Charge::shrink_to(std::size_t bytes) noexcept {
  if (bytes >= bytes_) return;
  if (memory_ != nullptr) memory_->give_back(share_, *request_, bytes_ - bytes);
  bytes_ = bytes;
}

RequestMemory::Charge RequestMemory::Charge::split(std::size_t bytes) noexcept {
  Charge part = beside();
  part.bytes_ = std::min(bytes, bytes_);
  bytes_ -= part.bytes_;
  return part;
}

RequestMemory::Charge RequestMemory::Charge::beside() const noexcept {
  Charge other;
  if (memory_ == nullptr) return other;
  memory_->join(share_);
  other.memory_ = memory_;
  other.share_ = share_;
  other.request_ = request_;
  return other;
}

void trim_heap() noexcept {
#ifdef __GLIBC__
  ::malloc_trim(/*pad=*/0);
#endif
}

}  // namespace lintel
