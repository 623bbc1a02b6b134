#!lua flags=allow-oom
-- FORGET: an operator's, whoever owns the claim; but claims that the sending
-- instance has made since stay.
--
--     ARGV     1 the head: its sequence is the last one meant of its own
--                instance
--              2 how long a forgotten claim is kept, for its owner to find out
--              3 the command to publish with
--              4 not after

clock()

local is, _, answer = read('GETRANGE', key, 0, length - 1)

if answer then
    return answer
end

if not is then
    return { 'A', msec }
end

if too_late(ARGV[4]) then
    return { 'L', msec }
end

local by = unpacked(ARGV[1])

if is.state == 'F'
   or (is.instance == by.instance and is.sequence > by.sequence)
then
    return { 'A', msec }
end

if is.state == 'P' or is.state == 'U' then
    is.state = 'F'
    redis.call('SET', key, packed(is), 'PX', math.max(ARGV[2], fence_keep))

else
    redis.call(released(is, true))
end

redis.pcall(ARGV[3], key, '')

return { 'O', msec }
