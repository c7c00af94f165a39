-- SPDX-License-Identifier: Apache-2.0
-- Prefix of every script. A session is a hash:
--   o owner, m model, r row, p position, d digest of the history up to there, x time of expiry
--   t states that the row names, 16 hexadecimal digits each
--   v position of the first token in the string of tokens, a of the first kept one, w bytes of each
--   n nonce of the claim, empty: none; l of the last released claim; s number of the last write
--   h holder, b its boot, u end of its lease, f number of the claim: grows from claim to claim, and
--   is at least the time in milliseconds, so that it grows even if a failover has lost claims
-- No key of a session has a time to live, and leases follow this server's clock only.
local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function whole(number) return string.format('%.0f', number) end
local function number(text) return tonumber(text) or 0 end

-- Puts packed tokens at the position `from`, in place of those from there on.
local function put_tokens(key, row, first, width, from, to, tokens)
  local old = number(row.w)
  if old ~= width and redis.call('EXISTS', key) == 1 then
    local one = string.rep('.', old)
    local wider = redis.call('GET', key):gsub(one, '%0' .. string.rep('\0', width - old))
    redis.call('SET', key, wider)
  end
  local start = (from - first) * width
  if redis.call('STRLEN', key) > (to - first) * width then
    if start == 0 then
      redis.call('DEL', key)
    else
      redis.call('SET', key, redis.call('GETRANGE', key, 0, start - 1))
    end
  end
  if #tokens > 0 then redis.call('SETRANGE', key, start, tokens) end
end

-- Drops tokens below `base`, once they are many. Returns the position of the first one left.
local function forget_tokens(key, first, width, base, position)
  if base - first < math.max(256, (position - base) / 4) then return first end
  local kept = ''
  if position > base then kept = redis.call('GETRANGE', key, (base - first) * width, -1) end
  if #kept > 0 then redis.call('SET', key, kept) else redis.call('DEL', key) end
  return base
end

local function each_state(names)
  return names:gmatch('%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x')
end

-- Changes the states that a session names. New ones have to be in `garbage`, as put, unless `all`;
-- those no longer named are doomed. Returns the doomed ones; nothing: a new one is not there, and
-- nothing was changed.
local function name_states(garbage, id, before, after, all)
  local old, new, doomed = {}, {}, {}
  for where in each_state(before) do old[where] = true end
  for where in each_state(after) do
    new[where] = true
    local waits = all or old[where] or redis.call('SISMEMBER', garbage, where .. id) == 1
    if not waits then return nil end
  end
  for where in each_state(after) do
    if not old[where] then redis.call('SREM', garbage, where .. id) end
  end
  for where in each_state(before) do
    if not new[where] then
      redis.call('SADD', garbage, 'D' .. where .. id)
      doomed[#doomed + 1] = where
    end
  end
  return doomed
end
