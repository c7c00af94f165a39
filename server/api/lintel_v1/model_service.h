// SPDX-License-Identifier: Apache-2.0
// ModelService: lists, loads and unloads models.
#pragma once

#include "lintel/v1/model.grpc.pb.h"
#include "server/api/params/generate_params.h"
#include "server/api/service_context.h"
#include "server/chat/template/chat_model.h"
#include "server/rpc/answer.h"

namespace lintel {

// Thread-safe.
class ModelService final : public RpcService {
 public:
  explicit ModelService(const ServiceContext& context);

  RpcReactor* List(RpcCall* call, const LazyMessage<v1::ListModelsRequest>* request,
                   v1::ListModelsResponse* response);
  RpcReactor* Get(RpcCall* call, const LazyMessage<v1::GetModelRequest>* request,
                  v1::Model* response);
  RpcReactor* Statistics(RpcCall* call, const LazyMessage<v1::StatisticsRequest>* request,
                         v1::StatisticsResponse* response);
  RpcReactor* Tokenize(RpcCall* call, const LazyMessage<v1::TokenizeRequest>* request,
                       v1::TokenizeResponse* response);
  RpcReactor* Detokenize(RpcCall* call, const LazyMessage<v1::DetokenizeRequest>* request,
                         v1::DetokenizeResponse* response);

 private:
  const ServiceContext context_;
  const TimePoint started_ = context_.clock.now();
};

// Sampling with what the checkpoint recommends where it names nothing.
api::SamplingParams with_defaults(api::SamplingParams sampling, const SamplingDefaults& defaults);
void write_adapter(const ServedAdapter& adapter, v1::Adapter& wire);
// All about a model that is ready.
void write_model(const ServedModel& model, v1::Model& wire);

}  // namespace lintel
