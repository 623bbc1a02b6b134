#!lua flags=allow-oom
-- RELEASE: a claim is none any more; nor is one that the same instance gave up
-- before.
--
--     ARGV     1 the head, 2 how to publish
--
-- See claim.lua.

local key, head = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local stamp = string.format('%.0f',
                            time[1] * 1000 + math.floor(time[2] / 1000))

local record = redis.pcall('GETRANGE', key, 0, 119)

if type(record) == 'table' and not string.find(record.err, '^WRONGTYPE') then
    return record
end

if record == '' then
    return { 'A', stamp }
end

if type(record) == 'table' or #record < 120
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

redis.call('DEL', key)
redis.pcall(ARGV[2], key, '')

return { 'O', stamp }
