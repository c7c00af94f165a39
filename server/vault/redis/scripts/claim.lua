-- The right to write a session, for a call. KEYS: session. ARGV: owner, nonce, holder, boot,
-- lease in milliseconds.
local s = redis.call('HMGET', KEYS[1], 'o', 'n', 'h', 'b', 'u', 'f', 'l')
if s[1] ~= ARGV[1] then return {'NOT_FOUND'} end
local now = milliseconds()
local left = number(s[5]) - now
if s[2] ~= ARGV[2] then  -- else the answer was lost
  if s[7] == ARGV[2] then return {'STALE'} end  -- granted, and given back since
  -- An earlier boot of the same holder holds nothing any more.
  local is_ours = s[3] == ARGV[3] and number(s[4]) <= number(ARGV[4])
  if s[2] ~= '' and left > 0 and not is_ours then return {'HELD', s[3], whole(left)} end
  redis.call('HSET', KEYS[1], 'n', ARGV[2], 'l', '', 's', '0', 'h', ARGV[3], 'b', ARGV[4],
             'u', whole(now + ARGV[5]), 'f', whole(math.max(number(s[6]) + 1, now)))
end
local row = redis.call('HMGET', KEYS[1], 'f', 'r', 'p', 'd', 'w')
return {'DONE', row[1], row[2], row[3], row[4], row[5]}
