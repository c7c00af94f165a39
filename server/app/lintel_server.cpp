#include "server/app/lintel_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <malloc.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <utility>

#include "grpc/health/v1/health.pb.h"
#include "model/network/model_memory.h"
#include "server/auth/certificates.h"
#include "server/http/metrics.h"
#include "server/http/metrics_endpoint.h"
#include "server/kserve/service.h"
#include "server/models/model_budget.h"
#include "server/models/model_manager.h"
#include "server/models/model_registry.h"
#include "server/models/model_repository.h"
#include "server/port/channelz_service.h"
#include "server/port/listener.h"
#include "server/port/port_credentials.h"
#include "server/port/reflection_service.h"
#include "server/requests/service_context.h"
#include "server/v1/admin_service.h"
#include "server/v1/generation_service.h"
#include "server/v1/model_service.h"
#include "server/v1/session_service.h"

namespace lintel {
namespace {

// After streams were ended, for their last messages to go out.
constexpr std::chrono::milliseconds kFlushTime{1000};
// What is left then, Health.Watch for one, gets this long to see NOT_SERVING.
constexpr std::chrono::milliseconds kShutdownTime{250};
// And then whatever is still there, for a fault of ours: a process that is to end ends.
constexpr std::chrono::seconds kLastWait{30};
// How often the housekeeping looks at files and idle sessions.
constexpr std::chrono::milliseconds kHousekeepingInterval{250};

// So long without a call, memory that calls left free goes back to the system; and every so often
// while none comes.
constexpr int kIdleIntervals = 4;
constexpr int kLongIdleIntervals = 40;

constexpr const char* kServices[] = {"lintel.v1.GenerationService", "lintel.v1.SessionService",
                                     "lintel.v1.ModelService", "lintel.v1.AdminService",
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

// What callers may do where no token tells them apart. Who can reach a port of this machine is
// trusted with everything; others are not given what only an operator needs.
Roles anonymous_roles(const ServerOptions& options) {
  Roles roles = {Role::kGenerate, Role::kScore};
  if (!options.security.tls() && options.listen.is_local()) roles.add(Role::kAdmin);
  return roles;
}

// The allocator keeps what many streams at once had needed, tens of megabytes scattered in its
// heap, until it is told.
void give_back_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(/*pad=*/0);
#endif
}

}  // namespace

// In the order of construction: services last, so that they go first.
struct LintelServer::Impl {
  Impl(const ServerOptions& options, std::vector<NamedTransformer> models, const Clock& clock)
      : certificates(read_certificates(options.security)),
        tokens(read_tokens(options.security)),
        credentials(port_credentials(
            certificates, tokens,
            options.listen.unix_path.empty() ? LocalPort::kTcp : LocalPort::kUnixSocket, counters)),
        quotas(options.identity, clock),
        gate{tokens.get(),
             !options.security.tls_client_ca.empty(),
             options.security.admin_certificates,
             anonymous_roles(options),
             quotas,
             counters,
             clock,
             static_cast<std::size_t>(options.connections.max_message_bytes)},
        store(options.sessions, clock),
        budget(std::make_shared<ModelBudget>(options.models.memory_bytes)),
        manager(options.models, registry, store, budget, clock),
        context{registry, manager, store, calls, gate, clock, options.streaming},
        generation(context),
        session(context),
        model(context),
        admin(context),
        inference(context),
        reflection(reflected_services(options)),
        metrics(registry, *budget, store, calls, counters) {
    for (NamedTransformer& each : models) {
      // Counted whatever the bound is: it is loaded already.
      const std::size_t bytes = each.resident_bytes;
      budget->take(bytes);
      each.transformer = counted(std::move(each.transformer), ModelReservation(budget, bytes));
      registry.add(serve_model(options.models, std::move(each), clock));
    }
  }

  const std::shared_ptr<Certificates> certificates;  // null: plain text
  const std::shared_ptr<BearerTokens> tokens;        // null: none is asked for
  RequestCounters counters;
  const std::shared_ptr<grpc::ServerCredentials> credentials;
  Quotas quotas;
  const CallGate gate;

  SessionStore store;
  ModelRegistry registry;
  const std::shared_ptr<ModelBudget> budget;
  ModelManager manager;
  ActiveCalls calls;
  ServiceContext context;
  GenerationService generation;
  SessionService session;
  ModelService model;
  AdminService admin;
  InferenceService inference;
  ReflectionService reflection;
  ChannelzService channelz;
  const Metrics metrics;
  std::unique_ptr<MetricsEndpoint> endpoint;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<Listener> listener;  // hands connections to the acceptor
};

namespace {

// The directories to load at the start.
struct Directory {
  std::string name;
  std::int64_t version = 1;
  std::filesystem::path path;
};

std::vector<Directory> directories_to_load(const ServerOptions& options) {
  std::vector<Directory> directories;
  for (const auto& model : options.models.directories)
    directories.push_back({model.name, 1, model.path});
  const ModelRepository repository(options.models.repository);
  std::vector<std::string> names = options.models.load;
  if (std::ranges::find(names, "*") != names.end()) {
    names = repository.names();
    for (const auto& model : options.models.directories) {
      if (std::ranges::find(names, model.name) == names.end()) continue;
      throw ModelError("--load-model '*': model " + model.name + " of " +
                       options.models.repository.string() + " is given by --model, too");
    }
  }
  for (const std::string& name : names) {
    const std::vector<ModelRepository::Version> versions = repository.versions(name);
    if (versions.empty()) {
      throw ModelError("--load-model " + name + ": no such model in " +
                       options.models.repository.string());
    }
    directories.push_back({name, versions.back().version, versions.back().path});
  }
  return directories;
}

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

std::vector<NamedTransformer> load_models(const ServerOptions& options) {
  std::vector<NamedTransformer> models;
  std::size_t used_bytes = 0;
  for (const Directory& directory : directories_to_load(options)) {
    const ModelMemory memory = measure_model(directory.path, transformer_options(options.models));
    const std::size_t limit = options.models.memory_bytes;
    if (limit != 0 && memory.peak_bytes() > limit - std::min(used_bytes, limit)) {
      throw ModelError("model " + directory.name + " needs " + std::to_string(memory.peak_bytes()) +
                       " bytes while it is loaded and " +
                       std::to_string(limit - std::min(used_bytes, limit)) + " of --model-memory " +
                       std::to_string(limit) + " are left");
    }
    models.push_back(load_model(options.models, options.sessions, directory.name, directory.version,
                                directory.path));
    models.back().resident_bytes = memory.resident_bytes;
    used_bytes += memory.resident_bytes;
  }
  if (!models.empty() && !options.models.weight_type_given &&
      options.models.weight_type != WeightType::kInt8) {
    spdlog::info("weights are {}: --weight-type int8 is 1.5 to 3.7 times faster at equal bits/dim",
                 to_string(options.models.weight_type));
  }
  return models;
}

LintelServer::LintelServer(const ServerOptions& options, std::vector<NamedTransformer> models,
                           const Clock& clock)
    : options_(options), impl_(std::make_unique<Impl>(options_, std::move(models), clock)) {}

LintelServer::~LintelServer() { stop(); }

void LintelServer::start() {
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
  builder.RegisterService(&impl_->generation);
  builder.RegisterService(&impl_->session);
  builder.RegisterService(&impl_->model);
  builder.RegisterService(&impl_->admin);
  builder.RegisterService(&impl_->inference);
  builder.RegisterService(&impl_->reflection);
  if (options_.monitoring.channelz) builder.RegisterService(&impl_->channelz);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr) throw std::runtime_error("gRPC cannot be started");
  grpc::HealthCheckServiceInterface* const health = impl_->server->GetHealthCheckService();
  for (const char* const service : kServices) health->SetServingStatus(service, true);
  health->SetServingStatus("", true);
  impl_->manager.listen([this, health](const std::string& name, bool ready) {
    health->SetServingStatus("model/" + name, ready);
    // Also when the drain began meanwhile.
    if (impl_->calls.closed()) health->SetServingStatus("model/" + name, false);
  });
  if (const auto& address = options_.monitoring.metrics_listen) {
    impl_->endpoint = std::make_unique<MetricsEndpoint>(
        *address, impl_->metrics, [&calls = impl_->calls] { return !calls.closed(); });
    spdlog::info("metrics on http://{}/metrics", address->to_string(metrics_port()));
  }
  impl_->listener->start([&acceptor = *impl_->acceptor](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor.HandleNewConnection(&connection);
  });
  housekeeping_ = std::thread([this] { keep_house(); });
}

int LintelServer::metrics_port() const { return impl_->endpoint->port(); }

std::string LintelServer::address() const { return options_.listen.to_string(port_); }

void LintelServer::keep_house() {
  const std::chrono::milliseconds idle_timeout = options_.sessions.idle_timeout;
  const std::chrono::milliseconds eviction_interval = std::clamp<std::chrono::milliseconds>(
      idle_timeout / 4, kHousekeepingInterval, std::chrono::seconds(10));
  auto next_eviction = std::chrono::steady_clock::now() + eviction_interval;
  std::uint64_t calls_before = 0;
  int idle_intervals = 0;
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) stop_requested_.wait_for(mutex_, kHousekeepingInterval);
      if (stopping_) return;
    }
    try {
      if (impl_->certificates != nullptr) impl_->certificates->reload_if_changed();
      if (impl_->tokens != nullptr) impl_->tokens->reload_if_changed();
    } catch (const std::bad_alloc&) {  // another time
    }
    const std::uint64_t calls = impl_->counters.total();
    const bool idle = calls == std::exchange(calls_before, calls) && impl_->calls.count() == 0;
    idle_intervals = idle ? idle_intervals + 1 : 0;
    if (idle_intervals == kIdleIntervals || (idle && idle_intervals % kLongIdleIntervals == 0)) {
      give_back_free_memory();
    }
    if (idle_timeout.count() == 0 || std::chrono::steady_clock::now() < next_eviction) continue;
    next_eviction += eviction_interval;
    const std::size_t evicted = impl_->store.evict_idle();
    if (evicted > 0) spdlog::info("{} idle sessions evicted", evicted);
  }
}

void LintelServer::begin_drain() {
  impl_->calls.close();
  if (impl_->server != nullptr) impl_->server->GetHealthCheckService()->SetServingStatus(false);
}

bool LintelServer::drain(std::chrono::nanoseconds timeout) {
  begin_drain();
  const bool all_ended = impl_->calls.wait_until_none(timeout);
  if (!all_ended) spdlog::warn("{} streams did not end in time", impl_->calls.count());
  stop();
  return all_ended;
}

void LintelServer::stop() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    stop_requested_.notify_all();
  }
  if (housekeeping_.joinable()) housekeeping_.join();
  begin_drain();
  // Everything accepted is answered: loads and drains, then the schedulers end what runs, and the
  // streams flush.
  impl_->manager.stop();
  for (const SharedModel& model : impl_->registry.all()) model->scheduler->stop();
  impl_->calls.wait_until_none(kFlushTime);
  if (impl_->listener != nullptr) impl_->listener->stop();
  // Cancelled by the shutdown, the last streams end now.
  if ((impl_->server == nullptr || shut_down(*impl_->server)) &&
      impl_->calls.wait_until_none(kLastWait, /*also_held=*/true)) {
    return;
  }
  spdlog::error("{} streams do not end: what they hold is left to the end of the process",
                impl_->calls.count());
  impl_.release();
}

SessionStore& LintelServer::store() { return impl_->store; }

Scheduler& LintelServer::scheduler(const std::string& model) {
  return *impl_->registry.find(model)->scheduler;
}

}  // namespace lintel
