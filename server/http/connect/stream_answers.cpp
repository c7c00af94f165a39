#include "server/http/connect/stream_answers.h"

#include <absl/strings/escaping.h>

#include <string>
#include <utility>

#include "server/grpc/transport/status.h"
#include "server/http/connect/envelope.h"
#include "server/http/connect/plain_messages.h"
#include "server/http/connect/rpc_errors.h"
#include "server/http/connect/rpc_json.h"
#include "server/http/transport/http_status.h"

namespace lintel {
namespace {

namespace pb = google::protobuf;

HttpAnswer head_of(const RpcFormat& format) {
  return {200, {{"content-type", format.content_type()}, {"cache-control", "no-store"}}, {}};
}

class ConnectStream final : public StreamAnswer {
 public:
  ConnectStream(const RpcFormat& format, const pb::Descriptor* type)
      : format_(format), type_(type) {}

  HttpAnswer head() override { return head_of(format_); }

  grpc::Status piece(grpc::ByteBuffer& message, std::string& out) override {
    if (!format_.is_json) {
      out = envelope_head(0, message.Length());
      append_to(out, message);
      return grpc::Status::OK;
    }
    const auto parsed = new_message(type_);
    if (!parse_from(message, *parsed)) return internal_error("message", type_->name(), "unread");
    out = envelope(0, write_json(*parsed));
    return grpc::Status::OK;
  }

  std::optional<std::string> tail(const grpc::Status& status, const grpc::ClientContext&) override {
    return envelope(kEndOfStream,
                    status.ok() ? "{}" : "{\"error\":" + connect_error_json(status) + "}");
  }

  HttpAnswer refusal(const grpc::Status& status, const grpc::ClientContext&) override {
    return rpc_refusal(format_, http_status_of(status.error_code()), status);
  }

 private:
  const RpcFormat format_;
  const pb::Descriptor* const type_;
};

class GrpcWebStream final : public StreamAnswer {
 public:
  explicit GrpcWebStream(const RpcFormat& format) : format_(format) {}

  HttpAnswer head() override { return head_of(format_); }

  grpc::Status piece(grpc::ByteBuffer& message, std::string& out) override {
    std::string frame = envelope_head(0, message.Length());
    append_to(frame, message);
    out = coded(std::move(frame));
    return grpc::Status::OK;
  }

  std::optional<std::string> tail(const grpc::Status& status, const grpc::ClientContext&) override {
    std::string lines;
    for (const auto& [name, value] : grpc_trailers(status)) {
      lines.append(name).append(": ").append(value).append("\r\n");
    }
    return coded(envelope(kTrailers, lines));
  }

  HttpAnswer refusal(const grpc::Status& status, const grpc::ClientContext&) override {
    return rpc_refusal(format_, 200, status);
  }

 private:
  std::string coded(std::string frame) const {
    return format_.is_text ? absl::Base64Escape(frame) : frame;
  }

  const RpcFormat format_;
};

class PlainJsonStream final : public StreamAnswer {
 public:
  PlainJsonStream(const pb::Descriptor* type, bool with_text) : type_(type), messages_(with_text) {}

  HttpAnswer head() override { return head_of(kFormat); }

  grpc::Status piece(grpc::ByteBuffer& message, std::string& out) override {
    const auto parsed = new_message(type_);
    if (!parse_from(message, *parsed)) return internal_error("message", type_->name(), "unread");
    out = messages_.line(*parsed) + "\n";
    return grpc::Status::OK;
  }

  std::optional<std::string> tail(const grpc::Status& status, const grpc::ClientContext&) override {
    return status.ok() ? "" : "{\"error\":" + connect_error_json(status) + "}\n";
  }

  HttpAnswer refusal(const grpc::Status& status, const grpc::ClientContext&) override {
    return rpc_refusal(kFormat, http_status_of(status.error_code()), status);
  }

 private:
  static constexpr RpcFormat kFormat{.protocol = RpcProtocol::kPlainJson, .is_json = true};

  const pb::Descriptor* const type_;
  PlainMessages messages_;
};

}  // namespace

std::unique_ptr<StreamAnswer> connect_stream(const RpcFormat& format, const pb::Descriptor* type) {
  return std::make_unique<ConnectStream>(format, type);
}

std::unique_ptr<StreamAnswer> grpc_web_stream(const RpcFormat& format) {
  return std::make_unique<GrpcWebStream>(format);
}

std::unique_ptr<StreamAnswer> plain_json_stream(const pb::Descriptor* type, bool with_text) {
  return std::make_unique<PlainJsonStream>(type, with_text);
}

}  // namespace lintel
