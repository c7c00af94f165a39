// SPDX-License-Identifier: Apache-2.0
// Calls of every method whose clients leave at any time, so at any co_await of its handler.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/rpc/call_scope.h"
#include "tests/server/support/generic_call.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;
namespace pb = google::protobuf;
using std::chrono::microseconds;

#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

constexpr std::array kModels = {"tokens", "a", "b", "chat"};

// A server with a session store, the model "tokens" in memory and the others of kModels on request.
// "chat" has a chat template.
struct LeftServer {
  LeftServer()
      : stored([this](ServerOptions& options) {
          const auto durable = options.durable;
          options = with_http();
          options.durable = durable;
          options.models.on_request = directory.path();
          for (const char* name : {"a", "b"}) {
            write_random_model(directory.path() / name, tiny_config(TinyModel::kTokens), 5);
          }
          const fs::path weights = fs::path(LINTEL_TEST_DATA) / ".." / "weights";
          fs::create_directory_symlink(fs::canonical(weights / "text-rwkv7-small"),
                                       directory.path() / "chat");
        }),
        session(created(*stored, v1::DURABILITY_INPUT).id()) {}

  const TemporaryDirectory directory;
  StoredServer stored;
  const std::string session;
};

bool goes_on_session(const std::string& method) {
  return method == "lintel.v1.GenerationService/Generate" ||
         method == "lintel.v1.SessionService/Restore";
}

// A request of the method: every text field that names something names what is there.
std::unique_ptr<pb::Message> request_of(const std::string& method, const std::string& model,
                                        const std::string& session) {
  std::string name = method;
  name.replace(name.find('/'), 1, ".");
  const auto* const described = pb::DescriptorPool::generated_pool()->FindMethodByName(name);
  REQUIRE(described != nullptr);
  const pb::Descriptor* const type = described->input_type();
  std::unique_ptr<pb::Message> request(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
  std::map<std::string, std::string> texts = {
      {"model", model},
      {"model_name", model},
      {"name", method.find("State") == std::string::npos ? model : "state"},
      {"id", session},
      {"text", "hello"},
      {"body", R"({"model": ")" + model + R"(", )" +
                   (method.find("ResponseService") == std::string::npos
                        ? R"("max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]})"
                        : R"("max_output_tokens": 16, "input": "hello"})")}};
  // A session has a model by itself.
  if (model == "tokens") {
    texts["session_id"] = session;
    if (goes_on_session(method)) texts.erase("model");
  }
  for (int i = 0; i < type->field_count(); ++i) {
    const pb::FieldDescriptor* const field = type->field(i);
    const auto text = texts.find(field->name());
    if (text == texts.end() || field->is_repeated() ||
        field->cpp_type() != pb::FieldDescriptor::CPPTYPE_STRING) {
      continue;
    }
    request->GetReflection()->SetString(request.get(), field, text->second);
  }
  if (auto* const generate = dynamic_cast<v1::GenerateRequest*>(request.get())) {
    generate->mutable_prompt()->mutable_tokens()->add_ids(1);
    generate->set_max_new_tokens(20);
  }
  return request;
}

struct CancelledCall {
  std::string method;
  std::string request;  // serialised
  std::string json;
};

std::vector<CancelledCall> calls_of_every_method(const std::string& session) {
  std::vector<CancelledCall> calls;
  for (const MethodInfo& info : kMethods) {
    const std::string method = info.name;
    if (method.ends_with("/SetLogLevel")) continue;  // it is the process's
    for (const std::string model : kModels) {
      // The others are unloaded, so that further calls wait for them; the session stays.
      const bool unloads = method.find("Unload") != std::string::npos;
      if (unloads && (model == "tokens" || model == "chat")) continue;
      const bool deletes = method.ends_with("SessionService/Delete");
      const auto request = request_of(method, model, deletes ? "no session" : session);
      std::string json;
      REQUIRE(pb::util::MessageToJsonString(*request, &json).ok());
      calls.push_back({method, request->SerializeAsString(), json});
    }
  }
  return calls;
}

// Begins a call, and leaves it after the delay.
void leave_over_grpc(LeftServer& f, const CancelledCall& each, microseconds delay) {
  grpc::ClientContext context;
  GenericCall call(f.stored->channel(), "/" + each.method, context);
  call.write_last(each.request);
  std::this_thread::sleep_for(delay);
  context.TryCancel();
  call.finish();
}
void leave_over_http(LeftServer& f, const CancelledCall& each, microseconds delay) {
  HttpClient client(f.stored->server().http_port());
  client.send(post_text("/" + each.method, each.json, "application/json"));
  std::this_thread::sleep_for(delay);
}

TEST_CASE("calls of every method, cancelled at any time, all end and leave nothing",
          "[cancelled]") {
  LeftServer f;
  const std::vector<CancelledCall> calls = calls_of_every_method(f.session);
  std::vector<std::thread> callers;
  for (unsigned caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937 random(caller + Catch::rngSeed());
      std::vector<CancelledCall> mine = calls;
      const int rounds = runs_every_case() ? 20 : 3;
      for (int round = 0; round < rounds; ++round) {
        std::ranges::shuffle(mine, random);
        for (const CancelledCall& each : mine) {
          // From before the call is read to the middle of its answer.
          constexpr std::array kDelays = {0, 30, 100, 300, 1000, 3000, 10000};
          const microseconds delay(kDelays[random() % kDelays.size()]);
          // KServe's methods have routes of their own over HTTP. ThreadSanitizer does not see the
          // locks of gRPC, which is built without it.
          const bool is_kserve = !each.method.starts_with("lintel.v1.");
          if (!is_kserve && (kThreadSanitized || random() % 2 == 0)) {
            leave_over_http(f, each, delay);
          } else if (!kThreadSanitized) {
            leave_over_grpc(f, each, delay);
          }
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();

  for (const char* const gauge :
       {"lintel_streams", "lintel_model_waiters", "lintel_request_memory_bytes"}) {
    CAPTURE(gauge);
    CHECK(comes_to(*f.stored, gauge, 0));
  }
  CHECK(eventually([&] { return !get_session(*f.stored, f.session).busy(); }));
  for (const char* const model : {"tokens", "a", "b"}) {
    const HttpReply reply =
        post(f.stored->server().http_port(), "/v1/completions",
             R"({"prompt": [1, 2], "max_tokens": 3, "model": ")" + std::string(model) + "\"}");
    INFO(reply.body);
    CHECK(reply.status == 200);
  }
}

}  // namespace
}  // namespace lintel::testing
