-- SPDX-License-Identifier: Apache-2.0
-- Claims the right to write a session, for a call. KEYS: session. ARGV: owner, nonce, holder, boot,
-- lease in milliseconds, the digest that the session must have (empty: any), a name that its row
-- must not have (empty: none). If it has another digest, or that name, nothing is claimed: SEEN.
local s = redis.call('HMGET', KEYS[1], 'o', 'n', 'h', 'b', 'u', 'f', 'l', 'd', 'r', 'p', 'w')
if s[1] ~= ARGV[1] then return {'NOT_FOUND'} end
local now = milliseconds()
local left = number(s[5]) - now
if s[2] ~= ARGV[2] then  -- else the answer was lost
  if s[7] == ARGV[2] then return {'STALE'} end  -- granted, and released since
  -- An earlier boot of the same holder holds nothing any more.
  local is_ours = s[3] == ARGV[3] and number(s[4]) <= number(ARGV[4])
  if s[2] ~= '' and left > 0 and not is_ours then
    return {'HELD', s[3], s[9], s[10], s[8], s[11], whole(left)}
  end
  local is_named = ARGV[7] ~= '' and s[9]:find(ARGV[7], 1, true)
  if is_named or (ARGV[6] ~= '' and s[8] ~= ARGV[6]) then
    return {'SEEN', '0', s[9], s[10], s[8], s[11]}
  end
  s[6] = whole(math.max(number(s[6]) + 1, now))
  redis.call('HSET', KEYS[1], 'n', ARGV[2], 'l', '', 's', '0', 'h', ARGV[3], 'b', ARGV[4],
             'u', whole(now + ARGV[5]), 'f', s[6])
end
return {'DONE', s[6], s[9], s[10], s[8], s[11]}
