// Calls that this process makes to itself, for clients that came another way than gRPC.
#pragma once

namespace lintel {

// Metadata of such a call. It is believed of who knows the key, which was drawn when the process
// started and never leaves it; of everybody else it is ignored.
inline constexpr const char* kInnerKey = "lintel-inner-key";
inline constexpr const char* kInnerPeer = "lintel-inner-peer";  // the client's address
// The name in the client's certificate, any bytes: metadata that ends in -bin may have them.
inline constexpr const char* kInnerCertificate = "lintel-inner-certificate-bin";

}  // namespace lintel
