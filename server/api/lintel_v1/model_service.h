// SPDX-License-Identifier: Apache-2.0
// ModelService: lists, loads and unloads models.
#pragma once

#include "lintel/v1/model.grpc.pb.h"
#include "server/api/handlers.h"
#include "server/api/params/generate_params.h"
#include "server/api/service_context.h"
#include "server/chat/template/chat_model.h"

namespace lintel {

// Thread-safe.
class ModelService final : public HandlerService {
 public:
  explicit ModelService(const ServiceContext& context);

 private:
  grpc::Status list(CallScope& scope, const v1::ListModelsRequest& wire,
                    v1::ListModelsResponse& response);
  Task<grpc::Status> get(Call call, v1::GetModelRequest wire, v1::Model& response);
  grpc::Status statistics(CallScope& scope, const v1::StatisticsRequest& wire,
                          v1::StatisticsResponse& response);
  Task<grpc::Status> tokenize(Call call, v1::TokenizeRequest wire, v1::TokenizeResponse& response);
  Task<grpc::Status> detokenize(Call call, v1::DetokenizeRequest wire,
                                v1::DetokenizeResponse& response);

  const TimePoint started_ = context_.clock.now();
};

// Fills in the checkpoint's recommendations for sampling that the request does not name.
api::SamplingParams with_defaults(api::SamplingParams sampling, const SamplingDefaults& defaults);
void write_adapter(const ServedAdapter& adapter, v1::Adapter& wire);
// All about a model that is ready.
void write_model(const ServedModel& model, const SessionManager& sessions, v1::Model& wire);

}  // namespace lintel
