#!lua flags=allow-oom
-- FORGET: by hand, whoever owns it; but not what was claimed since by who asks
-- for that.
--
--     ARGV     1 the head: its sequence is the last one that is meant of its own
--              instance, 2 for how long a pending one is kept, so that its
--              owner is told, 3 how to publish, 4 not after

clock()

local is, _, answer = read('GETRANGE', key, 0, length - 1)

if answer then
    return answer
end

if not is then
    return { 'A', stamp }
end

if too_late(ARGV[4]) then
    return { 'L', stamp }
end

local by = unpacked(ARGV[1])

if is.state == 'F'
   or (is.instance == by.instance and is.sequence > by.sequence)
then
    return { 'A', stamp }
end

if is.state == 'P' or is.state == 'U' then
    is.state = 'F'
    redis.call('SET', key, packed(is), 'PX', math.max(ARGV[2], fences))

else
    redis.call(released(is, true))
end

redis.pcall(ARGV[3], key, '')

return { 'O', stamp }
