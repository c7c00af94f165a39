// Calls that this process makes to itself, for clients of HTTP.
#pragma once

namespace lintel {

// Metadata of such a call. It is trusted with the key only, which is drawn when the process starts
// and never leaves it; without the key it is ignored.
inline constexpr const char* kInnerKey = "lintel-inner-key";
inline constexpr const char* kInnerPeer = "lintel-inner-peer";  // the client's address
// The name in the client's certificate, any bytes: metadata that ends in -bin may have them.
inline constexpr const char* kInnerCertificate = "lintel-inner-certificate-bin";

}  // namespace lintel
