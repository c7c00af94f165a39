-- SPDX-License-Identifier: Apache-2.0
-- Checks if a write was stored whose claim this server no longer has. KEYS: session. ARGV: the
-- digest after it, empty: it does not change the history.
local digest = redis.call('HGET', KEYS[1], 'd')
if not digest then return {'NOT_FOUND'} end
if ARGV[1] ~= '' and digest == ARGV[1] then
  redis.call('HSET', KEYS[1], 'd', digest)  -- something for WAIT to wait for
  return {'DONE'}
end
return {'FENCED'}
