// Every RPC method of the server: its name for metrics and logs, and the role it needs.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "server/security/identity.h"

namespace lintel {

enum class Method {
  kGenerate,
  kScore,
  kCreateSession,
  kGetSession,
  kListSessions,
  kDeleteSession,
  kForkSession,
  kRewindSession,
  kSnapshotSession,
  kRestoreSession,
  kReadHistory,
  kSaveState,
  kListStates,
  kDeleteState,
  kListModels,
  kGetModel,
  kStatistics,
  kGetLogLevel,
  kSetLogLevel,
  kLoadModel,
  kUnloadModel,
  kLoadAdapter,
  kUnloadAdapter,
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kRepositoryIndex,
  kModelConfig,
  kModelStatistics,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
  kModelInfer,
  kModelStreamInfer,
};

struct MethodInfo {
  Method method;
  const char* name;          // service and method, as on the wire
  std::optional<Role> role;  // that the caller needs; none: any identity will do
  bool is_health = false;    // answers without a token
};

// In the order of the enum.
inline constexpr std::array kMethods = {
    MethodInfo{Method::kGenerate, "lintel.v1.GenerationService/Generate", Role::kGenerate},
    MethodInfo{Method::kScore, "lintel.v1.GenerationService/Score", Role::kScore},
    MethodInfo{Method::kCreateSession, "lintel.v1.SessionService/Create", Role::kGenerate},
    MethodInfo{Method::kGetSession, "lintel.v1.SessionService/Get", Role::kGenerate},
    // An admin lists all sessions, others their own.
    MethodInfo{Method::kListSessions, "lintel.v1.SessionService/List", std::nullopt},
    MethodInfo{Method::kDeleteSession, "lintel.v1.SessionService/Delete", Role::kGenerate},
    MethodInfo{Method::kForkSession, "lintel.v1.SessionService/Fork", Role::kGenerate},
    MethodInfo{Method::kRewindSession, "lintel.v1.SessionService/Rewind", Role::kGenerate},
    MethodInfo{Method::kSnapshotSession, "lintel.v1.SessionService/Snapshot", Role::kGenerate},
    MethodInfo{Method::kRestoreSession, "lintel.v1.SessionService/Restore", Role::kGenerate},
    MethodInfo{Method::kReadHistory, "lintel.v1.SessionService/ReadHistory", Role::kGenerate},
    // Public ones need the role admin besides.
    MethodInfo{Method::kSaveState, "lintel.v1.SessionService/SaveState", Role::kGenerate},
    MethodInfo{Method::kListStates, "lintel.v1.SessionService/ListStates", Role::kGenerate},
    MethodInfo{Method::kDeleteState, "lintel.v1.SessionService/DeleteState", Role::kGenerate},
    MethodInfo{Method::kListModels, "lintel.v1.ModelService/List", std::nullopt},
    MethodInfo{Method::kGetModel, "lintel.v1.ModelService/Get", std::nullopt},
    MethodInfo{Method::kStatistics, "lintel.v1.ModelService/Statistics", std::nullopt},
    MethodInfo{Method::kGetLogLevel, "lintel.v1.AdminService/GetLogLevel", Role::kAdmin},
    MethodInfo{Method::kSetLogLevel, "lintel.v1.AdminService/SetLogLevel", Role::kAdmin},
    MethodInfo{Method::kLoadModel, "lintel.v1.AdminService/LoadModel", Role::kAdmin},
    MethodInfo{Method::kUnloadModel, "lintel.v1.AdminService/UnloadModel", Role::kAdmin},
    MethodInfo{Method::kLoadAdapter, "lintel.v1.AdminService/LoadAdapter", Role::kAdmin},
    MethodInfo{Method::kUnloadAdapter, "lintel.v1.AdminService/UnloadAdapter", Role::kAdmin},
    MethodInfo{Method::kServerLive, "inference.GRPCInferenceService/ServerLive", std::nullopt,
               /*is_health=*/true},
    MethodInfo{Method::kServerReady, "inference.GRPCInferenceService/ServerReady", std::nullopt,
               /*is_health=*/true},
    MethodInfo{Method::kModelReady, "inference.GRPCInferenceService/ModelReady", std::nullopt,
               /*is_health=*/true},
    MethodInfo{Method::kServerMetadata, "inference.GRPCInferenceService/ServerMetadata",
               std::nullopt},
    MethodInfo{Method::kModelMetadata, "inference.GRPCInferenceService/ModelMetadata",
               std::nullopt},
    MethodInfo{Method::kRepositoryIndex, "inference.GRPCInferenceService/RepositoryIndex",
               std::nullopt},
    MethodInfo{Method::kModelConfig, "inference.GRPCInferenceService/ModelConfig", std::nullopt},
    MethodInfo{Method::kModelStatistics, "inference.GRPCInferenceService/ModelStatistics",
               std::nullopt},
    MethodInfo{Method::kRepositoryModelLoad, "inference.GRPCInferenceService/RepositoryModelLoad",
               Role::kAdmin},
    MethodInfo{Method::kRepositoryModelUnload,
               "inference.GRPCInferenceService/RepositoryModelUnload", Role::kAdmin},
    MethodInfo{Method::kModelInfer, "inference.GRPCInferenceService/ModelInfer", Role::kGenerate},
    MethodInfo{Method::kModelStreamInfer, "inference.GRPCInferenceService/ModelStreamInfer",
               Role::kGenerate},
};

constexpr const MethodInfo& info_of(Method method) {
  return kMethods[static_cast<std::size_t>(method)];
}

}  // namespace lintel
