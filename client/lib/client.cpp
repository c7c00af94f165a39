// SPDX-License-Identifier: Apache-2.0
#include "client/lib/client.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "client/lib/channel.h"
#include "client/lib/repeat.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace lintel {

// Client's calls: its servers, and one call with its deadline and the handling of its failure.

// One server.
struct Client::Stubs {
  Stubs(const std::shared_ptr<grpc::ChannelInterface>& c, std::string at)
      : channel(c),
        address(std::move(at)),
        generation(c),
        chat(c),
        responses(c),
        sessions(c),
        models(c),
        admin(c),
        health(c) {}
  const std::shared_ptr<grpc::ChannelInterface> channel;
  const std::string address;  // empty over the caller's own channel
  v1::GenerationService::Stub generation;
  v1::ChatService::Stub chat;
  v1::ResponseService::Stub responses;
  v1::SessionService::Stub sessions;
  v1::ModelService::Stub models;
  v1::AdminService::Stub admin;
  grpc::health::v1::Health::Stub health;
};

struct Client::Known {
  Known(std::vector<std::shared_ptr<Stubs>> all, Servers<Stubs>::Spread spread)
      : servers(std::move(all), std::move(spread)) {}
  Servers<Stubs> servers;
  KnownDurability durability;  // of sessions that were answered with
};

// Conditions for Client::Call to send a call again, each time to another server.
enum class Client::Again {
  kUnsent,  // if not a byte of it was sent
  kSafe,    // and where the server may have had it: it changes nothing, or leaves what expires
  kNever,   // its caller sees to that
};

// One call: its deadline, and what happens when it fails.
class Client::Call {
 public:
  // session_id: that the call is about; empty: none.
  Call(const Client& client, Cancellation* cancellation, const std::string& session_id = "")
      : client_(client),
        cancellation_(cancellation),
        affinity_(session_id.empty() ? "" : affinity_key(session_id)) {
    // Longer ones overflow gRPC's clock and would have passed already.
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    deadline_ = std::chrono::system_clock::now() + std::min(client.deadline_, kLongest);
  }

  // `method(server, context)` calls and returns the status. A session that a server holds which may
  // be gone is waited for.
  template <typename Method>
  void unary(const Method& method, Again again = Again::kUnsent) {
    Failures failures;
    RepeatPauses pauses(client_.retry_);
    moves_ = 0;
    for (;;) {
      Try once(*this);
      const grpc::Status status = method(*once.server, &once.context);
      if (waits_for_session(status, pauses)) continue;
      if (check(status, once, failures, again)) return;
    }
  }

  // `open(server, context)` starts a server stream, which is read to its end; it is not sent again
  // once something has come. If `on_message` throws, the call is cancelled on the server and its
  // status awaited before the exception propagates: a call is never left half read.
  template <typename Message, typename Open, typename OnMessage>
  void stream(const Open& open, const OnMessage& on_message, Again again) {
    Failures failures;
    if (again != Again::kNever) moves_ = 0;
    for (;;) {
      Try once(*this);
      const auto reader = open(*once.server, &once.context);
      Message message;
      try {
        while (reader->Read(&message)) {
          again = Again::kNever;
          on_message(message);
        }
      } catch (...) {
        once.context.TryCancel();
        while (reader->Read(&message)) {
        }
        reader->Finish();
        throw;
      }
      if (check(reader->Finish(), once, failures, again)) return;
    }
  }

  // `open(server, context)` starts a client stream, into which `produce(writer)` writes for as long
  // as the server reads. The response is there when this returns. If `produce` throws, the call is
  // cancelled on the server and its status awaited before the exception propagates.
  template <typename Open, typename Produce>
  void upload(const Open& open, const Produce& produce) {
    Failures failures;
    moves_ = 0;
    for (;;) {
      Try once(*this);
      const auto writer = open(*once.server, &once.context);
      try {
        produce(*writer);
      } catch (...) {
        once.context.TryCancel();
        writer->Finish();
        throw;
      }
      if (check(writer->Finish(), once, failures, Again::kUnsent)) return;
    }
  }

  // Away from the server that the last try failed at. Returns whether the next try goes to one that
  // was not tried since try_all_again().
  bool go_on() {
    const std::size_t count = client_.known_->servers.count();
    const bool others = client_.known_->servers.leave(last_, last_peer_);
    return others && ++moves_ < std::max(count, client_.known_->servers.count());
  }
  void try_all_again() { moves_ = 0; }

  // Tries to connect, if there is no connection, without gRPC's pause of a second after a failure.
  void connect_again(std::chrono::milliseconds at_most) const {
    const auto server = client_.known_->servers.current();
    grpc::ChannelInterface& channel = *server->channel;
    if (auto* const real = dynamic_cast<grpc::Channel*>(&channel)) {
      grpc::experimental::ChannelResetConnectionBackoff(real);
    }
    channel.WaitForConnected(std::min(deadline_, std::chrono::system_clock::now() + at_most));
  }

  // Between two tries, but not past the deadline. Throws CallError with CANCELLED.
  void wait(std::chrono::milliseconds time) const {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::system_clock::now());
    time = std::min(time, std::max(left, std::chrono::milliseconds(0)));
    if (cancellation_ == nullptr) {
      std::this_thread::sleep_for(time);
    } else if (cancellation_->wait_for(time)) {
      throw CallError(grpc::StatusCode::CANCELLED, "cancelled");
    }
  }

 private:
  // The context of a try: deadline and token set, cancellation attached.
  struct Try {
    explicit Try(const Call& call)
        : server(call.client_.known_->servers.current()), attachment(call.cancellation_, context) {
      context.set_deadline(call.deadline_);
      const std::string& token = call.client_.token_;
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
      if (!call.affinity_.empty()) context.AddMetadata(kAffinityHeader, call.affinity_);
    }
    const std::shared_ptr<Stubs> server;
    grpc::ClientContext context;
    Cancellation::Attachment attachment;  // after context: it goes first
  };
  struct Failures {
    bool odd = false;               // there was one that is tried again at the same server
    std::optional<CallError> said;  // the error of the first server that was reached
  };

  // Waits until the session may be free; false: that is not why the call failed, or it was for
  // long.
  bool waits_for_session(const grpc::Status& status, RepeatPauses& pauses) const {
    if (status.error_code() != grpc::StatusCode::ABORTED || client_.retry_.count() <= 0) {
      return false;
    }
    const CallError error(status);
    if (error.error_reason() != "SESSION_HELD") return false;
    const auto pause = pauses.next(error);
    if (pause) wait(*pause);
    return pause.has_value();
  }

  // True: done. False: to be tried again, which is safe. Throws CallError.
  bool check(const grpc::Status& status, const Try& once, Failures& failures, Again again) {
    if (status.ok()) return true;
    const auto failure = connect_failure(status, client_.encrypted_);
    last_ = once.server;
    last_peer_ = failure ? "" : once.context.peer();
    const bool cancelled = cancellation_ != nullptr && cancellation_->cancelled();
    if (failure && failure->odd && !failures.odd && !cancelled) {
      failures.odd = true;
      connect_again(std::chrono::seconds(1));
      return false;
    }
    const CallError error =
        failure && !client_.address_.empty()
            ? CallError(status, client_.address_, failure->reason, failure->hint)
        : is_lost_connection(status)
            ? CallError(status.error_code(), "the connection to the server was lost")
            : CallError(status);
    const bool is_safe = failure ? again != Again::kNever : again == Again::kSafe;
    if (!failure && !failures.said) failures.said = error;
    if (is_safe && !cancelled && names_a_lost_server(error) && go_on()) {
      connect_again(kConnectPatience);
      return false;
    }
    // A server's own error says more than that another one was unreachable.
    throw failure && failures.said ? *failures.said : error;
  }

  // For a connection between two tries: one that is slower is there for the next.
  static constexpr std::chrono::milliseconds kConnectPatience{200};

  const Client& client_;
  Cancellation* const cancellation_;
  const std::string affinity_;
  std::chrono::system_clock::time_point deadline_;
  std::size_t moves_ = 0;        // to other servers, since all may be tried
  std::shared_ptr<Stubs> last_;  // the server of the last failed try
  std::string last_peer_;        // its address; empty: it was not reached
};

namespace {

// Options of a client with several servers: one that is gone without a word is noticed, for there
// is another.
grpc::ChannelArguments impatient() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);  // for a connection, too
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 15'000);       // servers take one in 10 s
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace

Client::Client(const Options& options) : Client(options.deadline, options.token) {
  retry_ = options.retry;
  encrypted_ = options.tls.enabled();
  const std::vector<std::string> addresses = full_addresses(options.address);
  const std::string proxy = options.proxy.empty() ? "" : proxy_address(options.proxy);
  const auto server_at = [tls = options.tls, sends_token = !options.token.empty(), proxy](
                             const std::string& address, grpc::ChannelArguments arguments) {
    return std::make_shared<Stubs>(
        make_channel(address, tls, sends_token, proxy, std::move(arguments)), address);
  };
  std::vector<std::shared_ptr<Stubs>> servers;
  for (const std::string& address : addresses) {
    address_ += (address_.empty() ? "" : ", ") + address;
    servers.push_back(
        server_at(address, addresses.size() > 1 ? impatient() : grpc::ChannelArguments()));
  }
  const auto spread = [server_at, proxy](const Stubs& name, const std::string& peer) {
    std::vector<std::shared_ptr<Stubs>> all;
    if (!proxy.empty()) return all;  // which looks for the name itself
    std::vector<std::string> found = addresses_of(name.address);
    if (found.size() < 2) return all;
    const auto is_peer = [&peer](const std::string& address) {
      return peer.substr(peer.find(':') + 1) == address;
    };
    std::stable_partition(found.begin(), found.end(), std::not_fn(is_peer));
    for (const std::string& address : found) {
      grpc::ChannelArguments arguments = impatient();
      arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY,
                          name.address);  // its certificate has the name
      all.push_back(server_at(address, std::move(arguments)));
    }
    return all;
  };
  known_ = std::make_unique<Known>(std::move(servers), spread);
}

Client::Client(std::shared_ptr<grpc::ChannelInterface> channel, std::chrono::milliseconds deadline,
               std::string token)
    : Client(deadline, std::move(token)) {
  known_ = std::make_unique<Known>(
      std::vector<std::shared_ptr<Stubs>>{std::make_shared<Stubs>(channel, "")}, nullptr);
}

Client::Client(std::chrono::milliseconds deadline, std::string token)
    : deadline_(deadline), token_(std::move(token)) {
  if (deadline_.count() <= 0) throw std::invalid_argument("the deadline must be positive");
  for (const char c : token_) {  // gRPC ends the process for what a header cannot hold
    if (c <= ' ' || c > '~') throw std::invalid_argument("the token holds a space or is not ASCII");
  }
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

v1::RenderChatResponse Client::render_chat(const std::string& body,
                                           Cancellation* cancellation) const {
  v1::RenderChatRequest request;
  request.set_body(body);
  v1::RenderChatResponse response;
  Call call(*this, cancellation);
  call.unary(
      [&](Stubs& server, auto* context) { return server.chat.Render(context, request, &response); },
      Again::kSafe);
  return response;
}

void Client::complete_chat(const std::string& body, const OnChat& on_message,
                           Cancellation* cancellation) const {
  v1::ChatRequest request;
  request.set_body(body);
  Call call(*this, cancellation);
  bool has_ended = false;
  call.stream<v1::ChatResponse>(
      [&](Stubs& server, auto* context) { return server.chat.Complete(context, request); },
      [&](const v1::ChatResponse& response) {
        has_ended |= response.has_usage();
        on_message(response);
      },
      Again::kNever);
  if (!has_ended) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before the answer did");
  }
}

void Client::create_response(const std::string& body, const OnResponse& on_message,
                             Cancellation* cancellation) const {
  v1::CreateResponseRequest request;
  request.set_body(body);
  Call call(*this, cancellation);
  bool has_ended = false;
  call.stream<v1::ResponseEvents>(
      [&](Stubs& server, auto* context) { return server.responses.Create(context, request); },
      [&](const v1::ResponseEvents& response) {
        has_ended |= !response.response().empty();
        on_message(response);
      },
      Again::kNever);
  if (!has_ended) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before the response did");
  }
}

std::string Client::get_response(const std::string& id, Cancellation* cancellation) const {
  v1::GetResponseRequest request;
  request.set_id(id);
  v1::ResponseJson response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.responses.Get(context, request, &response);
  });
  return response.body();
}

void Client::score(const v1::ScoreRequest& request, const OnScore& on_score,
                   Cancellation* cancellation) const {
  Call call(*this, cancellation);
  const auto open = [&](Stubs& server, auto* context) {
    return server.generation.Score(context, request);
  };
  std::uint32_t next = 0;
  call.stream<v1::ScoreResponse>(
      open,
      [&](const v1::ScoreResponse& response) {
        if (response.index() != next++) {
          throw CallError(grpc::StatusCode::INTERNAL, "the server's scores are out of order");
        }
        on_score(response);
      },
      Again::kSafe);
  if (next != static_cast<std::uint32_t>(request.sequences_size())) {
    throw CallError(grpc::StatusCode::INTERNAL,
                    "the stream ended before every sequence was scored");
  }
}

std::vector<v1::Model> Client::list_models(const v1::ListModelsRequest& request,
                                           Cancellation* cancellation) const {
  v1::ListModelsResponse response;
  Call call(*this, cancellation);
  call.unary(
      [&](Stubs& server, auto* context) { return server.models.List(context, request, &response); },
      Again::kSafe);
  return {std::make_move_iterator(response.mutable_models()->begin()),
          std::make_move_iterator(response.mutable_models()->end())};
}

std::vector<v1::Model> Client::list_models(Cancellation* cancellation) const {
  return list_models(v1::ListModelsRequest(), cancellation);
}

std::vector<v1::Model> Client::list_all_models(Cancellation* cancellation) const {
  v1::ListModelsRequest request;
  request.set_all(true);
  return list_models(request, cancellation);
}

v1::Model Client::get_model(const std::string& name, Cancellation* cancellation) const {
  v1::GetModelRequest request;
  request.set_name(name);
  v1::Model model;
  Call call(*this, cancellation);
  call.unary(
      [&](Stubs& server, auto* context) { return server.models.Get(context, request, &model); },
      Again::kSafe);
  return model;
}

std::vector<std::int32_t> Client::tokenize(const v1::TokenizeRequest& request,
                                           Cancellation* cancellation) const {
  v1::TokenizeResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server,
                 auto* context) { return server.models.Tokenize(context, request, &response); },
             Again::kSafe);
  return {response.ids().begin(), response.ids().end()};
}

std::string Client::detokenize(const v1::DetokenizeRequest& request,
                               Cancellation* cancellation) const {
  v1::DetokenizeResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server,
                 auto* context) { return server.models.Detokenize(context, request, &response); },
             Again::kSafe);
  return response.text();
}

v1::Model Client::load_model(const std::string& name, const std::string& version,
                             Cancellation* cancellation) const {
  v1::LoadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::Model model;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.LoadModel(context, request, &model);
  });
  return model;
}

void Client::unload_model(const std::string& name, const std::string& version,
                          Cancellation* cancellation) const {
  v1::UnloadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::UnloadModelResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.UnloadModel(context, request, &response);
  });
}

v1::Adapter Client::load_adapter(const std::string& name, const std::string& model,
                                 const std::string& model_version,
                                 Cancellation* cancellation) const {
  v1::LoadAdapterRequest request;
  request.set_name(name);
  request.set_model(model);
  request.set_model_version(model_version);
  v1::Adapter adapter;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.LoadAdapter(context, request, &adapter);
  });
  return adapter;
}

void Client::unload_adapter(const std::string& name, const std::string& model,
                            const std::string& model_version, Cancellation* cancellation) const {
  v1::UnloadAdapterRequest request;
  request.set_name(name);
  request.set_model(model);
  request.set_model_version(model_version);
  v1::UnloadAdapterResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.UnloadAdapter(context, request, &response);
  });
}

std::string Client::log_level(Cancellation* cancellation) const {
  v1::LogLevel level;
  Call call(*this, cancellation);
  call.unary(
      [&](Stubs& server, auto* context) { return server.admin.GetLogLevel(context, {}, &level); },
      Again::kSafe);
  return level.level();
}

std::string Client::set_log_level(const std::string& level, Cancellation* cancellation) const {
  v1::LogLevel wanted, set;
  wanted.set_level(level);
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.SetLogLevel(context, wanted, &set);
  });
  return set.level();
}

bool Client::serving(const std::string& service, Cancellation* cancellation) const {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server,
                 auto* context) { return server.health.Check(context, request, &response); },
             Again::kSafe);
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

v1::Values token_values(std::span<const std::int32_t> ids) {
  v1::Values values;
  values.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return values;
}

v1::Values text_values(std::string_view bytes) {
  v1::Values values;
  values.set_text(std::string(bytes));
  return values;
}

v1::Values pixel_tokens(std::span<const std::uint8_t> pixels) {
  v1::Values values;
  values.set_pixels(pixels.data(), pixels.size());
  return values;
}

// Generate, once and until it has gone through.

namespace {

// For a connection between two tries: one that is slower is there for the next.
constexpr std::chrono::milliseconds kConnectPatience{200};

}  // namespace

void Client::read_samples(Call& call, const v1::GenerateRequest& request, const OnChunk& on_chunk,
                          const OnFinish& on_finish, Again again) const {
  const std::uint32_t num_samples = request.has_num_samples() ? request.num_samples() : 1;
  std::set<std::uint32_t> finished;
  const auto open = [&](Stubs& server, auto* context) {
    return server.generation.Generate(context, request);
  };
  call.stream<v1::GenerateResponse>(
      open,
      [&](const v1::GenerateResponse& response) {
        for (const v1::Chunk& chunk : response.chunks()) {
          if (chunk.sample() >= num_samples) {
            throw CallError(grpc::StatusCode::INTERNAL,
                            "the server sent a sample that was not requested");
          }
          if (on_chunk) on_chunk(chunk);
        }
        for (const v1::SampleFinish& finish : response.finished()) {
          if (finish.sample() >= num_samples) {
            throw CallError(grpc::StatusCode::INTERNAL,
                            "the server ended a sample that was not requested");
          }
          finished.insert(finish.sample());
          on_finish(finish);
        }
      },
      again);
  if (finished.size() != num_samples) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before every sample had");
  }
}

bool Client::ask_durable(Call& call, const std::string& session_id) const {
  v1::GetSessionRequest request;
  request.set_id(session_id);
  v1::Session session;
  call.unary(
      [&](Stubs& server, auto* context) { return server.sessions.Get(context, request, &session); },
      Again::kSafe);
  known_->durability.note(session);
  return known_->durability.of(session_id).value_or(false);
}

void Client::generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                      const OnFinish& on_finish, const Repeat& repeat,
                      Cancellation* cancellation) const {
  Call call(*this, cancellation, request.session_id());
  const std::chrono::milliseconds patience = repeat.patience.value_or(retry_);
  std::optional<bool> durable = repeat.durable;
  if (!request.call_id().empty()) durable = true;  // only of such sessions do calls have names
  if (!durable) durable = known_->durability.of(request.session_id());
  if (request.session_id().empty() || patience.count() <= 0) durable = false;
  const auto once = [&] {
    read_samples(call, request, on_chunk, on_finish,
                 request.session_id().empty() ? Again::kSafe : Again::kUnsent);
  };
  // Nothing random is needed, which the system may take a tenth of a millisecond to begin with.
  if (durable == false) return once();

  v1::GenerateRequest again = request;
  if (again.call_id().empty()) {
    again.set_call_id(random_call_id());
    // A server that forgot the call draws all tokens again, some of which were seen: that takes the
    // same seed. A call that its caller named may have its seed from an earlier try.
    if (!again.sampling().has_seed()) again.mutable_sampling()->set_seed(std::random_device{}());
  }
  SeenPositions seen(request.from_position());
  RepeatPauses pauses(patience);
  bool sent = false, finished = false, with_caller = false;
  const auto tell = [&with_caller](const auto& callback, const auto& what) {
    with_caller = true;  // and stays so where it throws
    if (callback) callback(what);
    with_caller = false;
  };
  for (;;) {
    try {
      if (!durable) durable = ask_durable(call, request.session_id());
      if (!*durable) break;
      read_samples(
          call, again,
          [&](const v1::Chunk& chunk) {
            pauses.something_came();
            call.try_all_again();
            if (const v1::Chunk* news = seen.new_part(chunk)) tell(on_chunk, *news);
          },
          [&](const v1::SampleFinish& finish) {
            finished = true;
            tell(on_finish, finish);
          },
          Again::kNever);
      return;
    } catch (const CallError& error) {
      const bool cancelled = cancellation != nullptr && cancellation->cancelled();
      if (with_caller || cancelled || !worth_repeating(error, sent)) throw;
      if (finished) return;  // there is nothing more to come
      // The next server may continue it at once.
      if (!call.go_on()) {
        const auto pause = pauses.next(error);
        if (!pause) throw;
        if (repeat.on_pause) repeat.on_pause({error, pauses.left()});
        call.wait(*pause);
        call.try_all_again();
      }
      sent |= durable.value_or(false) && error.unreached().empty();
    }
    call.connect_again(kConnectPatience);
    again.set_from_position(seen.next());
  }
  once();
}

void Client::generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                      const OnFinish& on_finish, Cancellation* cancellation) const {
  generate(request, on_chunk, on_finish, Repeat(), cancellation);
}

std::vector<v1::SampleFinish> Client::generate(const v1::GenerateRequest& request,
                                               const OnChunk& on_chunk,
                                               Cancellation* cancellation) const {
  std::map<std::uint32_t, v1::SampleFinish> finished;  // by sample index
  generate(
      request, on_chunk,
      [&finished](const v1::SampleFinish& finish) { finished[finish.sample()] = finish; },
      cancellation);
  std::vector<v1::SampleFinish> all;
  for (auto& [sample, finish] : finished) all.push_back(std::move(finish));
  return all;
}

std::vector<Sample> Client::generate(const v1::GenerateRequest& request,
                                     Cancellation* cancellation) const {
  SampleCollector collector;
  const auto finished = generate(
      request, [&collector](const v1::Chunk& chunk) { collector.add(chunk); }, cancellation);
  for (const v1::SampleFinish& finish : finished) collector.finish(finish);
  return collector.take();
}

// Sessions, their copies, and named states.

v1::Session Client::create_session(const std::string& model, std::int64_t max_tokens,
                                   Cancellation* cancellation) const {
  v1::CreateSessionRequest request;
  request.set_model(model);
  request.set_max_tokens(max_tokens);
  return create_session(request, cancellation);
}

v1::Session Client::create_session(const v1::CreateSessionRequest& request,
                                   Cancellation* cancellation) const {
  v1::Session session;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server,
                 auto* context) { return server.sessions.Create(context, request, &session); },
             Again::kSafe);
  known_->durability.note(session);
  return session;
}

v1::Session Client::get_session(const std::string& id, Cancellation* cancellation) const {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  Call call(*this, cancellation, id);
  call.unary(
      [&](Stubs& server, auto* context) { return server.sessions.Get(context, request, &session); },
      Again::kSafe);
  known_->durability.note(session);
  return session;
}

std::vector<v1::Session> Client::list_sessions(const std::string& model,
                                               Cancellation* cancellation) const {
  std::vector<v1::Session> sessions;
  v1::ListSessionsRequest request;
  request.set_model(model);
  request.set_page_size(1000);
  do {
    v1::ListSessionsResponse page;
    Call call(*this, cancellation);
    call.unary(
        [&](Stubs& server, auto* context) { return server.sessions.List(context, request, &page); },
        Again::kSafe);
    for (v1::Session& session : *page.mutable_sessions()) sessions.push_back(std::move(session));
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) {
      throw CallError(grpc::StatusCode::INTERNAL, "the server's list of sessions does not advance");
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

void Client::delete_session(const std::string& id, Cancellation* cancellation) const {
  v1::DeleteSessionRequest request;
  request.set_id(id);
  google::protobuf::Empty nothing;
  Call call(*this, cancellation, id);
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.Delete(context, request, &nothing);
  });
}

std::vector<v1::Session> Client::fork_session(const v1::ForkSessionRequest& request,
                                              Cancellation* cancellation) const {
  v1::ForkSessionResponse response;
  Call call(*this, cancellation, request.id());
  call.unary([&](Stubs& server,
                 auto* context) { return server.sessions.Fork(context, request, &response); },
             Again::kSafe);
  for (const v1::Session& fork : response.sessions()) known_->durability.note(fork);
  return {std::make_move_iterator(response.mutable_sessions()->begin()),
          std::make_move_iterator(response.mutable_sessions()->end())};
}

v1::Session Client::rewind_session(const v1::RewindSessionRequest& request,
                                   Cancellation* cancellation) const {
  v1::Session session;
  Call call(*this, cancellation, request.id());
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.Rewind(context, request, &session);
  });
  known_->durability.note(session);
  return session;
}

void Client::snapshot_session(const v1::SnapshotSessionRequest& request, const OnPiece& on_piece,
                              Cancellation* cancellation) const {
  std::int64_t total = -1, got = 0;
  Call call(*this, cancellation, request.id());
  const auto open = [&](Stubs& server, auto* context) {
    return server.sessions.Snapshot(context, request);
  };
  call.stream<v1::SnapshotChunk>(
      open,
      [&](const v1::SnapshotChunk& chunk) {
        if (total < 0) total = chunk.total_bytes();
        got += static_cast<std::int64_t>(chunk.data().size());
        on_piece(chunk.data(), total);
      },
      Again::kSafe);
  if (got != total) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before the snapshot had");
  }
}

std::string Client::snapshot_session(const v1::SnapshotSessionRequest& request,
                                     Cancellation* cancellation) const {
  std::string snapshot;
  snapshot_session(
      request, [&snapshot](std::string_view piece, std::int64_t) { snapshot += piece; },
      cancellation);
  return snapshot;
}

v1::Session Client::restore_session(v1::RestoreHeader header, std::string_view snapshot,
                                    const OnSent& on_sent, Cancellation* cancellation) const {
  constexpr std::size_t kPieceBytes = 256 << 10;
  header.set_total_bytes(static_cast<std::int64_t>(snapshot.size()));
  v1::Session session;
  Call call(*this, cancellation);
  call.upload(
      [&](Stubs& server, auto* context) { return server.sessions.Restore(context, &session); },
      [&](grpc::ClientWriterInterface<v1::RestoreSessionRequest>& writer) {
        v1::RestoreSessionRequest message;
        *message.mutable_header() = header;
        bool reads = writer.Write(message);
        for (std::size_t at = 0; reads && at < snapshot.size(); at += kPieceBytes) {
          const std::string_view piece = snapshot.substr(at, kPieceBytes);
          message.set_data(piece.data(), piece.size());
          reads = writer.Write(message);
          if (reads && on_sent) on_sent(static_cast<std::int64_t>(piece.size()));
        }
        if (reads) writer.WritesDone();
      });
  known_->durability.note(session);
  return session;
}

void Client::read_history(const v1::ReadHistoryRequest& request, const OnChunk& on_chunk,
                          Cancellation* cancellation) const {
  Call call(*this, cancellation, request.id());
  const auto open = [&](Stubs& server, auto* context) {
    return server.sessions.ReadHistory(context, request);
  };
  call.stream<v1::Chunk>(open, on_chunk, Again::kSafe);
}

v1::NamedState Client::save_state(const v1::SaveStateRequest& request,
                                  Cancellation* cancellation) const {
  v1::NamedState state;
  Call call(*this, cancellation, request.session_id());
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.SaveState(context, request, &state);
  });
  return state;
}

std::vector<v1::NamedState> Client::list_states(const std::string& model,
                                                Cancellation* cancellation) const {
  std::vector<v1::NamedState> states;
  v1::ListStatesRequest request;
  request.set_model(model);
  request.set_page_size(1000);
  do {
    v1::ListStatesResponse page;
    Call call(*this, cancellation);
    call.unary([&](Stubs& server,
                   auto* context) { return server.sessions.ListStates(context, request, &page); },
               Again::kSafe);
    for (v1::NamedState& state : *page.mutable_states()) states.push_back(std::move(state));
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) {
      throw CallError(grpc::StatusCode::INTERNAL, "the server's list of states does not advance");
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return states;
}

void Client::delete_state(const std::string& name, bool is_public,
                          Cancellation* cancellation) const {
  v1::DeleteStateRequest request;
  request.set_name(name);
  request.set_is_public(is_public);
  google::protobuf::Empty nothing;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.DeleteState(context, request, &nothing);
  });
}

Sample& SampleCollector::sample(std::uint32_t index) {
  if (index >= samples_.size()) {
    samples_.resize(index + 1);
    texts_.resize(index + 1);
  }
  return samples_[index];
}

void SampleCollector::add(const v1::Chunk& chunk) {
  Sample& to = sample(chunk.sample());
  const auto log2_prob = [&chunk](int i) -> std::optional<float> {
    if (i < chunk.log2_probs_size()) return chunk.log2_probs(i);
    return std::nullopt;
  };
  if (chunk.source() == v1::VALUE_SOURCE_PROMPT) {
    for (int i = 0; i < chunk.tokens_size(); ++i) {
      to.prompt.push_back(chunk.tokens(i));
      to.prompt_log2_probs.push_back(log2_prob(i));
    }
    return;
  }
  if (to.tokens.empty()) to.first_position = chunk.first_position();
  to.text += texts_[chunk.sample()].add(chunk);
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    to.tokens.push_back(chunk.tokens(i));
    to.log2_probs.push_back(log2_prob(i));
    to.given.push_back(chunk.source() == v1::VALUE_SOURCE_GIVEN);
    to.top.push_back(i < chunk.top_size() ? chunk.top(i) : v1::TopValues());
  }
}

void SampleCollector::finish(const v1::SampleFinish& finish) {
  Sample& to = sample(finish.sample());
  to.finish = finish;
  to.text += texts_[finish.sample()].finish();
}

}  // namespace lintel
