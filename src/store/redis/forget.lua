#!lua flags=allow-oom
-- FORGET: by hand, whoever owns it; but not what was claimed since by who asks
-- for that.
--
--     ARGV     1 the head: its fence is the last one that is meant of its own
--              instance, 2 for how long a pending one is kept, so that its
--              owner is told, 3 how to publish, 4 not after, in microseconds
--
-- See claim.lua.

local key, head = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', now)

local record = redis.pcall('GETRANGE', key, 0, 135)

if type(record) == 'table' and not string.find(record.err, '^WRONGTYPE') then
    return record
end

if record == '' then
    return { 'A', stamp }
end

if type(record) == 'table' or #record < 136
   or string.sub(record, 1, 2) ~= string.sub(head, 1, 2)
then
    return { 'V', stamp }
end

if now * 1000 > tonumber(ARGV[4]) then
    return { 'L', stamp }
end

local state = string.sub(record, 3, 3)

if state == 'F'
   or (string.sub(record, 5, 12) == string.sub(head, 5, 12)
       and struct.unpack('>I8', string.sub(record, 13, 20))
           > struct.unpack('>I8', string.sub(head, 13, 20)))
then
    return { 'A', stamp }
end

if state == 'P' or state == 'U' then
    redis.call('SET', key, string.sub(record, 1, 2) .. 'F'
               .. string.sub(record, 4), 'PX', ARGV[2])

else
    redis.call('DEL', key)
end

redis.pcall(ARGV[3], key, '')

return { 'O', stamp }
