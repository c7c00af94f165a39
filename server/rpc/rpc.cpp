// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "server/rpc/status.h"

namespace lintel {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// Requests of the server's protocols are less than half as deep; libprotobuf's own bound is 100.
constexpr int kMaxDepth = 32;
// Memory of an occurrence of a field, and of one that has an object of its own: measured with
// libprotobuf 3.21 and rounded up.
constexpr std::size_t kFieldBytes = 64;
constexpr std::size_t kObjectBytes = 192;

// Walks the wire format as libprotobuf does, and adds up the bytes that it will allocate.
class Scan {
 public:
  enum class Result { kGood, kMalformed, kTooDeep, kTooLarge };

  Scan(google::protobuf::io::CodedInputStream& input, std::size_t max_bytes)
      : input_(input), max_bytes_(max_bytes) {}

  // Scans up to the end of the input or of the pushed limit.
  Result message(const Descriptor& type, int depth) {
    if (depth > kMaxDepth) return Result::kTooDeep;
    while (const std::uint32_t tag = input_.ReadTag()) {
      const FieldDescriptor* const known =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      has_unknown_ = has_unknown_ || known == nullptr;
      if (!take(kFieldBytes)) return Result::kTooLarge;
      if (const Result result = value(tag, known, depth); result != Result::kGood) return result;
    }
    return input_.ConsumedEntireMessage() ? Result::kGood : Result::kMalformed;
  }

  bool has_unknown() const { return has_unknown_; }

 private:
  Result value(std::uint32_t tag, const FieldDescriptor* known, int depth) {
    std::uint32_t length = 0;
    std::uint64_t number = 0;
    bool read = true;
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_VARINT:
        read = input_.ReadVarint64(&number);
        break;
      case WireFormatLite::WIRETYPE_FIXED64:
        read = input_.Skip(8);
        break;
      case WireFormatLite::WIRETYPE_FIXED32:
        read = input_.Skip(4);
        break;
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return input_.ReadVarint32(&length) ? block(length, known, depth) : Result::kMalformed;
      default:  // groups: proto3 has none
        return Result::kMalformed;
    }
    return read ? Result::kGood : Result::kMalformed;
  }

  Result block(std::uint32_t length, const FieldDescriptor* known, int depth) {
    // The field is longer than its message.
    if (length > static_cast<std::uint32_t>(input_.BytesUntilLimit())) return Result::kMalformed;
    const auto size = static_cast<int>(length);
    if (known != nullptr && known->type() == FieldDescriptor::TYPE_MESSAGE) {
      if (!take(kObjectBytes)) return Result::kTooLarge;
      const auto limit = input_.PushLimit(size);
      const Result result = message(*known->message_type(), depth + 1);
      input_.PopLimit(limit);
      return result;
    }
    if (known != nullptr && known->is_packable()) return packed(size, *known);
    if (!take(length)) return Result::kTooLarge;
    return input_.Skip(size) ? Result::kGood : Result::kMalformed;
  }

  // Values of a repeated number, each of which has its full width in memory.
  Result packed(int size, const FieldDescriptor& field) {
    const WireFormatLite::WireType each =
        WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    if (each != WireFormatLite::WIRETYPE_VARINT) {
      if (!take(static_cast<std::size_t>(size))) return Result::kTooLarge;
      return input_.Skip(size) ? Result::kGood : Result::kMalformed;
    }
    const std::size_t width = width_of(field);
    const void* data = nullptr;
    int available = 0;
    for (int left = size; left > 0; left -= available) {
      if (!input_.GetDirectBufferPointer(&data, &available)) return Result::kMalformed;
      available = std::min(available, left);
      const auto* const bytes = static_cast<const std::uint8_t*>(data);
      const auto ends = std::count_if(bytes, bytes + available, [](auto b) { return b < 0x80; });
      if (!take(static_cast<std::size_t>(ends) * width)) return Result::kTooLarge;
      if (!input_.Skip(available)) return Result::kMalformed;
    }
    return Result::kGood;
  }

  static std::size_t width_of(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return sizeof(bool);
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
        return sizeof(std::int64_t);
      default:
        return sizeof(std::int32_t);
    }
  }

  bool take(std::size_t bytes) {
    used_bytes_ += bytes;
    return used_bytes_ <= max_bytes_;
  }

  google::protobuf::io::CodedInputStream& input_;
  const std::size_t max_bytes_;
  std::size_t used_bytes_ = 0;
  bool has_unknown_ = false;
};

grpc::Status refused(const std::string& why) { return invalid_argument({{"message", why}}); }

grpc::Status too_long(std::size_t bytes, const MessageBounds& bounds, const std::string& type) {
  return refused(std::to_string(bytes) + " bytes are more than the " +
                 std::to_string(bounds.max_bytes) + " of a " + type);
}

grpc::Status too_large(const MessageBounds& bounds) {
  return refused("has so many elements that it takes more than " +
                 std::to_string(bounds.max_parsed_bytes()) +
                 " bytes of memory, which is the limit where a message has up to " +
                 std::to_string(bounds.max_bytes) + " bytes");
}

}  // namespace

grpc::Status parse_bounded(grpc::ByteBuffer& bytes, const MessageBounds& bounds,
                           google::protobuf::Message& message) {
  const std::string type = message.GetDescriptor()->name();
  if (bytes.Length() > bounds.max_bytes) return too_long(bytes.Length(), bounds, type);
  bool has_unknown = false;
  {
    grpc::ProtoBufferReader reader(&bytes);
    google::protobuf::io::CodedInputStream input(&reader);
    input.PushLimit(static_cast<int>(bytes.Length()));
    Scan scan(input, bounds.max_parsed_bytes());
    switch (scan.message(*message.GetDescriptor(), /*depth=*/0)) {
      case Scan::Result::kGood:
        break;
      case Scan::Result::kMalformed:
        return refused("is not a " + type);
      case Scan::Result::kTooDeep:
        return refused("is nested deeper than " + std::to_string(kMaxDepth));
      case Scan::Result::kTooLarge:
        return too_large(bounds);
    }
    has_unknown = scan.has_unknown();
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok() || !message.ParseFromZeroCopyStream(&reader)) {
    return refused("is not a " + type);
  }
  if (has_unknown) message.DiscardUnknownFields();
  return grpc::Status::OK;
}

grpc::Status take_bounded(google::protobuf::Message& from, const MessageBounds& bounds,
                          google::protobuf::Message& message) {
  const std::size_t bytes = from.ByteSizeLong();
  if (bytes > bounds.max_bytes) return too_long(bytes, bounds, from.GetDescriptor()->name());
  if (from.SpaceUsedLong() > bounds.max_parsed_bytes()) return too_large(bounds);
  message.GetReflection()->Swap(&message, &from);
  return grpc::Status::OK;
}

grpc::Status request_memory_refusal(const RequestRefusal& refusal, const std::string& identity,
                                    const char* field) {
  constexpr std::chrono::milliseconds kRetry{1000};
  const std::string needed = "the request may hold " + std::to_string(refusal.needed) + " bytes";
  const std::string limit = std::to_string(refusal.limit) + " of " + refusal.flag;
  switch (refusal.kind) {
    case RequestRefusal::Kind::kNone:
      break;
    case RequestRefusal::Kind::kFull:
      return resource_exhausted(needed + ", and other requests hold too much of the " + limit,
                                kRetry);
    case RequestRefusal::Kind::kIdentityFull:
      return quota_exceeded(identity, limit + " for requests, and " + needed, kRetry);
    case RequestRefusal::Kind::kTooLarge:
      return invalid_argument({{field, needed + ", more than the " + limit +
                                           ": fewer or shorter answers, or a stream, need less"}});
  }
  return grpc::Status::OK;
}

grpc::Status charge_message(const google::protobuf::Message& message, const std::string& identity,
                            RequestMemory::Charge& memory) {
  return request_memory_refusal(memory.add(message.SpaceUsedLong()), identity, "message");
}

void RpcReactor::StartRead(RequestMessage* request) {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) read_ = request;
  }
  if (bound != nullptr) bound->read(*request);
}

void RpcReactor::StartSendInitialMetadata() {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) begins_ = true;
  }
  if (bound != nullptr) bound->begin();
}

void RpcReactor::StartWrite(const google::protobuf::Message* message) {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) write_ = message;
  }
  if (bound != nullptr) bound->write(*message);
}

void RpcReactor::StartWriteAndFinish(const google::protobuf::Message* last, grpc::Status status) {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) {
      write_ = last;
      finish_ = std::move(status);
      return;
    }
  }
  bound->finish(last, std::move(status));
}

void RpcReactor::Finish(grpc::Status status) { StartWriteAndFinish(nullptr, std::move(status)); }

void RpcReactor::when_cancelled(std::function<void()> hook) {
  {
    const MutexLock lock(mutex_);
    if (!is_cancelled_ || hook == nullptr) {
      when_cancelled_.swap(hook);  // the old hook is destroyed without the mutex
      return;
    }
  }
  hook();
}

void RpcReactor::cancel() {
  std::function<void()> hook;
  {
    const MutexLock lock(mutex_);
    is_cancelled_ = true;
    hook.swap(when_cancelled_);
  }
  if (hook != nullptr) hook();
  OnCancel();
}

void RpcReactor::bind(RpcTransport& transport) {
  RequestMessage* read = nullptr;
  bool begins = false;
  const google::protobuf::Message* write = nullptr;
  std::optional<grpc::Status> finish;
  {
    const MutexLock lock(mutex_);
    transport_ = &transport;
    read = read_;
    begins = begins_;
    write = write_;
    finish.swap(finish_);
  }
  // No operation of the same kind starts meanwhile, as these are in progress.
  if (read != nullptr) transport.read(*read);
  if (begins) return transport.begin();  // later operations wait for its end
  if (finish) return transport.finish(write, *std::move(finish));
  if (write != nullptr) transport.write(*write);
}

}  // namespace lintel
