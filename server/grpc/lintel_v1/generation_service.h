// GenerationService: translates Generate and Score between the wire and the scheduler.
#pragma once

#include "lintel/v1/generation.grpc.pb.h"
#include "server/api/service_context.h"
#include "server/grpc/lintel_v1/generate_stream.h"
#include "server/grpc/lintel_v1/score_stream.h"
#include "server/grpc/transport/bounded_service.h"

namespace lintel {

// Thread-safe. Checks, takes a lease, submits; the streams do the rest.
class GenerationService final : public BoundedService {
 public:
  explicit GenerationService(const ServiceContext& context);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const Received<v1::GenerateRequest>* request);
  grpc::ServerWriteReactor<v1::ScoreResponse>* Score(grpc::CallbackServerContext* context,
                                                     const Received<v1::ScoreRequest>* request);

 private:
  grpc::Status generate(const grpc::CallbackServerContext& context, const v1::GenerateRequest& wire,
                        GenerateStream& stream);
  grpc::Status score(const grpc::CallbackServerContext& context, const v1::ScoreRequest& wire,
                     ScoreStream::Reactor& reactor);

  const ServiceContext context_;
};

}  // namespace lintel
