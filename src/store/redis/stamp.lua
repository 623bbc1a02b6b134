-- What all who share a zone must have in common, as the first of them said it.
--
--     KEYS[1]  the zone's stamp
--     ARGV     1 what it is to be

local time = redis.call('TIME')
local stamp = string.format('%.0f',
                            time[1] * 1000 + math.floor(time[2] / 1000))

local is = redis.pcall('GET', KEYS[1])

if type(is) == 'table' then

    if string.find(is.err, '^WRONGTYPE') then
        return { 'S', stamp, '' }
    end

    return is
end

if is and is ~= ARGV[1] then
    return { 'S', stamp, is }
end

if not is then
    redis.call('SET', KEYS[1], ARGV[1])
end

return { 'O', stamp }
