// SPDX-License-Identifier: Apache-2.0
#include "server/app/lintel_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "grpc/health/v1/health.pb.h"
#include "server/anthropic/routes.h"
#include "server/api/kserve/service.h"
#include "server/api/lintel_v1/admin_service.h"
#include "server/api/lintel_v1/answer_grammars.h"
#include "server/api/lintel_v1/chat_generation.h"
#include "server/api/lintel_v1/chat_service.h"
#include "server/api/lintel_v1/generation_service.h"
#include "server/api/lintel_v1/initial_states.h"
#include "server/api/lintel_v1/model_service.h"
#include "server/api/lintel_v1/response_service.h"
#include "server/api/lintel_v1/session_service.h"
#include "server/api/service_context.h"
#include "server/app/maintenance.h"
#include "server/app/memory_plan.h"
#include "server/app/stored_sessions.h"
#include "server/config/flags.h"
#include "server/core/random_bytes.h"
#include "server/core/request_memory.h"
#include "server/core/threads.h"
#include "server/engine/prefix_cache.h"
#include "server/grpc/grpc_calls.h"
#include "server/grpc/introspection.h"
#include "server/grpc/listener.h"
#include "server/grpc/port_guard.h"
#include "server/http/connect/routes.h"
#include "server/http/kserve/routes.h"
#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_listener.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"
#include "server/http/ui/routes.h"
#include "server/metrics/metrics.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/models/model_manager.h"
#include "server/models/model_registry.h"
#include "server/ollama/routes.h"
#include "server/openai/http/routes.h"
#include "server/openai/response_store.h"
#include "server/openai/sealer.h"
#include "server/rpc/rpc.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"
#include "server/sessions/storage/document_storage.h"

namespace lintel {

// HttpServer: all routes over HTTP, on one port.

// Threads: one starts, drains and stops it.
class HttpServer {
 public:
  struct Parts {
    const HttpOptions& options;  // with an address to listen on
    std::span<const RpcService* const> services;
    std::shared_ptr<Certificates> certificates;  // null: plain text
    const BearerTokens* tokens = nullptr;        // null: none is asked for
    std::size_t max_body_bytes = 0;
    HttpCounters& counters;
    RequestMemory& request_memory;
    bool refuses_unknown_members = false;  // of completions
    bool names_by_certificate = false;     // callers without a token
    std::string replica_id = {};           // for every answer's header lintel-replica; empty: none
    std::chrono::milliseconds max_age{0}, max_age_grace{0};  // as ConnectionOptions has them
    std::function<std::string()> unhealthy;                  // as add_health_routes() has it
    const Metrics* metrics = nullptr;                        // likewise
    Sealer::Secret secret{};                                 // of what clients keep sealed
    const std::atomic<bool>& started;                        // false: health alone is answered
  };
  // REQUIRES: the objects that `parts` refers to outlive this one. Throws std::runtime_error if the
  // address cannot be listened on.
  explicit HttpServer(Parts parts)
      : calls_(parts.services, &bodies_, &parts.request_memory, parts.names_by_certificate),
        bodies_(parts.options.memory_bytes, parts.counters),
        listener_({parts.options, routes_, std::move(parts.certificates), parts.tokens,
                   parts.max_body_bytes, parts.counters, std::move(parts.replica_id), parts.max_age,
                   parts.max_age_grace, /*uses_reserve=*/false, &parts.started}) {
    add_connect_routes(routes_, calls_, bodies_);
    add_kserve_routes(routes_, calls_, bodies_);
    add_openai_routes(routes_, calls_, bodies_,
                      {parts.options.chat_reasoning_field, parts.refuses_unknown_members});
    add_ollama_routes(routes_, calls_, bodies_, parts.refuses_unknown_members);
    add_anthropic_routes(routes_, calls_, bodies_, parts.secret);
    add_page_routes(routes_);
    add_health_routes(routes_, bodies_, std::move(parts.unhealthy), parts.metrics);
  }

  int port() const { return listener_.port(); }
  const HttpRoutes& routes() const { return routes_; }
  void start() { listener_.start(); }
  // Takes no more connections; those that are open close with the answers that they wait for.
  void begin_drain() {
    listener_.begin_drain();
    bodies_.begin_drain();
  }
  // Waits until they have, at most this long.
  void flush(std::chrono::nanoseconds timeout) { listener_.wait_until_closed(timeout); }
  // Ends all connections, which cancels their calls. Returns whether these have ended within
  // `timeout`. If not, the object must not be destroyed.
  bool stop(std::chrono::nanoseconds timeout) {
    listener_.stop();
    return bodies_.stop(timeout) && calls_.stop(timeout);
  }

 private:
  HttpRoutes routes_;
  HttpCalls calls_;
  BodyWork bodies_;
  HttpListener listener_;
};

namespace {

// The flush of a drain takes at least this long, however short its timeout is.
constexpr std::chrono::milliseconds kLeastFlushTime{200};
// Calls that the flush leaves, such as Health.Watch, get this long to see NOT_SERVING.
constexpr std::chrono::milliseconds kShutdownTime{250};
// The process ends after this long even if calls are left because of a defect.
constexpr std::chrono::seconds kLastWait{30};
constexpr const char* kServices[] = {"lintel.v1.GenerationService",   "lintel.v1.ChatService",
                                     "lintel.v1.ResponseService",     "lintel.v1.SessionService",
                                     "lintel.v1.ModelService",        "lintel.v1.AdminService",
                                     "inference.GRPCInferenceService"};

std::vector<std::string> reflected_services(const ServerOptions& options) {
  std::vector<std::string> services(std::begin(kServices), std::end(kServices));
  for (const char* const grpcs : {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                  "grpc.reflection.v1alpha.ServerReflection"}) {
    services.emplace_back(grpcs);
  }
  if (options.monitoring.channelz) services.emplace_back("grpc.channelz.v1.Channelz");
  return services;
}

void log_thread_failure(const char* thread, const char* what) noexcept {
  try {
    spdlog::error("the thread {} caught an exception and continues: {}", thread, what);
  } catch (...) {  // the metric has it
  }
}

// Throws std::runtime_error. Null: no token is asked for.
std::shared_ptr<BearerTokens> read_tokens(const SecurityOptions& security) {
  if (security.auth_tokens.empty()) return nullptr;
  return std::make_shared<BearerTokens>(security.auth_tokens);
}

std::shared_ptr<Certificates> read_certificates(const SecurityOptions& security) {
  if (!security.tls()) return nullptr;
  return std::make_shared<Certificates>(
      CertificatePaths{security.tls_cert, security.tls_key, security.tls_client_ca});
}

// Null: no session outlives the server.
std::unique_ptr<StoredSessions> open_store(const ServerOptions& options, SessionManager& store,
                                           PrefixCache& prefixes, const ModelRegistry& models,
                                           const Clock& clock) {
  if (options.durable.store.empty()) return nullptr;
  return std::make_unique<StoredSessions>(options, store, prefixes, models, clock);
}

// Roles of callers where no token identifies them. Callers that can reach a port of this machine
// have all roles; others do not have those of an operator.
Roles anonymous_roles(const ServerOptions& options) {
  Roles roles = {Role::kGenerate, Role::kScore};
  const bool all_local =
      options.listen.is_local() && (!options.http.listen || options.http.listen->is_local());
  if (!options.security.tls() && all_local) roles.add(Role::kAdmin);
  return roles;
}

}  // namespace

// Members stand in the order of construction: services last, so that they are destroyed first.
struct LintelServer::Impl {
  // limit: of the memory that choose_sizes() has divided.
  Impl(const ServerOptions& options, const MemoryLimit& limit, const Clock& clock,
       const GivenModels& given)
      : certificates(read_certificates(options.security)),
        tokens(read_tokens(options.security)),
        credentials(port_credentials(
            certificates, tokens,
            options.listen.unix_path.empty() ? LocalPort::kTcp : LocalPort::kUnixSocket, counters)),
        quotas(options.identity, clock),
        request_memory({.bytes = options.request_memory_bytes,
                        .bytes_per_identity = options.sessions.bytes_per_owner}),
        gate{tokens.get(),
             !options.security.tls_client_ca.empty(),
             options.security.admin_certificates,
             anonymous_roles(options),
             quotas,
             counters,
             clock,
             static_cast<std::size_t>(options.connections.max_message_bytes),
             options.replica_id,
             &request_memory},
        store(options.sessions, clock),
        prefixes(options.prefixes, store),
        stored(open_store(options, store, prefixes, registry, clock)),
        memory_documents(response_bytes(options, limit), clock,
                         options.durable.identity_stored_bytes),
        responses(stored == nullptr ? memory_documents : stored->documents(), clock,
                  {.expire = options.durable.response_expire,
                   .resume = options.durable.response_resume,
                   .owner_bytes = options.durable.identity_stored_bytes}),
        manager(options.models, registry, store, clock,
                options.prefixes.memory_bytes > 0 ? &prefixes : nullptr),
        health(calls, clock, options.durable.store_broken_timeout_ms),
        context{registry,
                manager,
                store,
                states,
                prefixes,
                calls,
                gate,
                clock,
                options.streaming,
                health,
                stored == nullptr ? nullptr : &stored->sessions(),
                stored == nullptr ? nullptr : &stored->chat_states(),
                options.refuses_unknown_members,
                options.model_aliases,
                options.late_system},
        generation(context, grammars),
        chat_generation(context, grammars),
        chat(context, chat_generation),
        response(context, chat_generation, responses),
        session(context),
        model(context),
        admin(context),
        inference(context),
        reflection(reflected_services(options)),
        metrics(registry, manager, store, prefixes, calls, counters, context.persistent_sessions,
                context.chat_states,
                stored == nullptr ? std::chrono::duration<double>() : stored->recovery_time(),
                options.http.listen ? &http_counters : nullptr, &request_memory),
        maintenance({certificates.get(), tokens.get(), store, calls, counters, stored.get(),
                     &responses, &manager},
                    clock) {
    if (const auto& address = options.monitoring.metrics_listen) {
      // Created before models are loaded, so that a port that is taken is reported at once.
      endpoint = std::make_unique<MetricsEndpoint>(
          *address, metrics, [this] { return health.is_alive(); },
          [this] { return started && health.is_ready(); }, options.http.allowed_hosts);
      spdlog::info("metrics on http://{}/metrics", address->to_string(endpoint->port()));
    }
    if (options.http.listen) open_http(options);  // whose health says that models are being loaded
    if (stored != nullptr) {
      manager.when_unused([this](const Transformer& unused) { stored->store_idle_states(unused); });
    }
    manager.load_at_start();
    if (stored != nullptr) {  // whose sessions are continued by models of the same numerics
      for (const SharedModel& loaded : registry.ready()) (void)loaded->numerics();
    }
    for (const auto& [name, transformer] : given) manager.serve(name, transformer);
    plan(options, limit, given);
    if (!options.initial_states.directory.empty()) {
      load_initial_states(options.initial_states.directory,
                          options.initial_states.accept_other_numerics, context);
    }
  }

  // Divides the memory, now that the models of the start are there, and logs how. No call has been
  // admitted yet. Throws std::runtime_error if sessions have too little.
  void plan(const ServerOptions& options, const MemoryLimit& limit, const GivenModels& given) {
    LoadedModels models{.weight_bytes = manager.memory().used_bytes()};
    for (const auto& [name, transformer] : given)
      models.weight_bytes += transformer->weight_bytes();
    for (const SharedModel& loaded : registry.ready()) {
      ++models.count;
      models.worker_bytes += loaded->worker_bytes;
    }
    const MemoryPlan plan = plan_memory(options, limit, models);
    const auto level = plan.is_too_small ? spdlog::level::err : spdlog::level::info;
    for (const std::string& line : plan.table()) spdlog::log(level, "{}", line);
    if (plan.is_too_small) {
      throw std::runtime_error("--session-memory auto has " +
                               format_bytes(plan.session_memory_bytes) + ", and " +
                               format_bytes(MemoryPlan::kLeastSessionBytes) +
                               " are required: raise --memory-limit (" + format_bytes(limit.bytes) +
                               ", " + limit.source + "), or lower what the table of the log has");
    }
    if (limit.bytes > 0 && plan.total_bytes() > plan.most_bytes()) {
      spdlog::warn("memory: the sum is more than 0.9 of the limit, by the sizes that flags set");
    }
    manager.set_memory(plan.model_memory_bytes);
    store.set_memory(plan.session_memory_bytes);
    prefixes.set_memory(plan.prefix_memory_bytes);
    manager.check_sessions();
  }

  void open_http(const ServerOptions& options) {
    const HttpServer::Parts parts{
        .options = options.http,
        .services = services,
        .certificates = certificates,
        .tokens = tokens.get(),
        .max_body_bytes = static_cast<std::size_t>(options.connections.max_message_bytes),
        .counters = http_counters,
        .request_memory = request_memory,
        .refuses_unknown_members = options.refuses_unknown_members,
        .names_by_certificate = gate.identify_by_certificate,
        .replica_id = options.replica_id,
        .max_age = options.connections.max_age_ms,
        .max_age_grace = options.connections.max_age_grace_ms,
        .unhealthy = [this] { return unhealthy(); },
        .metrics = options.monitoring.metrics_listen ? nullptr : &metrics,
        .secret = sealing_secret(),
        .started = started};
    try {
      http = std::make_unique<HttpServer>(parts);
    } catch (const std::system_error&) {  // a thread is missing
      throw;
    } catch (const std::runtime_error& error) {
      if (!options.http_is_default) throw;
      spdlog::warn(
          "HTTP is off: {}; --http-listen 127.0.0.1:0 takes a free port, --http-listen off none",
          error.what());
      return;
    }
    http->start();
  }

  // Why no request can be served now, without names; empty: some can.
  std::string unhealthy() const {
    if (calls.closed()) return "the server is shutting down";
    if (!health.is_ready()) return "the session store is broken";
    if (!started) return "the server starts: its models are being loaded";
    if (manager.loads_on_request()) return "";
    std::string why;
    for (const ModelRegistry::Entry& entry : registry.index()) {
      if (entry.state == ModelState::kReady) return "";
      if (entry.state == ModelState::kLoading) {
        why = "a model is being loaded" + (entry.reason.empty() ? "" : ": " + entry.reason);
      } else if (entry.failed && why.empty()) {
        why = "no model could be loaded";
      }
    }
    return why;
  }

  // The session store's, so that what was sealed outlives the server; where that cannot be read,
  // another one.
  Sealer::Secret sealing_secret() {
    Sealer::Secret secret{};
    DocumentStorage& documents = stored == nullptr ? memory_documents : stored->documents();
    if (documents.secret(secret) != SessionError::kNone) fill_with_random(secret);
    return secret;
  }

  void serve(const RpcService& service, grpc::ServerBuilder& builder) {
    builder.RegisterService(&grpc_services.emplace_back(service));
  }

  const std::shared_ptr<Certificates> certificates;  // null: plain text
  const std::shared_ptr<BearerTokens> tokens;        // null: none is asked for
  RequestCounters counters;
  const std::shared_ptr<grpc::ServerCredentials> credentials;
  Quotas quotas;
  RequestMemory request_memory;
  const CallPolicy gate;

  SessionManager store;
  NamedStates states;
  PrefixCache prefixes;  // outlives the models' schedulers
  ModelRegistry registry;
  // Opened before a model is loaded, which takes longer; closed when no call runs and no model is
  // left to run one.
  const std::unique_ptr<StoredSessions> stored;
  MemoryDocuments memory_documents;  // without a store
  ResponseStore responses;
  ModelManager manager;
  ActiveCalls calls;
  ServerHealth health;
  ServiceContext context;
  AnswerGrammars grammars;
  GenerationService generation;
  ChatGeneration chat_generation;
  ChatService chat;
  ResponseService response;
  SessionService session;
  ModelService model;
  AdminService admin;
  InferenceService inference;
  ReflectionService reflection;
  ChannelzService channelz;
  // The services that HTTP has, too, and those over gRPC.
  const std::array<const RpcService*, 7> services{&generation, &chat,  &response, &session,
                                                  &model,      &admin, &inference};
  std::deque<GrpcService> grpc_services;
  HttpCounters http_counters;
  const Metrics metrics;
  Maintenance maintenance;
  std::atomic<bool> started{false};  // it serves all of its calls
  std::unique_ptr<MetricsEndpoint> endpoint;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<Listener> listener;  // hands connections to the acceptor
  std::unique_ptr<HttpServer> http;    // null: no HTTP, or its default address was taken
};

namespace {

// Returns whether gRPC has ended all its calls, which it waits for without a bound of its own. A
// server that has not is used by a thread from then on, and must not be freed.
bool shut_down(grpc::Server& server) {
  const auto over = std::make_shared<std::promise<void>>();
  std::thread waiting([&server, over] {
    server.Shutdown(std::chrono::system_clock::now() + kShutdownTime);
    server.Wait();
    over->set_value();
  });
  if (over->get_future().wait_for(kLastWait) == std::future_status::ready) {
    waiting.join();
    return true;
  }
  waiting.detach();
  return false;
}

}  // namespace

namespace {

ServerOptions with_sizes(ServerOptions options, const MemoryLimit& limit) {
  choose_sizes(options, limit);
  return options;
}

}  // namespace

LintelServer::LintelServer(const ServerOptions& options, const Clock& clock,
                           const GivenModels& given)
    : limit_(memory_limit_of(options)),
      options_(with_sizes(options, limit_)),
      impl_(std::make_unique<Impl>(options_, limit_, clock, given)) {}

LintelServer::~LintelServer() { stop(); }

void LintelServer::start() {
  ThreadFailures::of_process().log_with(log_thread_failure);
  // A switch of the whole process, read by every server built afterwards.
  grpc::EnableDefaultHealthCheckService(true);
  // Links the descriptor of the health protocol in, for reflection.
  grpc::health::v1::HealthCheckRequest::descriptor();

  grpc::ServerBuilder builder;
  set_connection_options(options_.connections, builder);
  impl_->listener =
      std::make_unique<Listener>(options_.listen, options_.connections.keepalive_timeout_ms);
  port_ = impl_->listener->port();
  impl_->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, impl_->credentials);
  for (const RpcService* const service : impl_->services) impl_->serve(*service, builder);
  impl_->serve(impl_->reflection, builder);
  if (options_.monitoring.channelz) impl_->serve(impl_->channelz, builder);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr) throw std::runtime_error("gRPC cannot be started");
  report_health();
  impl_->listener->start([&acceptor = *impl_->acceptor](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor.HandleNewConnection(&connection);
  });
  impl_->maintenance.start();
  impl_->started = true;
  if (impl_->http != nullptr) spdlog::info("HTTP on {}", http_url());
}

void LintelServer::report_health() {
  grpc::HealthCheckServiceInterface* const health = impl_->server->GetHealthCheckService();
  for (const char* const service : kServices) health->SetServingStatus(service, true);
  health->SetServingStatus("", true);
  impl_->manager.tell_readiness([this, health](const std::string& name, bool ready) {
    health->SetServingStatus("model/" + name, ready && impl_->health.is_ready());
    // A drain that came meanwhile, or a broken store, wins.
    if (!impl_->health.is_ready()) health->SetServingStatus("model/" + name, false);
  });
  if (impl_->stored != nullptr) {
    impl_->stored->when_broken([this, health] {
      impl_->health.note_broken_store();
      health->SetServingStatus(false);
    });
  }
}

int LintelServer::metrics_port() const { return impl_->endpoint->port(); }

bool LintelServer::serves_http() const { return impl_->http != nullptr; }

int LintelServer::http_port() const { return impl_->http->port(); }

const HttpRoutes& LintelServer::http_routes() const { return impl_->http->routes(); }

std::string LintelServer::http_address() const {
  return options_.http.listen->to_string(http_port());
}

std::string LintelServer::http_url() const {
  return (options_.security.tls() ? "https://" : "http://") + http_address();
}

std::string LintelServer::address() const { return options_.listen.to_string(port_); }

void LintelServer::begin_drain() {
  impl_->calls.close();
  if (impl_->http != nullptr) impl_->http->begin_drain();
  if (impl_->server != nullptr) impl_->server->GetHealthCheckService()->SetServingStatus(false);
}

bool LintelServer::drain(std::chrono::nanoseconds timeout) {
  begin_drain();
  const auto flush =
      std::clamp<std::chrono::nanoseconds>(timeout / 4, kLeastFlushTime, 2 * kFlushTime);
  timeout = std::max<std::chrono::nanoseconds>(timeout - flush, std::chrono::nanoseconds(0));
  const auto handover =
      std::min<std::chrono::nanoseconds>(handover_after(options_.durable), timeout);
  bool all_ended = impl_->calls.wait_until_none(handover);
  if (!all_ended && handover < timeout) {
    if (impl_->stored != nullptr) {
      spdlog::info("{} streams still run: those that can be repeated are handed over",
                   impl_->calls.count());
      impl_->stored->sessions().hand_over();
    }
    all_ended = impl_->calls.wait_until_none(timeout - handover);
  }
  if (!all_ended) spdlog::warn("{} streams did not end in time", impl_->calls.count());
  stop(flush);
  return all_ended;
}

void LintelServer::stop() { stop(2 * kFlushTime); }

void LintelServer::stop(std::chrono::nanoseconds flush) {
  if (std::exchange(stopped_, true)) return;
  impl_->maintenance.stop();
  begin_drain();
  // Everything accepted is answered: loads and drains, then the schedulers end what runs, and the
  // streams flush.
  impl_->manager.stop();
  for (const SharedModel& model : impl_->registry.all()) model->scheduler->stop();
  impl_->calls.wait_until_none(flush / 2);
  if (impl_->http != nullptr) impl_->http->flush(flush / 2);
  if (impl_->listener != nullptr) impl_->listener->stop();
  // The last streams, which the shutdown has cancelled, end now.
  if ((impl_->server == nullptr || shut_down(*impl_->server)) &&
      (impl_->http == nullptr || impl_->http->stop(kLastWait)) &&
      impl_->calls.wait_until_none(kLastWait, /*also_held=*/true)) {
    if (impl_->stored != nullptr) impl_->stored->store_idle_states();
    return;
  }
  spdlog::error("{} streams do not end: what they hold is left to the end of the process",
                impl_->calls.count());
  impl_.release();
}

SessionManager& LintelServer::store() { return impl_->store; }

Scheduler& LintelServer::scheduler(const std::string& model) {
  return *impl_->registry.find(model)->scheduler;
}

}  // namespace lintel
