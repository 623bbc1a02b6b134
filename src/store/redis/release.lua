#!lua flags=allow-oom
-- RELEASE: a claim is none any more; nor is one that the same instance gave up
-- before.  What was in doubt before is so again.
--
--     ARGV     1 the head, 2 how to publish, 3 "f": it was not, or is settled
--              by hand
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

local state = string.sub(record, 3, 3)
local older = struct.unpack('>I8', string.sub(record, 13, 20))
              - struct.unpack('>I8', string.sub(head, 13, 20))

if string.sub(record, 5, 12) ~= string.sub(head, 5, 12)
   or (state ~= 'P' and state ~= 'U')
   or older > 0 or (older < 0 and state ~= 'P')
then
    return { 'A', stamp }
end

if state == 'P' and string.sub(record, 53, 56) ~= string.rep('\0', 4)
   and not (older == 0 and ARGV[3] == 'f')
then
    local ends = struct.unpack('>I8', string.sub(record, 37, 44))
    local window = struct.unpack('>I8', string.sub(record, 45, 52))

    ends = math.max(ends, now + window, now + 1)

    redis.call('SET', key, string.sub(record, 1, 2) .. 'U'
               .. string.sub(record, 4, 20)
               .. struct.pack('>I8I8I8', 0, now, ends)
               .. string.sub(record, 45, 52) .. string.rep('\0', 4)
               .. string.sub(record, 57, 136), 'PX',
               string.format('%.0f', ends - now))

else
    redis.call('DEL', key)
end

redis.pcall(ARGV[2], key, '')

return { 'O', stamp }
