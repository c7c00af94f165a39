-- SPDX-License-Identifier: Apache-2.0
-- Finds a session's row, held or not. KEYS: session. ARGV: owner, holder and boot of the caller.
-- Returns row, position, digest; another holder (empty: none), the rest of its lease in
-- milliseconds.
local s = redis.call('HMGET', KEYS[1], 'o', 'r', 'p', 'd', 'n', 'h', 'b', 'u')
if s[1] ~= ARGV[1] then return {'NOT_FOUND'} end
local left = number(s[8]) - milliseconds()
local is_ours = s[6] == ARGV[2] and number(s[7]) <= number(ARGV[3])
if s[5] == '' or left <= 0 or is_ours then return {'DONE', s[2], s[3], s[4], '', '0'} end
return {'DONE', s[2], s[3], s[4], s[6], whole(left)}
