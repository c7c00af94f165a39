# lintel_server_core: sessions and scheduling, free of gRPC. Sees the model and threads only.
add_library(lintel_server_core STATIC
  ${CMAKE_CURRENT_LIST_DIR}/session_store.cpp
)
target_link_libraries(lintel_server_core PUBLIC lintel_options lintel_model Threads::Threads)
