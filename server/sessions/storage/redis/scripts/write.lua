-- SPDX-License-Identifier: Apache-2.0
-- Applies a write of the holder of a session. KEYS: session, tokens, garbage (for changes of
-- states), ids and expiries (for a removal). ARGV:
--   1 id, 2 nonce, 3 the lowest number of the last write before it, 4 its own number, 5 lease in ms
--   6 keep|release|remove|heal, 7 digest after it, empty: history unchanged, 8 position after it
--   9 row, empty: unchanged, 10 base, 11 expires, 12 states that the row names
--   13 position of its tokens, 14 their width, 15 the tokens
--   16 states that were put and are not kept
--   17... for heal: holder, boot, nonce and number of the claim before; then digests it may find
-- A heal writes data that a failover has lost. A session that was claimed since is not behind but
-- has continued, even if it has a digest that the healer knows: a repeated call has the same
-- tokens.
local fields = {'o', 'n', 'l', 's', 'd', 'p', 'w', 'v', 'a', 't', 'h', 'b', 'u', 'f'}
local got = redis.call('HMGET', KEYS[1], unpack(fields))
local s = {}
for i, name in ipairs(fields) do s[name] = got[i] or '' end
if s.d == '' then return {'NOT_FOUND'} end
local what, heals = ARGV[6], ARGV[6] == 'heal'
local nonce, first_digest = ARGV[2], heals and 21 or 17
local now = milliseconds()
local left = number(s.u) - now

local mine = s.n == nonce or (s.n == '' and s.l == nonce)
if mine and number(s.s) >= number(ARGV[4]) then  -- the answer was lost
  redis.call('HSET', KEYS[1], 's', s.s)  -- something for WAIT to wait for
  return {'DONE', heals and s.f or nil}
end
if not mine and not heals and ARGV[7] ~= '' and s.d == ARGV[7] and ARGV[9] == '' then
  redis.call('HSET', KEYS[1], 'd', s.d)
  return {'DONE'}
end
local known = false
for i = first_digest, #ARGV do known = known or s.d == ARGV[i] end
local free = s.n == '' or left <= 0 or (s.h == ARGV[17] and s.b == ARGV[18])
local may = mine and number(s.s) >= number(ARGV[3])
if heals then may = (free or s.n == ARGV[19]) and number(s.f) <= number(ARGV[20]) end
if not may or not known then
  local open = (s.n == '' or left <= 0 or mine) and '1' or '0'
  return {'BEHIND', s.d, s.p, open, s.h, whole(left), s.f}
end

local id, doomed = ARGV[1], {}
if what == 'remove' then
  doomed = name_states(KEYS[3], id, s.t, '')
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('ZREM', KEYS[4], id)
  redis.call('ZREM', KEYS[5], id)
elseif ARGV[9] ~= '' and s.t ~= ARGV[12] then
  doomed = name_states(KEYS[3], id, s.t, ARGV[12], heals)
  if not doomed then return {'NO_STATE'} end
end
local named = {}
for where in each_state(ARGV[9] ~= '' and ARGV[12] or s.t) do named[where] = what ~= 'remove' end
for where in each_state(ARGV[16]) do
  if not named[where] then  -- an earlier write, whose answer was lost, may have named it
    redis.call('SREM', KEYS[3], where .. id)
    redis.call('SADD', KEYS[3], 'D' .. where .. id)
    doomed[#doomed + 1] = where
  end
end
if what ~= 'remove' then
  local set = {'s', ARGV[4], 'n', nonce, 'u', whole(now + ARGV[5])}
  local function change(name, value)
    set[#set + 1] = name
    set[#set + 1] = value
  end
  local first, width, base, position = number(s.v), number(s.w), number(s.a), number(s.p)
  if ARGV[7] ~= '' then
    position = number(ARGV[8])
    width = math.max(width, number(ARGV[14]))
    put_tokens(KEYS[2], s, first, width, number(ARGV[13]), position, ARGV[15])
    change('d', ARGV[7])
    change('p', ARGV[8])
    change('w', whole(width))
  end
  if ARGV[9] ~= '' then
    change('r', ARGV[9])
    change('x', ARGV[11])
    change('t', ARGV[12])
    change('a', ARGV[10])
    base = number(ARGV[10])
  end
  if base > first then change('v', whole(forget_tokens(KEYS[2], first, width, base, position))) end
  if heals then
    s.f = whole(number(ARGV[20]) + 1)  -- above all that were granted before the failover
    change('f', s.f)
    change('h', ARGV[17])
    change('b', ARGV[18])
  end
  if what == 'release' then
    set[4] = ''
    set[6] = '0'
    change('l', nonce)
  end
  redis.call('HSET', KEYS[1], unpack(set))
end
if heals then return {'DONE', s.f} end
return {'DONE', unpack(doomed)}
