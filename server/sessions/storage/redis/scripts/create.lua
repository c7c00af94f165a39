-- SPDX-License-Identifier: Apache-2.0
-- Creates a session. KEYS: session, tokens, ids, expiries, garbage. ARGV: id, owner, model, digest,
-- position, base, row, width, tokens, expires in microseconds, states.
local digest = redis.call('HGET', KEYS[1], 'd')
if digest then return {digest == ARGV[4] and 'DONE' or 'FENCED'} end
if #ARGV[11] > 0 and not name_states(KEYS[5], ARGV[1], '', ARGV[11]) then return {'NO_STATE'} end
redis.call('HSET', KEYS[1], 'o', ARGV[2], 'm', ARGV[3], 'd', ARGV[4], 'p', ARGV[5], 'a', ARGV[6],
           'v', ARGV[6], 'r', ARGV[7], 'w', ARGV[8], 'x', ARGV[10], 't', ARGV[11],
           'n', '', 'l', '', 's', '0', 'h', '', 'b', '0', 'u', '0', 'f', '0')
if #ARGV[9] > 0 then redis.call('SET', KEYS[2], ARGV[9]) else redis.call('DEL', KEYS[2]) end
redis.call('ZADD', KEYS[3], 0, ARGV[1])
redis.call('ZADD', KEYS[4], whole(number(ARGV[10]) / 1000000), ARGV[1])
return {'DONE'}
