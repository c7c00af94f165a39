// ModelService: lists, loads and unloads models.
#pragma once

#include "lintel/v1/model.grpc.pb.h"
#include "server/api/service_context.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {

// Thread-safe.
class ModelService final : public BoundedService {
 public:
  explicit ModelService(const ServiceContext& context);

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* call,
                                 const LazyMessage<v1::ListModelsRequest>* request,
                                 v1::ListModelsResponse* response);
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* call,
                                const LazyMessage<v1::GetModelRequest>* request,
                                v1::Model* response);
  grpc::ServerUnaryReactor* Statistics(grpc::CallbackServerContext* call,
                                       const LazyMessage<v1::StatisticsRequest>* request,
                                       v1::StatisticsResponse* response);

 private:
  const ServiceContext context_;
  const TimePoint started_ = context_.clock.now();
};

void write_adapter(const ServedAdapter& adapter, v1::Adapter& wire);
// All about a model that is ready.
void write_model(const ServedModel& model, v1::Model& wire);

}  // namespace lintel
