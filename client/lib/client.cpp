#include "client/lib/client.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "client/lib/address.h"
#include "client/lib/connect_failure.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace lintel {
struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::ChannelInterface>& c)
      : channel(c), generation(c), sessions(c), models(c), admin(c), health(c) {}
  const std::shared_ptr<grpc::ChannelInterface> channel;
  v1::GenerationService::Stub generation;
  v1::SessionService::Stub sessions;
  v1::ModelService::Stub models;
  v1::AdminService::Stub admin;
  grpc::health::v1::Health::Stub health;
};

// One call: its deadline, and what happens when it fails.
class Client::Call {
 public:
  Call(const Client& client, Cancellation* cancellation)
      : client_(client), cancellation_(cancellation) {
    // Longer ones overflow gRPC's clock and would have passed already.
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    deadline_ = std::chrono::system_clock::now() + std::min(client.deadline_, kLongest);
  }

  // `method(context)` calls and returns the status.
  template <typename Method>
  void unary(const Method& method) {
    for (bool again = false;; again = true) {
      Try once(*this);
      if (check(method(&once.context), again)) return;
    }
  }

  // `open(context)` starts a server stream, which is read to its end. If `on_message` throws, the
  // call is cancelled on the server and its status awaited before the exception goes on: a call is
  // never left half read.
  template <typename Message, typename Open, typename OnMessage>
  void stream(const Open& open, const OnMessage& on_message) {
    for (bool again = false;; again = true) {
      Try once(*this);
      const auto reader = open(&once.context);
      Message message;
      try {
        while (reader->Read(&message)) on_message(message);
      } catch (...) {
        once.context.TryCancel();
        while (reader->Read(&message)) {
        }
        reader->Finish();
        throw;
      }
      if (check(reader->Finish(), again)) return;
    }
  }

 private:
  // The context of a try: deadline and token set, cancellation attached.
  struct Try {
    explicit Try(const Call& call) : attachment(call.cancellation_, context) {
      context.set_deadline(call.deadline_);
      const std::string& token = call.client_.token_;
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    }
    grpc::ClientContext context;
    Cancellation::Attachment attachment;  // after context: it goes first
  };

  // True: done. False: to be tried again, which is safe because not a byte was sent.
  bool check(const grpc::Status& status, bool tried_again) const {
    if (status.ok()) return true;
    const auto failure = connect_failure(status, client_.encrypted_);
    if (!failure) throw CallError(status);
    const bool cancelled = cancellation_ != nullptr && cancellation_->cancelled();
    if (failure->odd && !tried_again && !cancelled) {
      connect_again();
      return false;
    }
    if (client_.address_.empty()) throw CallError(status);
    throw CallError(status, client_.address_, failure->reason, failure->hint);
  }

  // Without gRPC's pause of a second after a failure.
  void connect_again() const {
    grpc::ChannelInterface& channel = *client_.stubs_->channel;
    if (auto* const real = dynamic_cast<grpc::Channel*>(&channel)) {
      grpc::experimental::ChannelResetConnectionBackoff(real);
    }
    channel.WaitForConnected(
        std::min(deadline_, std::chrono::system_clock::now() + std::chrono::seconds(1)));
  }

  const Client& client_;
  Cancellation* const cancellation_;
  std::chrono::system_clock::time_point deadline_;
};

Client::Client(const Options& options)
    : Client(make_channel(full_address(options.address), options.tls,
                          /*sends_token=*/!options.token.empty(),
                          options.proxy.empty() ? "" : proxy_address(options.proxy)),
             options.deadline, options.token) {
  address_ = full_address(options.address);
  encrypted_ = options.tls.enabled();
}

Client::Client(std::shared_ptr<grpc::ChannelInterface> channel, std::chrono::milliseconds deadline,
               std::string token)
    : stubs_(std::make_unique<Stubs>(channel)), deadline_(deadline), token_(std::move(token)) {
  if (deadline_.count() <= 0) throw std::invalid_argument("the deadline must be positive");
  for (const char c : token_) {  // gRPC ends the process for what a header cannot hold
    if (c <= ' ' || c > '~') throw std::invalid_argument("the token holds a space or is not ASCII");
  }
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

void Client::generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                      const OnFinish& on_finish, Cancellation* cancellation) const {
  const std::uint32_t num_samples = request.has_num_samples() ? request.num_samples() : 1;
  std::set<std::uint32_t> finished;
  Call call(*this, cancellation);
  const auto open = [&](auto* context) { return stubs_->generation.Generate(context, request); };
  call.stream<v1::GenerateResponse>(open, [&](const v1::GenerateResponse& response) {
    for (const v1::Chunk& chunk : response.chunks()) {
      if (chunk.sample() >= num_samples) {
        throw CallError(grpc::StatusCode::INTERNAL, "the server sent a sample nobody asked for");
      }
      if (on_chunk) on_chunk(chunk);
    }
    for (const v1::SampleFinish& finish : response.finished()) {
      if (finish.sample() >= num_samples) {
        throw CallError(grpc::StatusCode::INTERNAL, "the server ended a sample nobody asked for");
      }
      finished.insert(finish.sample());
      on_finish(finish);
    }
  });
  if (finished.size() != num_samples) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before every sample had");
  }
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

void Client::score(const v1::ScoreRequest& request, const OnScore& on_score,
                   Cancellation* cancellation) const {
  Call call(*this, cancellation);
  const auto open = [&](auto* context) { return stubs_->generation.Score(context, request); };
  std::uint32_t next = 0;
  call.stream<v1::ScoreResponse>(open, [&](const v1::ScoreResponse& response) {
    if (response.index() != next++) {
      throw CallError(grpc::StatusCode::INTERNAL, "the server's scores are out of order");
    }
    on_score(response);
  });
  if (next != static_cast<std::uint32_t>(request.sequences_size())) {
    throw CallError(grpc::StatusCode::INTERNAL,
                    "the stream ended before every sequence was scored");
  }
}

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
  call.unary([&](auto* context) { return stubs_->sessions.Create(context, request, &session); });
  return session;
}

v1::Session Client::get_session(const std::string& id, Cancellation* cancellation) const {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->sessions.Get(context, request, &session); });
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
    call.unary([&](auto* context) { return stubs_->sessions.List(context, request, &page); });
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
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->sessions.Delete(context, request, &nothing); });
}

std::vector<v1::Model> Client::list_models(const v1::ListModelsRequest& request,
                                           Cancellation* cancellation) const {
  v1::ListModelsResponse response;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->models.List(context, request, &response); });
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
  call.unary([&](auto* context) { return stubs_->models.Get(context, request, &model); });
  return model;
}

v1::Model Client::load_model(const std::string& name, const std::string& version,
                             Cancellation* cancellation) const {
  v1::LoadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::Model model;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.LoadModel(context, request, &model); });
  return model;
}

void Client::unload_model(const std::string& name, const std::string& version,
                          Cancellation* cancellation) const {
  v1::UnloadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::UnloadModelResponse response;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.UnloadModel(context, request, &response); });
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
  call.unary([&](auto* context) { return stubs_->admin.LoadAdapter(context, request, &adapter); });
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
  call.unary(
      [&](auto* context) { return stubs_->admin.UnloadAdapter(context, request, &response); });
}

std::string Client::log_level(Cancellation* cancellation) const {
  v1::LogLevel level;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.GetLogLevel(context, {}, &level); });
  return level.level();
}

std::string Client::set_log_level(const std::string& level, Cancellation* cancellation) const {
  v1::LogLevel wanted, set;
  wanted.set_level(level);
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.SetLogLevel(context, wanted, &set); });
  return set.level();
}

bool Client::serving(const std::string& service, Cancellation* cancellation) const {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->health.Check(context, request, &response); });
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

v1::Values pixel_values(std::span<const std::uint8_t> pixels) {
  v1::Values values;
  values.set_pixels(pixels.data(), pixels.size());
  return values;
}

}  // namespace lintel
