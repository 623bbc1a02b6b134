-- FIND: looks, and changes nothing.
--
--     ARGV     1 the format
--
-- See claim.lua.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', now)

local record = redis.pcall('GET', KEYS[1])

if type(record) == 'table' and not string.find(record.err, '^WRONGTYPE') then
    return record
end

if not record then
    return { 'A', stamp }
end

if type(record) == 'table' or #record < 136
   or string.sub(record, 1, 2) ~= ARGV[1]
then
    return { 'V', stamp }
end

local state = string.sub(record, 3, 3)

if state == 'F'
   or (state ~= 'P'
       and struct.unpack('>I8', string.sub(record, 37, 44)) <= now)
then
    return { 'A', stamp }
end

return { 'B', stamp, record }
