-- SPDX-License-Identifier: Apache-2.0
-- A document: a hash of o owner, a parent, b body, v version, i 1 if it is hidden, x time of expiry
-- in microseconds, s name of its last write, and a field for each document that continues it. It
-- has a time to live, which the use of a chain prolongs for the whole chain.
-- KEYS: document. ARGV: operation, owner, time to live in milliseconds, then:
--   put     expected version, parent, body, expiry, a name of this write. Returns 1 if it is hidden
--   find    now, least expiry or empty. Returns parent, body, version, 1 if it is hidden, expiry
--   adopt   the id of a child, least expiry
--   release the id of a child. Returns GONE and the parent if the document was removed
--   remove  now. Returns as release
local own_fields = 7
local what, owner, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local s = redis.call('HMGET', KEYS[1], 'o', 'a', 'b', 'v', 'i', 'x', 's')

local function live_until(expiry)
  if number(s[6]) < number(expiry) then redis.call('HSET', KEYS[1], 'x', expiry) end
  if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
end
local function is_continued() return redis.call('HLEN', KEYS[1]) > own_fields end
local function drop()
  redis.call('DEL', KEYS[1])
  return {'GONE', s[2]}
end

if what == 'put' then
  if s[7] == ARGV[8] then return {'DONE', s[5]} end
  if s[1] and s[1] ~= owner or number(s[4]) ~= number(ARGV[4]) then return {'FENCED'} end
  local hidden = s[5] or '0'
  redis.call('HSET', KEYS[1], 'o', owner, 'a', ARGV[5], 'b', ARGV[6], 'v', number(ARGV[4]) + 1, 'i', hidden,
             'x', ARGV[7], 's', ARGV[8])
  redis.call('PEXPIRE', KEYS[1], ttl)
  return {'DONE', hidden}
end
if s[1] ~= owner then return {'NOT_FOUND'} end
if what == 'find' then
  if number(s[6]) <= number(ARGV[4]) then return {'NOT_FOUND'} end
  if ARGV[5] ~= '' then live_until(ARGV[5]) end
  return {'DONE', s[2], s[3], s[4], s[5], s[6]}
elseif what == 'adopt' then
  if s[5] == '1' then return {'NOT_FOUND'} end
  redis.call('HSET', KEYS[1], 'c' .. ARGV[4], '')
  live_until(ARGV[5])
elseif what == 'release' then
  redis.call('HDEL', KEYS[1], 'c' .. ARGV[4])
  if s[5] == '1' and not is_continued() then return drop() end
elseif what == 'remove' then
  if s[5] == '1' or number(s[6]) <= number(ARGV[4]) then return {'NOT_FOUND'} end
  if not is_continued() then return drop() end
  redis.call('HSET', KEYS[1], 'i', '1')
end
return {'DONE'}
