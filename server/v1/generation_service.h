// GenerationService: translates Generate and Score between the wire and the scheduler.
#pragma once

#include "lintel/v1/generation.grpc.pb.h"
#include "server/call/bounded_service.h"
#include "server/requests/service_context.h"

namespace lintel {

// Thread-safe. Checks, takes a lease, submits; the streams do the rest.
class GenerationService final : public BoundedService {
 public:
  explicit GenerationService(const ServiceContext& context);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* call, const Received<v1::GenerateRequest>* request);
  grpc::ServerWriteReactor<v1::ScoreResponse>* Score(grpc::CallbackServerContext* call,
                                                     const Received<v1::ScoreRequest>* request);

 private:
  // What both methods do around their translation, which is `body(scope, &reactor)`.
  template <typename Response, typename Body>
  grpc::ServerWriteReactor<Response>* stream(grpc::CallbackServerContext& call, Method method,
                                             Body body);
  // Both take the scope when they make a reactor: from then on it is the stream's to end.
  grpc::Status generate(const grpc::CallbackServerContext& call, const v1::GenerateRequest& wire,
                        std::unique_ptr<CallScope>& scope,
                        grpc::ServerWriteReactor<v1::GenerateResponse>** reactor);
  grpc::Status score(const grpc::CallbackServerContext& call, const v1::ScoreRequest& wire,
                     std::unique_ptr<CallScope>& scope,
                     grpc::ServerWriteReactor<v1::ScoreResponse>** reactor);

  const ServiceContext context_;
};

}  // namespace lintel
