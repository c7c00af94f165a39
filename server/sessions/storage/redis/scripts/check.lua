-- SPDX-License-Identifier: Apache-2.0
-- What became of a write whose claim nobody has. KEYS: session. ARGV: the digest after it, empty: of
-- what is no history.
local digest = redis.call('HGET', KEYS[1], 'd')
if not digest then return {'NOT_FOUND'} end
if ARGV[1] ~= '' and digest == ARGV[1] then
  redis.call('HSET', KEYS[1], 'd', digest)  -- something for WAIT to wait for
  return {'DONE'}
end
return {'FENCED'}
