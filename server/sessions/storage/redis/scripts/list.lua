-- SPDX-License-Identifier: Apache-2.0
-- Lists sessions of one bucket by id. KEYS: ids. ARGV: prefix of keys, after, most, model (empty:
-- all), 1 for those of one owner, that owner. Returns the id to continue after (empty: there are no
-- more), then row, position, digest of each. Keys with other contents are skipped.
local at, most, found, bytes = ARGV[2], number(ARGV[3]), {''}, 0
for _ = 1, 20 do  -- bounded: other calls wait for this
  local ids = redis.call('ZRANGEBYLEX', KEYS[1], '(' .. at, '+', 'LIMIT', 0, 100)
  for _, id in ipairs(ids) do
    at = id
    local s = redis.pcall('HMGET', ARGV[1] .. id .. ':m', 'r', 'p', 'd', 'm', 'o')
    if s[1] and (ARGV[4] == '' or s[4] == ARGV[4]) and (ARGV[5] == '0' or s[5] == ARGV[6]) then
      for i = 1, 3 do found[#found + 1] = s[i] end
      bytes = bytes + #s[1]
      if #found >= 1 + 3 * most or bytes > 900000 then  -- bounds the reply: a mebibyte and one row
        found[1] = at
        return found
      end
    end
  end
  if #ids < 100 then return found end
end
found[1] = at
return found
