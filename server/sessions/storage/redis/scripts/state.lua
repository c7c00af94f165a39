-- SPDX-License-Identifier: Apache-2.0
-- A state and the sessions that name it. KEYS: state, sessions. ARGV: put|share|drop, session, state.
if ARGV[1] == 'put' then
  redis.call('SET', KEYS[1], ARGV[3])
  redis.call('SADD', KEYS[2], ARGV[2])
elseif ARGV[1] == 'share' then
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('SADD', KEYS[2], ARGV[2]) end
else
  redis.call('SREM', KEYS[2], ARGV[2])
  if redis.call('SCARD', KEYS[2]) == 0 then redis.call('UNLINK', KEYS[1]) end
end
return {'DONE'}
