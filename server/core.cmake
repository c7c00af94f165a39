# lintel_server_core: sessions and scheduling, free of gRPC. Sees the model and threads only.
add_library(lintel_server_core STATIC
  ${CMAKE_CURRENT_LIST_DIR}/batch_rows.cpp
  ${CMAKE_CURRENT_LIST_DIR}/drafter.cpp
  ${CMAKE_CURRENT_LIST_DIR}/quotas.cpp
  ${CMAKE_CURRENT_LIST_DIR}/request_queue.cpp
  ${CMAKE_CURRENT_LIST_DIR}/running_request.cpp
  ${CMAKE_CURRENT_LIST_DIR}/sample_run.cpp
  ${CMAKE_CURRENT_LIST_DIR}/scheduler.cpp
  ${CMAKE_CURRENT_LIST_DIR}/self_check.cpp
  ${CMAKE_CURRENT_LIST_DIR}/session_memory.cpp
  ${CMAKE_CURRENT_LIST_DIR}/session_store.cpp
  ${CMAKE_CURRENT_LIST_DIR}/stop_matcher.cpp
  ${CMAKE_CURRENT_LIST_DIR}/worker.cpp
)
target_link_libraries(lintel_server_core PUBLIC lintel_options lintel_model Threads::Threads)
