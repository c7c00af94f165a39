-- SPDX-License-Identifier: Apache-2.0
-- Reads tokens of a session. KEYS: session, tokens. ARGV: position of the first, number.
local s = redis.call('HMGET', KEYS[1], 'a', 'p', 'v', 'w')
if not s[1] then return {'NOT_FOUND'} end
local from, count = number(ARGV[1]), number(ARGV[2])
if from < number(s[1]) or from + count > number(s[2]) then return {'NOT_FOUND'} end
if count == 0 then return {'DONE', '1', ''} end
local width, first = number(s[4]), number(s[3])
return {'DONE', s[4], redis.call('GETRANGE', KEYS[2], (from - first) * width,
                                 (from - first + count) * width - 1)}
