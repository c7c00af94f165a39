-- SPDX-License-Identifier: Apache-2.0
-- Removes expired sessions of one bucket that are not held. KEYS: ids, expiries, garbage. ARGV:
-- prefix of keys, time in microseconds, most, largest difference of that time from this server's,
-- in seconds. Returns the number of sessions, the number of removed ones, then doomed states, each
-- with the session that named it.
local function doom(id, where, plain)
  if plain then redis.call('SREM', KEYS[3], where .. id) end
  redis.call('SADD', KEYS[3], 'D' .. where .. id)
end
local clock, most = number(ARGV[2]), number(ARGV[3])
if math.abs(clock / 1000000 - milliseconds() / 1000) > number(ARGV[4]) then return {'CLOCK'} end
local now = milliseconds()
local removed = 0
local ids = {}
if most > 0 then
  ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', whole(clock / 1000000), 'LIMIT', 0, most)
end
for _, id in ipairs(ids) do
  local key = ARGV[1] .. id .. ':m'
  local s = redis.call('HMGET', key, 'x', 'n', 'u', 't')
  if s[1] and number(s[1]) > clock then
    redis.call('ZADD', KEYS[2], whole(number(s[1]) / 1000000), id)  -- used since then
  elseif s[1] and (s[2] == '' or number(s[3]) <= now) then
    for where in each_state(s[4]) do doom(id, where, false) end
    redis.call('DEL', key, ARGV[1] .. id .. ':h')
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    removed = removed + 1
  end
end
local found = {'DONE', redis.call('ZCARD', KEYS[1]), removed}
for _, member in ipairs(redis.call('SRANDMEMBER', KEYS[3], 100)) do
  if member:sub(1, 1) == 'D' then
    found[#found + 1] = member:sub(2)
  else  -- put, but not named: a holder may still name it
    local id = member:sub(17)
    local s = redis.call('HMGET', ARGV[1] .. id .. ':m', 'n', 'u')
    if s[1] and (s[1] == '' or number(s[2]) <= now) then
      doom(id, member:sub(1, 16), true)
      found[#found + 1] = member
    end
  end
end
return found
