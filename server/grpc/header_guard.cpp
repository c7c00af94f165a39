// SPDX-License-Identifier: Apache-2.0
// gRPC 1.51 keeps what came of a header field whose end has not come, and goes through all of it
// again with every piece that follows (CVE-2023-33953): a field that is announced as 2 GiB and
// comes in CONTINUATION frames takes memory that no quota counts, and time that grows with its
// square; 20 MiB keep a processor busy for 15 s. Versions from 1.53.2 on bound it themselves.
//
// libgrpc calls this function of its own through the dynamic linker, which finds ours first. Ours
// looks at the length, and passes on what is honest. It belongs to gRPC 1.51 alone: the build
// leaves it out of others.
#include "server/grpc/header_guard.h"

#include <absl/status/status.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lintel {
namespace {

// gRPC's bound is on what has come in whole. Huffman's code has up to 30 bits for a byte; a piece
// is as long as one read.
constexpr std::size_t kMostCodedBytes = 4;
constexpr std::size_t kLongestPiece = std::size_t{64} << 10;

std::atomic<std::size_t> max_unparsed_bytes{0};  // no server yet

}  // namespace

void guard_header_fields(int max_metadata_bytes) {
  const std::size_t wanted =
      kMostCodedBytes * static_cast<std::size_t>(max_metadata_bytes) + kLongestPiece;
  max_unparsed_bytes.store(std::max(max_unparsed_bytes.load(), wanted));
}

#if LINTEL_GUARD_HEADERS

// The head of grpc_core::HPackParser::Input: what is left of before, and the piece that came.
struct HeaderInput {
  void* slice_refcount;
  const std::uint8_t* begin;
  const std::uint8_t* end;
};

// grpc_core::HPackParser::ParseInput(HPackParser::Input, bool). The Itanium ABI passes an object
// with a destructor by its address.
#define LINTEL_PARSE_INPUT "_ZN9grpc_core11HPackParser10ParseInputENS0_5InputEb"
__attribute__((visibility("default"))) absl::Status guarded_parse_input(
    void* parser, HeaderInput* input, bool is_last) __asm__(LINTEL_PARSE_INPUT);

absl::Status guarded_parse_input(void* parser, HeaderInput* input, bool is_last) {
  using ParseInput = absl::Status (*)(void*, HeaderInput*, bool);
  static const auto original = reinterpret_cast<ParseInput>(::dlsym(RTLD_NEXT, LINTEL_PARSE_INPUT));
  const std::size_t bound = max_unparsed_bytes.load(std::memory_order_relaxed);
  if (bound != 0 && static_cast<std::size_t>(input->end - input->begin) > bound) {
    return absl::ResourceExhaustedError("a header field without an end");
  }
  return original(parser, input, is_last);
}

#endif

}  // namespace lintel
