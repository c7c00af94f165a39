// SPDX-License-Identifier: Apache-2.0
// A flood of malformed requests to every RPC that the server's reflection names.
#include <google/protobuf/descriptor_database.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "inference/grpc_service.pb.h"
#include "tests/chaos/chaos_server.h"
#include "tests/chaos/random_messages.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"

namespace lintel::testing {
namespace {

namespace pb = google::protobuf;
namespace reflection = grpc::reflection::v1alpha;

// Every service of a server, with types that are known from its reflection alone.
class ServerSchema {
 public:
  explicit ServerSchema(const std::shared_ptr<grpc::Channel>& channel) : pool_(&database_) {
    grpc::ClientContext context;
    const auto stub = reflection::ServerReflection::NewStub(channel);
    const auto stream = stub->ServerReflectionInfo(&context);
    reflection::ServerReflectionRequest request;
    reflection::ServerReflectionResponse response;
    request.set_list_services("");
    REQUIRE((stream->Write(request) && stream->Read(&response)));
    const reflection::ListServiceResponse listed = response.list_services_response();
    std::set<std::string> files;
    for (const auto& service : listed.service()) {
      request.set_file_containing_symbol(service.name());
      REQUIRE((stream->Write(request) && stream->Read(&response)));
      for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
        pb::FileDescriptorProto file;
        REQUIRE(file.ParseFromString(bytes));
        if (files.insert(file.name()).second) database_.Add(file);
      }
    }
    for (const auto& service : listed.service()) {
      INFO(service.name());
      const pb::ServiceDescriptor* const type = pool_.FindServiceByName(service.name());
      REQUIRE(type != nullptr);
      for (int i = 0; i < type->method_count(); ++i) methods_.push_back(type->method(i));
    }
    stream->WritesDone();
    stream->Finish();
  }

  const std::vector<const pb::MethodDescriptor*>& methods() const { return methods_; }
  std::unique_ptr<pb::Message> new_request(const pb::MethodDescriptor& method) {
    return std::unique_ptr<pb::Message>(factory_.GetPrototype(method.input_type())->New());
  }

 private:
  pb::SimpleDescriptorDatabase database_;
  pb::DescriptorPool pool_;
  pb::DynamicMessageFactory factory_{&pool_};
  std::vector<const pb::MethodDescriptor*> methods_;
};

// Requests that are right, to start from: by the full name of their type.
std::map<std::string, std::vector<std::string>> right_requests() {
  std::map<std::string, std::vector<std::string>> all;
  const auto add = [&](const pb::Message& message) {
    all[message.GetDescriptor()->full_name()].push_back(message.SerializeAsString());
  };
  v1::GenerateRequest generate = tokens_request(1, 20);
  add(generate);
  generate.set_num_samples(3);
  generate.set_top_log2_probs(5);
  generate.set_echo_prompt(true);
  generate.mutable_sampling()->set_top_k(5);
  generate.mutable_sampling()->set_temperature(0.5f);
  (*generate.mutable_sampling()->mutable_logit_bias())[3] = 2;
  generate.mutable_stop()->add_token_ids(7);
  generate.mutable_time_limit()->set_seconds(1);
  v1::GivenSpan& given = *generate.add_given();
  given.set_position(8);
  given.mutable_values()->mutable_tokens()->add_ids(4);
  add(generate);
  v1::GenerateRequest bytes;
  bytes.set_model("bytes");
  bytes.mutable_prompt()->set_text("The quick");
  bytes.mutable_stop()->add_strings("fox");
  bytes.set_max_new_tokens(30);
  add(bytes);
  v1::GenerateRequest image;
  image.set_model("image");
  image.mutable_prompt()->set_pixels(std::string(7, '\x40'));
  add(image);
  v1::ScoreRequest score;
  score.set_model("bytes");
  for (const char* text : {"some text", "other text"}) score.add_sequences()->set_text(text);
  add(score);
  inference::ModelInferRequest infer;
  infer.set_model_name("tokens");
  (*infer.mutable_parameters())["max_new_tokens"].set_int64_param(5);
  (*infer.mutable_parameters())["sequence_id"].set_int64_param(42);
  (*infer.mutable_parameters())["sequence_start"].set_bool_param(true);
  auto& input = *infer.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.add_shape(2);
  input.mutable_contents()->add_int_contents(3);
  input.mutable_contents()->add_int_contents(4);
  add(infer);
  input.clear_contents();
  infer.clear_parameters();
  infer.add_raw_input_contents(std::string("\3\0\0\0\4\0\0\0", 8));
  infer.add_outputs()->set_name("log2_probs");
  add(infer);
  return all;
}

grpc::ByteBuffer buffer_of(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// One call, with as many messages as were made for it. Deletes itself when it is over.
class FuzzCall {
 public:
  struct Result {
    const pb::MethodDescriptor* method;
    bool parsed;  // every message was one of the method's type
    grpc::Status status;
    int messages_sent;
  };
  using OnOver = std::function<void(const Result&)>;

  FuzzCall(const pb::MethodDescriptor& method, std::vector<std::string> messages, bool parse,
           OnOver on_over)
      : messages_(std::move(messages)),
        on_over_(std::move(on_over)),
        result_{&method, parse, {}, 0} {}

  void start(grpc::GenericStub& stub, grpc::CompletionQueue& queue) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    const std::string path =
        "/" + result_.method->service()->full_name() + "/" + result_.method->name();
    rpc_ = stub.PrepareCall(&context_, path, &queue);
    pending_ = 1;
    rpc_->StartCall(&started_);
  }

  // The tags of the queue.
  struct Tag {
    FuzzCall* call;
    void (FuzzCall::*done)(bool ok);
  };

  void done(const Tag& tag, bool ok) {
    (this->*tag.done)(ok);
    if (--pending_ > 0 || !finished_) return;
    on_over_(result_);
    delete this;
  }

 private:
  void on_started(bool ok) {
    if (!ok) return finish();
    ++pending_;
    rpc_->Read(&answer_, &read_);
    write();
  }
  void write() {
    const auto next = static_cast<std::size_t>(result_.messages_sent);
    ++pending_;
    if (next == messages_.size()) {
      rpc_->WritesDone(&writes_done_);
    } else {
      ++result_.messages_sent;
      rpc_->Write(buffer_of(messages_[next]), &written_);
    }
  }
  void on_written(bool ok) {
    if (ok) write();
  }
  void on_writes_done(bool) {}
  void on_read(bool ok) {
    constexpr int kEnough = 100;  // of a stream without an end
    if (!ok) return finish();
    if (++answers_ == kEnough) context_.TryCancel();
    ++pending_;
    rpc_->Read(&answer_, &read_);
  }
  void finish() {
    ++pending_;
    rpc_->Finish(&result_.status, &over_);
  }
  void on_over(bool) { finished_ = true; }

  const std::vector<std::string> messages_;
  const OnOver on_over_;
  Result result_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
  grpc::ByteBuffer answer_;
  int pending_ = 0, answers_ = 0;
  bool finished_ = false;
  Tag started_{this, &FuzzCall::on_started}, written_{this, &FuzzCall::on_written},
      writes_done_{this, &FuzzCall::on_writes_done}, read_{this, &FuzzCall::on_read},
      over_{this, &FuzzCall::on_over};
};

// True for methods of ours. gRPC itself answers its own services, and messages that are none of the
// method's type, which never reach ours.
bool is_ours(const pb::MethodDescriptor& method) {
  const std::string& service = method.service()->full_name();
  return service.rfind("lintel.", 0) == 0 || service.rfind("inference.", 0) == 0;
}

// Names would let these take the models away that the others are called with.
bool takes_models(const pb::MethodDescriptor& method) {
  return method.name().find("Load") != std::string::npos ||
         method.name().find("Unload") != std::string::npos;
}

void delete_all_sessions(const ChaosServer& server) {
  const auto sessions = v1::SessionService::NewStub(server.channel());
  while (true) {
    grpc::ClientContext list_context;
    v1::ListSessionsResponse listed;
    REQUIRE(sessions->List(&list_context, {}, &listed).ok());
    if (listed.sessions().empty()) return;
    for (const v1::Session& session : listed.sessions()) {
      grpc::ClientContext context;
      v1::DeleteSessionRequest request;
      request.set_id(session.id());
      pb::Empty nothing;
      sessions->Delete(&context, request, &nothing);
    }
  }
}

}  // namespace

TEST_CASE("100,000 malformed requests to every RPC: none affects the server or other requests",
          "[threat-48]") {
  constexpr int kMessages = 100'000, kWarmUpMessages = 20'000, kCallsAtATime = 128;
  const std::uint64_t seed = std::random_device()();
  pb::SetLogHandler(nullptr);  // of what does not parse
  std::cout << "chaos: fuzzing with seed " << seed << std::endl;
  CAPTURE(seed);

  const TemporaryDirectory directory;
  std::vector<std::string> models;
  for (const auto& [name, kind] :
       {std::pair("tokens", TinyModel::kTokens), std::pair("bytes", TinyModel::kBytes),
        std::pair("image", TinyModel::kImage)}) {
    models.push_back(directory.path() / name);
    write_random_model(models.back(), tiny_config(kind), /*seed=*/7);
  }
  ChaosServer server({.flags = {"--channelz", "--max-prompt-tokens", "2000", "--max-score-tokens",
                                "2000", "--max-sessions", "200"},
                      .models = models,
                      .max_new_tokens = "200"});
  ServerSchema schema(server.channel());
  const auto right = right_requests();
  std::vector<std::string> words = {
      "tokens",         "bytes", "image", "INT32",       "FP32",         "BYTES", "log2_probs",
      "max_new_tokens", "seed",  "top_p", "sequence_id", "sequence_end", "42",    "0.5",
      "info",           "debug", "",      "tokens2"};
  RandomMessages random(seed, words);

  std::map<std::string, std::map<int, int>> codes;  // method, code: calls
  std::map<std::string, std::string> bad;           // forbidden results
  int sent = 0, parsed = 0, in_flight = 0;
  const auto over = [&](const FuzzCall::Result& result) {
    --in_flight;
    sent += result.messages_sent;
    const int code = result.status.error_code();
    ++codes[result.method->full_name()][code];
    if (!result.parsed || !is_ours(*result.method)) return;
    ++parsed;
    if (code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::UNKNOWN) {
      bad[result.method->full_name()] = result.status.error_message();
    }
  };
  const auto make_call = [&] {
    const pb::MethodDescriptor& method = *random.one_of(schema.methods());
    const auto known = right.find(method.input_type()->full_name());
    random.set_words(takes_models(method) ? std::vector<std::string>() : words);
    std::vector<std::string> messages;
    bool all_parse = true;
    std::uint64_t count = method.client_streaming() ? random.below(6) : 1;
    if (random.once_in(50)) count = random.below(4);  // also none, and too many
    for (; count > 0; --count) {
      const std::unique_ptr<pb::Message> message = schema.new_request(method);
      if (known != right.end() && !random.once_in(3)) {
        message->ParseFromString(random.one_of(known->second));
        random.change(*message);
      } else {
        random.fill(*message);
      }
      std::string bytes = message->SerializeAsString();
      if (random.once_in(3)) bytes = random.damage(std::move(bytes));
      all_parse &= schema.new_request(method)->ParseFromString(bytes);
      messages.push_back(std::move(bytes));
    }
    // gRPC itself answers a call of one message that has none or more.
    all_parse &= method.client_streaming() || messages.size() == 1;
    return new FuzzCall(method, std::move(messages), all_parse, over);
  };
  const auto flood = [&](int messages) {
    grpc::CompletionQueue queue;
    std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
    for (int i = 0; i < 4; ++i) {
      stubs.push_back(std::make_unique<grpc::GenericStub>(new_channel(server.address())));
    }
    const int until = sent + messages;
    void* tag = nullptr;
    bool ok = false;
    while (sent < until || in_flight > 0) {
      while (sent < until && in_flight < kCallsAtATime) {
        ++in_flight;
        make_call()->start(*random.one_of(stubs), queue);
      }
      if (in_flight == 0) break;
      REQUIRE(queue.Next(&tag, &ok));
      const auto& done = *static_cast<FuzzCall::Tag*>(tag);
      done.call->done(done, ok);
    }
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  };

  const auto clean_up = [&] {
    CHECK(eventually([&] { return server.metric("lintel_sessions", "busy") == 0; }));
    delete_all_sessions(server);
  };
  flood(kWarmUpMessages);
  clean_up();
  server.take_baseline();
  Neighbour neighbour(server);
  flood(kMessages);
  neighbour.stop();
  clean_up();

  for (const auto& [method, counts] : codes) {
    std::cout << "chaos:   " << method << ":";
    for (const auto& [code, count] : counts) std::cout << " code " << code << " " << count << "x";
    std::cout << "\n";
  }
  for (const auto& [method, message] : bad) {
    INFO(method << ": " << message);
    CHECK(false);
  }
  CHECK(neighbour.disturbed() == 0);
  CHECK(codes.size() == schema.methods().size());
  CHECK(parsed > kMessages / 10);
  // Counts of the server itself.
  CHECK(server.metric("lintel_requests_total", "code=\"INTERNAL\"") == 0);
  CHECK(server.metric("lintel_requests_total", "code=\"UNKNOWN\"") == 0);
  server.check_recovered(std::to_string(sent) + " malformed messages to " +
                         std::to_string(codes.size()) + " RPCs beside " +
                         std::to_string(neighbour.served()) + " undisturbed generations");
  CHECK(server.stop() == 0);
}

}  // namespace lintel::testing
