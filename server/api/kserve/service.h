// SPDX-License-Identifier: Apache-2.0
// InferenceService: the Open Inference Protocol (KServe v2), on the port of lintel.v1.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/kserve/sequences.h"
#include "server/api/service_context.h"
#include "server/rpc/answer.h"

namespace lintel {

// Thread-safe. Translates; what it says is what GenerationService and SessionService would.
class InferenceService final : public RpcService {
 public:
  explicit InferenceService(const ServiceContext& context);

 private:
  // What a unary method does to answer at once.
  template <typename Request, typename Response>
  using Answer = grpc::Status(const ServiceContext& context, CallScope& scope, const Request& wire,
                              Response& response);
  // Serves a method by answer(), with what differs in `body`.
  template <typename Request, typename Response>
  void serve_answer(Method method, Answer<Request, Response>* body);

  RpcReactor* RepositoryModelLoad(RpcCall* call,
                                  const LazyMessage<inference::RepositoryModelLoadRequest>* request,
                                  inference::RepositoryModelLoadResponse* response);
  RpcReactor* RepositoryModelUnload(
      RpcCall* call, const LazyMessage<inference::RepositoryModelUnloadRequest>* request,
      inference::RepositoryModelUnloadResponse* response);
  RpcReactor* ModelInfer(RpcCall* call, const LazyMessage<inference::ModelInferRequest>* request,
                         inference::ModelInferResponse* response);
  RpcReactor* ModelStreamInfer(RpcCall* call);

  const ServiceContext context_;
  ClientSequences sequences_;
};

}  // namespace lintel
