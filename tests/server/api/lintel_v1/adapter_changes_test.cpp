// SPDX-License-Identifier: Apache-2.0
// LoRA adapters that are loaded and unloaded while the server runs.
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <thread>

#include "model/formats/safetensors.h"
#include "tests/server/support/adapter_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

struct ChangedServer : AdapterServer {
  explicit ChangedServer(const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {})
      : AdapterServer(change) {
    write("second");
    const grpc::Status loaded = load("second");
    INFO(loaded.error_message());
    REQUIRE(loaded.ok());
  }
};

TEST_CASE("an adapter is loaded, named and unloaded while others are served") {
  const ChangedServer f;
  const std::vector<float> base = f.log2_probs_with("");
  RunningStream other(*f.server, request_for("second", {1}, 1));
  CHECK(f.load_adapter("a").error_code() == Code::NOT_FOUND);
  f.write_adapter("second", "a", 1);
  v1::Adapter adapter;
  REQUIRE(f.load_adapter("a", "second", &adapter).ok());
  CHECK(adapter.name() == "a");
  CHECK(adapter.rank() == 2);
  CHECK(adapter.SerializeAsString() == f.model().adapters(0).SerializeAsString());
  const std::vector<float> with_a = f.log2_probs_with("a");
  CHECK(with_a != base);

  // Its files are read, not mapped, and it stays what it is until it is unloaded.
  f.write_adapter("second", "a", 9);
  CHECK(f.log2_probs_with("a") == with_a);
  const grpc::Status again = f.load_adapter("a");
  CHECK(again.error_code() == Code::FAILED_PRECONDITION);
  CHECK_THAT(again.error_message(), Contains("is loaded: unload it first"));
  REQUIRE(f.unload_adapter("a").ok());
  CHECK(f.adapters().empty());
  const grpc::Status gone = f.generate_with("a").status;
  CHECK(gone.error_code() == Code::NOT_FOUND);
  CHECK_THAT(gone.error_message(), Contains("it has none"));
  CHECK(f.unload_adapter("a").error_code() == Code::NOT_FOUND);
  REQUIRE(f.load_adapter("a").ok());
  CHECK(f.log2_probs_with("a") != with_a);

  v1::GenerateResponse message;
  for (int i = 0; i < 10; ++i) REQUIRE(other.reader->Read(&message));
  other.context.TryCancel();
  other.end();
  CHECK(f.log2_probs_with("") == base);
}

TEST_CASE("an unloaded adapter refuses new requests at once and waits for its users") {
  const ChangedServer f;
  f.write_adapter("second", "a", 1);
  f.write_adapter("second", "b", 2);
  REQUIRE(f.load_adapter("a").ok());
  REQUIRE(f.load_adapter("b").ok());
  v1::Session session;
  REQUIRE(f.create_session("a", &session).ok());
  RunningStream running(*f.server, f.with_adapter("a"));
  grpc::Status unloaded(Code::UNKNOWN, "");
  std::thread unloading([&] { unloaded = f.unload_adapter("a"); });
  REQUIRE(eventually([&] { return f.adapters() == Names{"b"}; }));
  const grpc::Status refused = f.generate_with("a").status;
  CHECK(refused.error_code() == Code::NOT_FOUND);
  CHECK_THAT(refused.error_message(), Contains("adapter a of model second is being unloaded"));
  v1::Session none;
  CHECK(f.create_session("a", &none).error_code() == Code::NOT_FOUND);
  CHECK_THAT(f.load_adapter("a").error_message(), Contains("is being unloaded"));
  CHECK_THAT(f.unload_adapter("a").error_message(), Contains("is being unloaded"));
  CHECK(f.generate_with("b").status.ok());
  CHECK(f.generate_with("").status.ok());

  // Its users continue: the stream and the session.
  v1::GenerateResponse message;
  for (int i = 0; i < 10; ++i) REQUIRE(running.reader->Read(&message));
  v1::GenerateRequest next = request_for("", {1}, 5);
  next.set_session_id(session.id());
  CHECK(generate(*f.server, next).status.ok());
  running.context.TryCancel();
  running.end();
  CHECK(unloaded.error_code() == Code::UNKNOWN);  // the session still uses it
  v1::DeleteSessionRequest remove;
  remove.set_id(session.id());
  google::protobuf::Empty nothing;
  grpc::ClientContext context;
  REQUIRE(f.server->sessions->Delete(&context, remove, &nothing).ok());
  unloading.join();
  CHECK(unloaded.ok());
  CHECK(f.load_adapter("a").ok());
}

TEST_CASE("past the drain timeout the users of an unloaded adapter end, and no others") {
  const ChangedServer f([](ServerOptions& options) {
    options.models.drain_timeout_ms = std::chrono::milliseconds(20);
  });
  for (const char* const name : {"a", "b"}) {
    f.write_adapter("second", name, 1);
    REQUIRE(f.load_adapter(name).ok());
  }
  v1::Session session, other_session;
  REQUIRE(f.create_session("a", &session).ok());
  REQUIRE(f.create_session("b", &other_session).ok());
  RunningStream other(*f.server, f.with_adapter("b"));
  RunningStream base(*f.server, f.with_adapter(""));
  RunningStream running(*f.server, f.with_adapter("a"));
  v1::GenerateRequest on_session = request_for("", {1}, 1);
  v1::Session busy;
  REQUIRE(f.create_session("a", &busy).ok());
  on_session.set_session_id(busy.id());
  RunningStream going_on(*f.server, on_session);

  CHECK(f.unload_adapter("a").ok());
  for (RunningStream* const stream : {&running, &going_on}) {
    const grpc::Status status = stream->end();
    CHECK(status.error_code() == Code::UNAVAILABLE);
    CHECK_THAT(status.error_message(),
               Contains("adapter of model second") && Contains("was unloaded"));
    CHECK(stream->last.reason() == v1::FINISH_REASON_CANCELLED);  // with its final frame
  }
  for (const v1::Session& closed : {session, busy}) {
    v1::GenerateRequest next = request_for("", {1}, 1);
    next.set_session_id(closed.id());
    const grpc::Status gone = generate(*f.server, next).status;
    CHECK(gone.error_code() == Code::NOT_FOUND);
    CHECK_THAT(gone.error_message(), Contains("or its adapter was unloaded"));
  }
  v1::GenerateResponse message;
  for (RunningStream* const stream : {&other, &base}) {
    for (int i = 0; i < 10; ++i) REQUIRE(stream->reader->Read(&message));
    stream->context.TryCancel();
    stream->end();
  }
  v1::GenerateRequest next = request_for("", {1}, 1);
  next.set_session_id(other_session.id());
  CHECK(generate(*f.server, next).status.ok());
}

TEST_CASE("a Score that runs ends with its adapter, past the drain timeout") {
  const ChangedServer f([](ServerOptions& options) {
    options.models.drain_timeout_ms = std::chrono::milliseconds(0);
    options.models.scheduling.workers = 0;
  });
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load_adapter("a").ok());
  v1::ScoreRequest request;
  request.set_model("second");
  request.set_adapter("a");
  for (int i = 0; i < 400; ++i) {
    auto& ids = *request.add_sequences()->mutable_tokens();
    for (int k = 0; k < 40; ++k) ids.add_ids(k);
  }
  grpc::ClientContext context;
  const auto reader = f.server->generation->Score(&context, request);
  Scheduler& scheduler = f.server->scheduler("second");
  REQUIRE(eventually([&] { return scheduler.run_one_step(); }));
  // A running sequence is ended in a step, unless it has come to its own end by then: the next of
  // the call's sequences is refused.
  auto unloading = std::async(std::launch::async, [&] { return f.unload_adapter("a"); });
  REQUIRE(eventually([&] {
    scheduler.run_one_step();
    return unloading.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  CHECK(unloading.get().ok());
  run_until_idle(scheduler);
  v1::ScoreResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  CHECK(status.error_code() == Code::UNAVAILABLE);
  CHECK_THAT(status.error_message(), Contains("adapter of model second"));
}

TEST_CASE("adapters go with their model, and come back with it where they lie in its directory") {
  const ChangedServer f;
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load_adapter("a").ok());
  f.write_adapter("second", "late", 2);
  REQUIRE(f.load_adapter("late").ok());
  v1::Session session;
  REQUIRE(f.create_session("a", &session).ok());
  fs::remove_all(f.directory.path() / "second/adapters/late");
  REQUIRE(f.load("second").ok());  // again
  CHECK(f.adapters() == Names{"a"});
  v1::GenerateRequest next = request_for("", {1}, 1);
  next.set_session_id(session.id());
  CHECK(
      eventually([&] { return generate(*f.server, next).status.error_code() == Code::NOT_FOUND; }));
  CHECK(f.log2_probs_with("a") != f.log2_probs_with(""));
  REQUIRE(f.unload("second").ok());
  CHECK(f.load_adapter("a").error_code() == Code::NOT_FOUND);
  CHECK(f.generate_with("a").status.error_code() == Code::NOT_FOUND);
}

TEST_CASE("an unload of an adapter whose model goes first is answered") {
  const ChangedServer f;
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load_adapter("a").ok());
  RunningStream running(*f.server, f.with_adapter("a"));
  std::thread adapter([&] { CHECK(f.unload_adapter("a").ok()); });
  REQUIRE(eventually([&] { return f.adapters().empty(); }));
  std::thread model([&] { CHECK(f.unload("second").ok()); });
  REQUIRE(eventually([&] { return f.listed(true).front() == "second 1 UNLOADING"; }));
  running.context.TryCancel();
  running.end();
  adapter.join();
  model.join();
  CHECK(f.listed(true).front() == "second 1 UNAVAILABLE");
}

TEST_CASE(
    "a server that stops ends the users of an adapter being unloaded and answers the unload") {
  const ChangedServer f;
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load_adapter("a").ok());
  RunningStream running(*f.server, f.with_adapter("a"));
  grpc::Status unloaded(Code::UNKNOWN, "");
  std::thread unloading([&] { unloaded = f.unload_adapter("a"); });
  REQUIRE(eventually([&] { return f.adapters().empty(); }));
  std::thread stopping([&] { f.server->server().stop(); });
  CHECK(running.end().error_code() == Code::UNAVAILABLE);
  unloading.join();
  stopping.join();
  CHECK(unloaded.ok());
}

TEST_CASE("an adapter's memory is admitted before it is loaded, and released after the last use",
          "[threat-76]") {
  std::size_t room = 0;
  {
    const ChangedServer measured;
    measured.write_adapter("second", "a", 1);
    REQUIRE(measured.load_adapter("a").ok());
    room = static_cast<std::size_t>(measured.model().weight_bytes());
  }
  // Models take some more while they are loaded than the weights alone, and much more where weight
  // types are compared.
  const ChangedServer f([&](ServerOptions& options) {
    options.models.weight_type = WeightType::kF32;
    options.models.memory_bytes = 4 * room + (1u << 16);
  });
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load_adapter("a").ok());
  f.write_adapter("second", "huge", 1, /*rank=*/1024);
  const grpc::Status refused = f.load_adapter("huge");
  // The adapter would not fit if it were alone: there is no time to try again.
  CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
  CHECK_THAT(refused.error_message(),
             Contains("adapter huge of model second needs") && Contains("of --model-memory"));
  CHECK_FALSE(detail_of<google::rpc::RetryInfo>(refused));
  CHECK(f.adapters() == Names{"a"});
  CHECK(f.generate_with("a").status.ok());
}

TEST_CASE("hostile adapters are refused by name, and nothing changes", "[threat-76]") {
  const ChangedServer f;
  f.write_adapter("second", "good", 1);
  REQUIRE(f.load_adapter("good").ok());
  const fs::path adapters = f.directory.path() / "second/adapters";
  const auto config = [&](const std::string& name, const std::string& text) {
    std::ofstream(adapters / name / "adapter_config.json") << text;
  };
  const std::string kConfig = R"({"peft_type": "LORA", "bias": "none", "lora_alpha": 4, "r": 2)";
  struct Hostile {
    std::string name, says;
    std::function<void(const std::string&)> change;
  };
  const std::vector<Hostile> all = {
      {"no-config", "adapter_config.json",
       [&](const auto& name) { fs::remove(adapters / name / "adapter_config.json"); }},
      {"no-tensors", "adapter_model.safetensors",
       [&](const auto& name) { fs::remove(adapters / name / "adapter_model.safetensors"); }},
      {"not-json", "adapter_config.json", [&](const auto& name) { config(name, "{"); }},
      {"wrong-rank", "lora_embedding_A",
       [&](const auto& name) {
         config(name, R"({"peft_type": "LORA",
        "bias": "none", "lora_alpha": 4, "r": 3})");
       }},
      {"dora", "use_dora",
       [&](const auto& name) { config(name, kConfig + R"(, "use_dora": true})"); }},
      {"unknown", "some_new_switch",
       [&](const auto& name) { config(name, kConfig + R"(, "some_new_switch": 1})"); }},
      {"cut", "adapter_model.safetensors",
       [&](const auto& name) {
         fs::resize_file(adapters / name / "adapter_model.safetensors", 700);
       }},
      {"huge-header", "adapter_model.safetensors",
       [&](const auto& name) {
         std::fstream file(adapters / name / "adapter_model.safetensors",
                           std::ios::in | std::ios::out | std::ios::binary);
         const std::uint64_t size = std::uint64_t{1} << 62;
         file.write(reinterpret_cast<const char*>(&size), sizeof size);
       }},
      {"not-finite", "base_model.model.predictor.lora_B.weight",
       [&](const auto& name) {
         std::vector<float> a(32, 1.0f), b(100, 1.0f);
         b[77] = std::numeric_limits<float>::infinity();
         const std::vector<TensorToWrite> tensors = {
             {"base_model.model.predictor.lora_A.weight", {2, 16}, a},
             {"base_model.model.predictor.lora_B.weight", {50, 2}, b}};
         write_safetensors(adapters / name / "adapter_model.safetensors", tensors);
       }},
      {"surplus", "base_model.model.nothing.lora_A.weight",
       [&](const auto& name) {
         const std::vector<float> values(32, 1.0f);
         const std::vector<TensorToWrite> tensors = {
             {"base_model.model.nothing.lora_A.weight", {2, 16}, values}};
         write_safetensors(adapters / name / "adapter_model.safetensors", tensors);
       }},
  };
  for (const Hostile& hostile : all) {
    INFO(hostile.name);
    f.write_adapter("second", hostile.name, 3);
    hostile.change(hostile.name);
    const grpc::Status status = f.load_adapter(hostile.name);
    INFO(status.error_message());
    CHECK(status.error_code() == Code::FAILED_PRECONDITION);
    CHECK_THAT(status.error_message(), Contains("adapter " + hostile.name + " of model second") &&
                                           Contains(hostile.says) &&
                                           !Contains(f.directory.path().string()));
    const auto failure = detail_of<google::rpc::PreconditionFailure>(status);
    REQUIRE(failure);
    CHECK(failure->violations(0).type() == "ADAPTER");
    CHECK(failure->violations(0).subject() == hostile.name);
    CHECK(f.adapters() == Names{"good"});
    // A model that has it in its directory is refused with it.
    f.write("third");
    fs::create_directories(f.directory.path() / "third/adapters");
    fs::rename(adapters / hostile.name, f.directory.path() / "third/adapters" / hostile.name);
    const grpc::Status with_model = f.load("third");
    CHECK(with_model.error_code() == Code::FAILED_PRECONDITION);
    CHECK_THAT(with_model.error_message(),
               Contains("adapter " + hostile.name + " of model third") && Contains(hostile.says));
    fs::remove_all(f.directory.path() / "third");
  }
  CHECK(f.generate_with("good").status.ok());
}

TEST_CASE("no adapter's name from the wire leaves the model's directory", "[threat-77]") {
  const ChangedServer f;
  f.write_adapter("second", "a", 1);
  for (const std::string name : {"", ".", "..", "../a", "a/../a", "/etc", "a\n"}) {
    INFO(name);
    const grpc::Status loaded = f.load_adapter(name);
    CHECK(loaded.error_code() == Code::INVALID_ARGUMENT);
    CHECK(violated_fields(loaded) == Names{"name"});
    CHECK(f.unload_adapter(name).error_code() == Code::INVALID_ARGUMENT);
  }
  CHECK(f.load_adapter("a", "nosuch").error_code() == Code::NOT_FOUND);
  // Several models are loaded: one has to be named.
  CHECK(violated_fields(f.load_adapter("a", "")) == Names{"model"});
}

TEST_CASE("adapters are loaded and unloaded under traffic, and every call gets its own tokens") {
  const ChangedServer f;
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load_adapter("a").ok());
  const std::vector<float> base = f.log2_probs_with("");
  const std::vector<float> with_a = f.log2_probs_with("a");
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, refused{0}, served{0};
  std::vector<std::thread> calls;
  for (int i = 0; i < 4; ++i) {
    calls.emplace_back([&, adapter = std::string(i % 2 == 0 ? "a" : "")] {
      while (!stop) {
        const Generated out = f.generate_with(adapter);
        if (out.status.ok()) {
          ++served;
          wrong += out.only().log2_probs != (adapter.empty() ? base : with_a);
        } else {
          ++refused;
          wrong += adapter.empty() || out.status.error_code() != Code::NOT_FOUND;
        }
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(f.unload_adapter("a").ok());
    CHECK(f.load_adapter("a").ok());
  }
  REQUIRE(eventually([&] { return served > 20; }));
  stop = true;
  for (std::thread& call : calls) call.join();
  CHECK(wrong == 0);
  CHECK(f.server->server().store().bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
